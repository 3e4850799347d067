//! Tests the loaded values, and the effect of the environment.

use std::path::Path;
use std::time::Duration;

use penstock_api::units::ByteSize;
use penstock_api::{Capabilities, Engine, Operation, Operations, TokenEstimate};
use proptest::prelude::*;

use super::{load, load_more, load_with, refusal};
use crate::{
    AliasTargets, AuthorizationPolicy, Config, Cors, Environment, HealthConfig, ServerConfig,
    Strategy,
};

#[test]
fn bare_list_of_urls_is_enough() {
    let config = load("- http://a:8000\n- http://b/v1\n").unwrap();
    let names: Vec<&str> = config.backends.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a:8000", "b:80"]);
    assert_eq!(config.server, ServerConfig::default());
    assert!(config.warnings.is_empty());
}

#[test]
fn plain_names_stay_unique() {
    let config =
        load("backends: [http://a:1/x, http://a:1/y, {name: c, url: 'http://c'}]").unwrap();
    let names: Vec<&str> = config.backends.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a:1", "a:1-2", "c"]);
}

#[test]
fn missing_backends_fail_and_an_empty_list_loads() {
    for text in ["", "  \n", "# nothing\n", "routing: {}\n", "backends:\n", "---\n"] {
        let error = load(text).unwrap_err();
        assert!(error.contains("no backends"), "{text:?}: {error}");
    }
    assert!(load("backends: []").unwrap().backends.is_empty());
}

#[test]
fn defaults_match_the_design() {
    let config = load_more("").unwrap();
    assert_eq!(config.routing.strategy, Strategy::Auto);
    assert_eq!(config.routing.max_retries, 2);
    let weights = config.routing.weights;
    assert_eq!((weights.priority, weights.load, weights.latency), (50, 30, 20));
    assert_eq!(config.routing.token_estimate, TokenEstimate::Auto);
    assert_eq!(config.limits.max_body_size, ByteSize::mib(32));
    assert_eq!(config.limits.buffered_bodies, ByteSize(1 << 30));
    assert_eq!(config.limits.buffered_responses, ByteSize(1 << 30));
    // The pools of reqwest, hyper and Go reuse connections for up to 90 s. The client must be the
    // one that closes: otherwise its next request may meet a connection that is just being closed.
    assert!(config.server.keep_alive > Duration::from_secs(90));
    assert_eq!(config.timeouts.total, None);
    assert_eq!(config.admin.listen, Some("127.0.0.1:9090".parse().unwrap()));
    assert_eq!(config.backends[0].priority, 50);
    assert_eq!(config.backends[0].engine, Engine::Auto);
}

#[test]
fn every_kind_of_value_is_read() {
    let config = load(
        r#"
server: { listen: "127.0.0.1:1, [::1]:2", threads: 3, cors: [https://a.example] }
limits: { min_body_rate: 2KiB/s }
admin: { listen: off }
routing:
  strategy: Round-Robin
  aliases: { 1.10: other }
timeouts: { total: 1h, connect: 250ms }
models: { "m:1": { timeouts: { total: none, response: 5s } } }
backends:
  - url: HTTPS://Host/base/v1/
    engine: VLLM
    max_in_flight: 4
    models:
      - plain
      - 1.10
      - { id: m, capabilities: [], operations: [chat, images] }
"#,
    )
    .unwrap();
    assert_eq!(config.server.listen.len(), 2);
    assert_eq!(config.server.threads, 3);
    assert_eq!(config.server.cors, Cors::Origins(vec!["https://a.example".to_owned()]));
    assert_eq!(config.limits.min_body_rate, ByteSize::kib(2));
    assert_eq!(config.admin.listen, None);
    assert_eq!(config.routing.strategy, Strategy::RoundRobin);
    assert_eq!(config.routing.aliases["1.10"], AliasTargets::from("other"));
    assert_eq!(config.timeouts.total, Some(Duration::from_secs(3600)));
    let timeouts = config.timeouts.with(&config.models.get("m:1").unwrap().timeouts);
    assert_eq!((timeouts.total, timeouts.response), (None, Duration::from_secs(5)));
    let backend = &config.backends[0];
    assert_eq!(backend.url.to_string(), "https://host:443/base");
    assert_eq!(backend.engine, Engine::Vllm);
    let models = backend.models.as_ref().unwrap();
    assert_eq!(models[1].id, "1.10", "a name that looks like a number stays as written");
    assert_eq!(models[0].capabilities, None, "undeclared differs from none");
    assert_eq!(models[2].capabilities, Some(Capabilities::NONE));
    let operations = Operations::from_name("images").unwrap().with(Operation::Chat);
    assert_eq!(models[2].operations, Some(operations));
}

#[test]
fn empty_values_leave_the_default() {
    let config = load_more("routing:\n  strategy:\n  max_retries: null\nhealth: ~\n").unwrap();
    assert_eq!(config.routing.max_retries, 2);
    assert_eq!(config.health, HealthConfig::default());
}

#[test]
fn backend_health_starts_from_the_global_one() {
    let config = load(
        r"
backends: [{url: http://a, health: {rise: 7, breaker: {open: 3s}}}, http://b]
health: {fall: 9, breaker: {window: 8s}}
",
    )
    .unwrap();
    let first = &config.backends[0].health;
    assert_eq!((first.rise, first.fall), (7, 9));
    assert_eq!(first.breaker.open, Duration::from_secs(3));
    assert_eq!(first.breaker.window, Duration::from_secs(8));
    assert_eq!(config.backends[1].health, config.health);
}

#[test]
fn authorization_follows_the_keys() {
    let policies = |text: &str| -> Vec<AuthorizationPolicy> {
        load(text).unwrap().backends.iter().map(|one| one.authorization).collect()
    };
    let backends = "backends: [http://a, {url: http://b, api_key: k}, {url: http://c, api_key: k, authorization: pass}]";
    use AuthorizationPolicy::{Pass, Replace, Strip};
    assert_eq!(policies(backends), [Pass, Replace, Pass]);
    let with_keys = format!("{backends}\nauth: {{keys: [{{name: t, key: s}}]}}");
    assert_eq!(policies(&with_keys), [Strip, Replace, Pass]);
}

#[test]
fn anchors_and_merges_work() {
    let config = load(
        "backends:\n- &base { url: http://a:1, name: a, priority: 3 }\n- <<: *base\n  name: b\n  url: http://b:1\n",
    )
    .unwrap();
    assert_eq!(config.backends[1].priority, 3);
    assert_eq!(config.backends[1].name, "b");
}

#[test]
fn variables_fill_values_and_only_values() {
    let text = "backends: [{url: 'http://${HOST}:${PORT:-81}', max_in_flight: \"${N}\", api_key: '${KEY}'}]";
    let config = load_with(text, &["HOST=h", "N=3", "KEY=a: [b, {c"]).unwrap();
    let backend = &config.backends[0];
    assert_eq!(backend.url.authority(), "h:81");
    assert_eq!(backend.max_in_flight, Some(3));
    assert_eq!(backend.api_key.as_ref().unwrap().reveal(), "a: [b, {c");
    let error = load("backends:\n  - url: http://${HOST}\n").unwrap_err();
    assert!(
        error.starts_with("penstock.yaml:2:10: the environment variable 'HOST' is not set"),
        "{error}"
    );
}

#[test]
fn variables_override_the_file() {
    let text = "backends: [http://a]\nrouting: {strategy: smart, max_retries: 5}";
    let config = load_with(
        text,
        &[
            "PENSTOCK_ROUTING_STRATEGY=round_robin",
            "PENSTOCK_ROUTING_MAX_RETRIES=3",
            "PENSTOCK_ROUTING_RETRY_BUDGET_PER_SECOND=4",
            "PENSTOCK_SERVER_LISTEN=127.0.0.1:1,127.0.0.1:2",
            "PENSTOCK_CONFIG=elsewhere.yaml",
            "PENSTOCK_ADMIN_SERVICE_HOST=10.0.0.1",
            "PENSTOCK_ADMIN_PORT_9090_TCP=tcp://10.0.0.1:9090",
        ],
    )
    .unwrap();
    assert_eq!(config.routing.strategy, Strategy::RoundRobin);
    assert_eq!(config.routing.max_retries, 3);
    assert_eq!(config.routing.retry_budget.per_second, 4);
    assert_eq!(config.server.listen.len(), 2);
}

#[test]
fn bad_and_unknown_variables_are_named() {
    let text = "- http://a";
    let error = load_with(text, &["PENSTOCK_ROUTING_MAX_RETRIES=many"]).unwrap_err();
    assert_eq!(
        error,
        "PENSTOCK_ROUTING_MAX_RETRIES: 'routing.max_retries' is 'many': expected a whole number, 0 or more"
    );
    let error = load_with(text, &["PENSTOCK_ROUTING_MAX_RETRY=3"]).unwrap_err();
    assert!(error.contains("did you mean 'PENSTOCK_ROUTING_MAX_RETRIES'?"), "{error}");
    let error = load_with(text, &["PENSTOCK_CONFG=x.yaml"]).unwrap_err();
    assert!(error.contains("did you mean 'PENSTOCK_CONFIG'?"), "{error}");
    let error = load_with(text, &["PENSTOCK_PORT=8080"]).unwrap_err();
    assert_eq!(error, "PENSTOCK_PORT: unknown environment variable: no such setting");
    for (variable, setting) in [
        ("PENSTOCK_AUTH_KEYS=[]", "auth.keys"),
        ("PENSTOCK_AUTH_KEYS_0_KEY=x", "auth.keys"),
        ("PENSTOCK_BACKENDS=http://b", "backends"),
        ("PENSTOCK_ROUTING_ALIASES={}", "routing.aliases"),
    ] {
        let error = load_with(text, &[variable]).unwrap_err();
        let expected = format!("'{setting}' can be set only in the configuration file");
        assert!(error.contains(&expected), "{variable}: {error}");
    }
}

#[test]
fn variables_that_the_file_mentions_may_have_any_name() {
    let text = "auth: {keys: [{name: a, key: '${PENSTOCK_TEAM_A}'}]}\nbackends: [http://a]";
    let config = load_with(text, &["PENSTOCK_TEAM_A=sk-1"]).unwrap();
    assert_eq!(config.auth.keys[0].key.reveal(), "sk-1");
    let error = load_with(text, &["PENSTOCK_TEAM_A=sk-1", "PENSTOCK_TEAM_B=sk-2"]).unwrap_err();
    assert!(error.starts_with("PENSTOCK_TEAM_B: unknown environment variable"), "{error}");
}

#[test]
fn flags_override_variables_and_file() {
    let folder = std::env::temp_dir().join(format!("penstock-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("penstock.yaml");
    std::fs::write(
        &file,
        "backends: [{url: http://a, api_key_file: key}]\nrouting: {strategy: smart}",
    )
    .unwrap();
    std::fs::write(folder.join("key"), "  sk-file\n").unwrap();
    let environment: Environment =
        [("PENSTOCK_ROUTING_STRATEGY".to_owned(), "random".to_owned())].into_iter().collect();
    let flag = |path: &str, value: &str| vec![(path.to_owned(), value.to_owned())];
    let config = Config::load(&file, &environment, &[]).unwrap();
    assert_eq!(config.routing.strategy, Strategy::Random);
    assert_eq!(
        config.backends[0].api_key.as_ref().unwrap().reveal(),
        "sk-file",
        "paths start at the folder of the file, and the text is trimmed"
    );
    let config =
        Config::load(&file, &environment, &flag("routing.strategy", "priority_only")).unwrap();
    assert_eq!(config.routing.strategy, Strategy::PriorityOnly);
    let error = Config::load(&file, &environment, &flag("routing.strateggy", "x")).unwrap_err();
    assert!(error.to_string().contains("did you mean 'routing.strategy'?"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
    let error = Config::load(&file, &environment, &[]).unwrap_err();
    assert!(error.to_string().starts_with("cannot read "), "{error}");
}

#[test]
fn alias_bombs_and_deep_nests_are_refused() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let before = vec![format!("*a{}", level - 1); 10].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    assert!(load(&bomb).is_err());
    assert!(load(&"[".repeat(100_000)).is_err());
    assert!(load(&"- ".repeat(50_000)).is_err());
}

#[test]
fn windows_byte_order_mark_and_line_ends_are_accepted() {
    let config =
        load("\u{feff}backends:\r\n- http://a\r\nrouting:\r\n  max_retries: 7\r\n").unwrap();
    assert_eq!(config.routing.max_retries, 7);
}

#[test]
fn syntax_errors_have_positions() {
    let error = refusal("routing: {\n  strategy: x ]");
    assert_eq!(error, "penstock.yaml:2:10: mismatched bracket '{' closed by ']'");
    assert!(refusal("routing: {}\nrouting: {}").contains("penstock.yaml:3:1"), "keys given twice");
}

/// Asserts that `text` loads and its dump loads as the same, or that each error has a position.
fn assert_loads_or_is_refused(text: &str) -> Result<(), TestCaseError> {
    let mut config = match load(text) {
        Ok(config) => config,
        Err(error) => {
            prop_assert!(!error.is_empty());
            for line in error.lines() {
                prop_assert!(has_position(line, text), "no position in {line:?} of {text:?}");
            }
            return Ok(());
        }
    };
    let dump = config.to_masked_yaml();
    let mut reloaded =
        load(&dump).map_err(|error| TestCaseError::fail(format!("{error}\n{dump}")))?;
    // Warnings have the positions of their file, and a dump has the settings that were warned of:
    // the strategy in place of one that does not exist.
    if !config.warnings.is_empty() {
        config.routing.strategy_reason = reloaded.routing.strategy_reason;
    }
    config.warnings.clear();
    reloaded.warnings.clear();
    prop_assert_eq!(reloaded, config);
    Ok(())
}

/// Returns whether an error starts with a line and a column that `text` has.
fn has_position(error: &str, text: &str) -> bool {
    let Some(position) = error.strip_prefix("penstock.yaml:") else { return false };
    let mut numbers = position.split(':').map(str::parse::<usize>);
    // The end of the text is a position, too, and YAML has more line ends than `lines`.
    let range = 1..=text.chars().count() + 1;
    (0..2).all(|_| matches!(numbers.next(), Some(Ok(number)) if range.contains(&number)))
}

proptest! {
    #[test]
    fn any_text_loads_or_is_refused_with_positions(text in ".{0,200}") {
        assert_loads_or_is_refused(&text)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn yaml_like_text_loads_or_is_refused_with_positions(
        text in "(backends|routing|server|weights|url|a|&a|[*]a|<<|[{}]|\\[|\\]|:|,|- |\n|\n  | |5s|[0-9]|\"|'|[$][{]A|!!int|\\|){0,60}"
    ) {
        assert_loads_or_is_refused(&text)?;
        assert_loads_or_is_refused(&format!("backends: [http://a]\n{text}"))?;
    }

    #[test]
    fn settings_load_or_are_refused_with_positions(
        sections in prop::collection::btree_map(
            "routing|server|limits|timeouts|health|queue|telemetry|models|usage",
            prop::collection::btree_map(
                "strategy|max_retries|threads|total|connect|size|timeout|interval|rise|enabled|m",
                "smart|weighted|random|3|0|-1|5s|none|true|1h|32MiB|~|[$][{]A:-2[}]|[{][}]",
                0..3,
            ),
            0..4,
        )
    ) {
        let mut text = String::from("backends: [http://a]\n");
        for (section, settings) in &sections {
            let settings: Vec<String> =
                settings.iter().map(|(key, value)| format!("{key}: {value}")).collect();
            text += &format!("{section}: {{ {} }}\n", settings.join(", "));
        }
        assert_loads_or_is_refused(&text)?;
    }
}

#[test]
fn relative_base_is_the_folder_given() {
    let result = Config::parse(
        "backends: [{url: http://a, api_key_file: none/such}]",
        "x",
        Path::new("conf"),
        &Environment::default(),
    );
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("x:1:42: 'backends[0].api_key_file': cannot read conf"), "{error}");
}
