//! Tests the settings of the shadow strategy.

use penstock_scoring::ScorerSpec;

use super::*;
use crate::{Changes, Strategy, Weights};

fn refused(shadow: &str) -> String {
    load_more(&format!("routing: {{ shadow: {shadow} }}")).unwrap_err()
}

fn shadow(text: &str) -> Config {
    load_more(&format!("routing: {{ shadow: {text} }}")).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn shadow_takes_the_keys_of_routing() {
    let config = load_more(
        "routing: { strategy: random, aliases: { x: m }, reserve_output: true, shadow: {\
           strategy: weighted, scorers: \"queue-depth:2\", sample: 0.25 } }",
    )
    .unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let shadow = config.routing.shadow.clone().unwrap();
    assert_eq!(shadow.sample, 0.25);
    let tried_out = config.routing.tried_out(&shadow);
    assert_eq!(tried_out.strategy, Strategy::Weighted);
    assert_eq!(tried_out.scorer_specs(), [ScorerSpec::new("queue-depth", 2.0)]);
    assert_eq!((tried_out.weights, tried_out.reserve_output), (Weights::default(), true));
    assert!(tried_out.aliases.is_empty(), "the model is settled by then");
    let back = load(&config.to_masked_yaml()).unwrap();
    assert_eq!(back.routing.shadow, config.routing.shadow);
    let without = load_more("").unwrap();
    assert_eq!(load(&without.to_masked_yaml()).unwrap().routing.shadow, None);
    let changes = Changes::between(&without, &config);
    let names: Vec<&str> = changes.settings.iter().map(|one| one.setting.as_str()).collect();
    assert!(names.contains(&"routing.shadow"), "{names:?}");
    assert!(changes.needing_restart().is_empty());
}

#[test]
fn errors_name_the_path() {
    for (text, expected) in [
        ("{}", "missing key 'strategy' in 'routing.shadow'"),
        ("weighted", "'routing.shadow' is a single value: expected a mapping"),
        ("{ strategy: smart, aliases: {} }", "unknown key 'aliases' in 'routing.shadow'"),
        ("{ strategy: weighted, preset: best }", "'routing.shadow.preset'"),
        ("{ strategy: weighted, scorers: \"queue-dept\" }", "'routing.shadow.scorers'"),
        ("{ strategy: weighted, sample: 2 }", "'routing.shadow.sample' is '2'"),
        (
            "{ strategy: smart, weights: { load: 31 } }",
            "'routing.shadow.weights' must sum to 100, not 101",
        ),
        (
            "{ strategy: weighted, preset: llm-d, scorers: \"queue-depth:1\" }",
            "either 'routing.shadow.scorers' or 'routing.shadow.preset'",
        ),
        ("{ strategy: weighted, queue: 9 }", "unknown key 'queue' in 'routing.shadow'"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected) && error.contains("penstock.yaml:2:"), "{text}: {error}");
    }
}

#[test]
fn warnings_name_the_path() {
    for (text, expected) in [
        ("{ strategy: fastest }", "UNKNOWN STRATEGY 'fastest' in 'routing.shadow.strategy'"),
        ("{ strategy: random, preset: llm-d }", "'routing.shadow.preset' has no effect"),
        ("{ strategy: weighted, preset: always-busiest }", "for tests only"),
    ] {
        let warnings: Vec<String> = shadow(text).warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.iter().any(|one| one.contains(expected)), "{text}: {warnings:?}");
    }
}

#[test]
fn weighted_shadow_enables_telemetry() {
    for (strategy, expected) in [("weighted", true), ("round_robin", false)] {
        let text = format!("{{ strategy: {strategy} }}");
        let mut config = shadow(&text);
        config.routing.strategy = Strategy::Smart;
        assert_eq!(config.wants_telemetry(), expected);
    }
}
