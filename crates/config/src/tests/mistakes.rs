//! Tests of warnings about valid settings that serve no request, or fewer than they seem to.

use crate::{Config, ConfigError, Environment};
use std::path::Path;

use super::{load, load_more, refusal, warnings};

/// Returns the warnings of `text` after a line with a backend that declares its models.
fn warned(text: &str) -> Vec<String> {
    warnings(&format!(
        "backends: [{{name: a, url: http://10.0.0.1, models: [m, llama3:8b]}}]\n{text}"
    ))
}

fn keys(attributes: &str) -> String {
    format!("auth: {{keys: [{{name: k, key: sk-1, {attributes}}}]}}")
}

#[test]
fn patterns_among_the_models_of_a_backend_warn() {
    let found = warnings("backends: [{name: a, url: http://a, models: [m, 'llama*']}]");
    let expected = "penstock.yaml:1:49: backend 'a' lists the model 'llama*': names of models are exact, and * and ? stand for nothing else";
    assert_eq!(found, [expected]);
    let mapping = warnings("backends: [{url: http://a, models: [{id: 'gpt-?'}]}]");
    assert!(mapping[0].starts_with("penstock.yaml:1:42: backend 'a:80' lists"), "{mapping:?}");
}

#[test]
fn zones_of_keys_without_a_backend_warn() {
    let found = warned(&keys("zones: [local, loca]"));
    let expected = "penstock.yaml:2:51: key 'k' names the zone 'loca': no backend is in it: did you mean 'local'?";
    assert_eq!(found, [expected]);
    assert_eq!(warned(&keys("zones: [local]")), Vec::<String>::new());
}

#[test]
fn models_of_keys_that_no_backend_serves_warn() {
    let found = warned(&keys("models: [m, zz]"));
    assert_eq!(
        found,
        ["penstock.yaml:2:48: key 'k' lists the model 'zz', which no backend serves"]
    );
    for fine in [
        "auth: {keys: [{name: k, key: sk-1, models: [m, 'llama3:*', 'M:latest', '*']}]}".to_owned(),
        format!("{}\nrouting: {{aliases: {{gpt-4: m}}}}", keys("models: ['gpt-*']")),
        format!("{}\nrouting: {{aliases: {{'gpt-*': m}}}}", keys("models: [gpt-4]")),
        format!("{}\nrouting: {{aliases: {{'gpt-*': m}}}}", keys("models: ['*-4']")),
        format!("{}\nrouting: {{fallbacks: {{gone: [m]}}}}", keys("models: [gone]")),
        format!("{}\nensembles: {{enabled: true}}", keys("models: [moe-m]")),
        keys("models: [new], manage_models: true"),
    ] {
        assert_eq!(warned(&fine), Vec::<String>::new(), "{fine}");
    }
    let discovered = load_more(&keys("models: [zz]")).unwrap();
    assert_eq!(discovered.warnings, [], "a model may still be discovered");
}

#[test]
fn default_models_that_no_backend_serves_warn() {
    let expected = "'routing.default_model' names 'zz', which no backend serves";
    for (text, place) in [("zz", "2:26"), ("{chat: m, embeddings: zz}", "2:48")] {
        let found = warned(&format!("routing: {{default_model: {text}}}"));
        assert_eq!(found, [format!("penstock.yaml:{place}: {expected}")]);
    }
    for fine in [
        "default_model: auto",
        "default_model: none",
        "default_model: M",
        "default_model: {chat: m}",
        "default_model: al, aliases: {al: m}",
        "default_model: al-1, aliases: {'al-*': m}",
        "default_model: gone, fallbacks: {gone: [m]}",
        "default_model: al, aliases: {al: gone}, fallbacks: {gone: [m]}",
    ] {
        let found = warned(&format!("routing: {{{fine}}}"));
        assert_eq!(found, Vec::<String>::new(), "{fine}");
    }
    assert_eq!(warned("routing: {default_model: moe-m}\nensembles: {enabled: true}").len(), 0);
    assert_eq!(load_more("routing: {default_model: zz}").unwrap().warnings, []);
}

#[test]
fn fleets_without_a_backend_for_requests_warn() {
    let expected = "penstock.yaml:1:1: every backend has 'drain: true' or 'weight: 0': requests are refused until the admin port resumes one";
    let drained = "backends: [{url: http://a, weight: 0}, {url: http://b, drain: true}]";
    assert_eq!(warnings(drained), [expected]);
    let one_left = "backends: [{url: http://a, weight: 0}, http://b]";
    assert_eq!(warnings(one_left), Vec::<String>::new());
}

#[test]
fn scorers_beside_a_preset_are_not_called_a_preset() {
    let text = "backends: [http://a]\nrouting: {preset: llm-d, scorers: [{name: prefix-affinity, weight: 1}]}";
    let result = Config::parse(text, "p", Path::new(""), &Environment::default());
    let Err(ConfigError::Invalid { faults, warnings }) = result else { panic!("{result:?}") };
    assert!(faults[0].to_string().contains("not both"), "{faults:?}");
    let warning = warnings[0].to_string();
    assert!(warning.starts_with("p:2:26: 'routing.scorers': it knows no load"), "{warning}");
}

#[test]
fn usual_cooldowns_above_the_maximum_warn() {
    assert_eq!(
        warned("routing: {cooldown: {default: 100s}}"),
        [
            "penstock.yaml:2:22: 'routing.cooldown.default' is 100s, above 'routing.cooldown.max': 60s applies"
        ]
    );
    let short = "routing: {cooldown: {min: 100ms, max: 500ms}}";
    assert_eq!(warned(short), Vec::<String>::new(), "the default is not in the file");
}

#[test]
fn expired_keys_warn() {
    assert_eq!(
        warned(&keys("expires_at: 2020-01-01T00:00:00Z")),
        ["penstock.yaml:2:36: key 'k' expired at 2020-01-01T00:00:00Z: its requests are refused"]
    );
    assert_eq!(warned(&keys("expires_at: 2999-01-01T00:00:00Z")), Vec::<String>::new());
}

#[test]
fn sizes_that_refuse_every_request_are_refused() {
    for (section, key) in
        [("limits", "max_body_size"), ("limits", "max_head_size"), ("auth", "max_token_size")]
    {
        let error = refusal(&format!("{section}: {{{key}: 0B}}"));
        let expected = format!("'{section}.{key}' is '0B': expected more than 0B");
        assert!(error.starts_with("penstock.yaml:2:") && error.contains(&expected), "{error}");
    }
    assert!(load("backends: [http://a]\nlimits: {max_body_size: 1B}").is_ok());
}
