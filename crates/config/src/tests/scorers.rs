//! Tests the settings of the weighted strategy.

use penstock_scoring::{Picker, ScorerSpec, Value};

use super::*;
use crate::{Strategy, parse_document};

fn routing(text: &str) -> Config {
    load(&format!("backends: [http://a]\nrouting: {text}"))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    load(&format!("backends: [http://a]\nrouting: {text}")).unwrap_err()
}

#[test]
fn scorers_are_a_list_or_one_line() {
    let listed = routing(
        "{ strategy: weighted, scorers: [{ name: prefix_affinity, weight: 3, block_size: 32 }, { name: queue-depth, weight: 1 }] }",
    );
    let mut prefix = ScorerSpec::new("prefix-affinity", 3.0);
    prefix.params.set("block-size", Value::Number(32.0));
    assert_eq!(listed.routing.scorers, [prefix, ScorerSpec::new("queue-depth", 1.0)]);
    let line = routing("{ strategy: Weighted, scorers: \"queue-depth:2, kv-utilization:1\" }");
    let expected = [ScorerSpec::new("queue-depth", 2.0), ScorerSpec::new("kv-utilization", 1.0)];
    assert_eq!(line.routing.scorers, expected);
    for config in [listed, line] {
        let back = load(&config.to_masked_yaml()).unwrap();
        assert_eq!(back.routing.scorer_specs().len(), config.routing.scorer_specs().len());
        assert!(config.warnings.is_empty());
    }
}

#[test]
fn default_scorers_are_those_of_the_balanced_preset() {
    let names = |config: &Config| -> Vec<String> {
        config
            .routing
            .scorer_specs()
            .into_iter()
            .map(|one| format!("{}:{}", one.name, one.weight))
            .collect()
    };
    let plain = routing("{ strategy: weighted }");
    let balanced =
        ["new-prefill-batch:3", "prefix-affinity:2", "kv-utilization:4", "slo-headroom:8"];
    assert_eq!(names(&plain), balanced);
    let llm_d = routing("{ strategy: weighted, preset: llm-d }");
    assert_eq!(names(&llm_d), ["prefix-affinity:3", "queue-depth:2", "kv-utilization:2"]);
    assert_eq!(names(&routing("{ strategy: weighted, preset: LMetric }")), ["new-prefill-batch:1"]);
    let slo = ["slo-headroom:3", "prefix-affinity:1", "kv-utilization:1"];
    assert_eq!(names(&routing("{ strategy: slo }")), slo);
    for packs in ["least", "knee"] {
        let packing = routing(&format!("{{ strategy: slo, prefer: {packs} }}"));
        assert_eq!(names(&packing), ["slo-headroom:3"], "nothing spreads what it packs");
    }
}

#[test]
fn pickers_are_named_or_have_a_temperature() {
    let picker =
        |text: &str| routing(&format!("{{ strategy: weighted, picker: {text} }}")).routing.picker;
    assert_eq!(picker("power_of_two"), Picker::PowerOfTwo);
    assert_eq!(picker("softmax"), Picker::Softmax { temperature: 0.1 });
    assert_eq!(picker("{ name: softmax, temperature: 0.5 }"), Picker::Softmax { temperature: 0.5 });
}

#[test]
fn invalid_scorers_are_refused_with_position() {
    for (text, expected) in [
        (
            "{ scorers: [{ name: queue-dept, weight: 1 }] }",
            "unknown scorer 'queue-dept'; there is prefix-affinity",
        ),
        ("{ scorers: [{ name: queue-depth, weight: 0 }] }", "above 0, not 0"),
        (
            "{ scorers: [{ name: queue-depth, weight: much }] }",
            "'routing.scorers[0].weight' is 'much'",
        ),
        ("{ scorers: [{ weight: 1 }] }", "missing key 'name'"),
        ("{ scorers: [{ name: queue-depth }] }", "missing key 'weight' in 'routing.scorers[0]'"),
        ("{ scorers: [{ name: Queue-Depth, weight: 1 }] }", "unknown scorer 'Queue-Depth'"),
        ("{ scorers: queue-depth }", "scorer 'queue-depth' has no weight; write queue-depth:1"),
        (
            "{ scorers: [{ name: queue-depth, weight: 1 }, { name: queue_depth, weight: 1 }] }",
            "listed twice",
        ),
        (
            "{ scorers: [{ name: queue-depth, weight: 1, depth: 3 }] }",
            "no parameters, and so no 'depth'",
        ),
        ("{ scorers: [{ name: prefix-affinity, weight: 1, block-size: 300 }] }", "from 1 to 256"),
        ("{ scorers: { queue-depth: 1 } }", "expected a list of scorers"),
        ("{ preset: best }", "unknown value 'best'"),
        ("{ preset: llm-d, scorers: \"queue-depth:1\" }", "not both"),
        ("{ picker: first }", "unknown picker 'first'"),
        ("{ picker: { name: max-score, temperature: 1 } }", "belongs to the picker softmax"),
        (
            "{ picker: { name: softmax, temprature: 3 } }",
            "unknown key 'temprature' in 'routing.picker': did you mean 'temperature'?",
        ),
        (
            "{ shadow: { strategy: weighted, picker: { name: softmax, x: 3 } } }",
            "unknown key 'x' in 'routing.shadow.picker'",
        ),
        (
            "{ scorers: [{ name: session-affinity, weight: 1, header: x-user, cookie: id }] }",
            "'cookie' must be left out where 'header' says",
        ),
        (
            "{ scorers: [{ name: session-affinity, weight: 1, header: 'a b:' }] }",
            "'header' must be the name of a header",
        ),
        ("{ scorers: [{ name: prefix-affinity, weight: 1, block-size: 0 }] }", "from 1 to 256"),
        ("{ cache_weight: 0.5 }", "unknown key 'cache_weight' in 'routing'"),
        ("{ load-weight: 0.5 }", "unknown key 'load-weight' in 'routing'"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected) && error.contains("penstock.yaml:2:"), "{text}: {error}");
    }
}

#[test]
fn settings_without_effect_warn() {
    let warnings = |text: &str| {
        routing(text).warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(warnings("{ preset: llm-d }"), "", "it means the strategy weighted");
    let idle = warnings("{ strategy: smart, preset: llm-d }");
    assert!(
        idle.contains("'routing.preset' has no effect: 'routing.strategy' is 'smart'"),
        "{idle}"
    );
    let busiest = warnings("{ strategy: weighted, preset: always-busiest }");
    assert!(busiest.contains("for tests only"), "{busiest}");
    let listed = warnings("{ strategy: weighted, scorers: [{ name: busiest, weight: 3 }] }");
    assert!(listed.contains("'routing.scorers': it picks the worst backend"), "{listed}");
    assert_eq!(warnings("{ strategy: weighted, scorers: \"queue-depth:1\" }"), "");
}

/// Returns the routing of `text` under flags and the environment: strategy, scorers, and problems.
fn built(text: &str, flags: &[(&str, &str)], variables: &[(&str, &str)]) -> Config {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let text = format!("backends: [http://a]\nrouting: {text}");
    let root = parse_document(&text, &"penstock.yaml".into()).unwrap();
    let environment: Environment = variables.iter().map(owned).collect();
    let flags: Vec<_> = flags.iter().map(owned).collect();
    Config::build(root, Path::new(""), &environment, &flags).unwrap()
}

fn settled(text: &str, flags: &[(&str, &str)], variables: &[(&str, &str)]) -> [String; 3] {
    let config = built(text, flags, variables);
    let scorers = config.routing.scorer_specs().into_iter().map(|one| one.name);
    let warnings = config.warnings.iter().map(ToString::to_string);
    let strategy = config.routing.strategy.name().to_owned();
    [strategy, scorers.collect::<Vec<_>>().join(","), warnings.collect::<Vec<_>>().join("\n")]
}

#[test]
fn scorers_on_the_command_line_select_weighted() {
    let flag = ("routing.scorers", "load_balance:1");
    let weighted = Strategy::Weighted.name();
    for text in ["{}", "{ strategy: weighted }", "{ strategy: weighted, preset: lmetric }"] {
        assert_eq!(settled(text, &[flag], &[]), [weighted, "load-balance", ""], "{text}");
    }
    let warning = "command line: scorers select the strategy 'weighted' instead of 'random'";
    for (text, variables) in [
        ("{ strategy: random }", &[][..]),
        ("{ scorers: \"queue-depth:1\" }", &[("PENSTOCK_ROUTING_STRATEGY", "random")][..]),
    ] {
        assert_eq!(settled(text, &[flag], variables), [weighted, "load-balance", warning]);
    }
    let [strategy, _, odd] = settled("{}", &[("routing.strategy", "random"), flag], &[]);
    assert_eq!(strategy, "random", "it is named on the command line as well");
    assert!(odd.contains("'routing.scorers' has no effect"), "{odd}");
    let in_environment = [("PENSTOCK_ROUTING_SCORERS", "load-balance:1")];
    let [strategy, _, odd] = settled("{ strategy: random }", &[], &in_environment);
    assert_eq!(strategy, "random", "the environment is no command line");
    assert!(odd.contains("'routing.scorers' has no effect"), "{odd}");
}

#[test]
fn scorers_and_preset_replace_each_other() {
    let preset = [("routing.strategy", "weighted"), ("routing.preset", "lmetric")];
    let text = "{ strategy: weighted, scorers: \"queue-depth:1\" }";
    assert_eq!(settled(text, &preset, &[]), ["weighted", "new-prefill-batch", ""]);
    let text = "{ strategy: weighted, preset: lmetric }";
    let variables = [("PENSTOCK_ROUTING_SCORERS", "load-balance:1")];
    assert_eq!(settled(text, &[], &variables), ["weighted", "load-balance", ""]);
}

#[test]
fn strategy_has_the_setting_that_selects_it_as_its_reason() {
    let (preset, scorers) = (Some("routing.preset is set"), Some("routing.scorers is set"));
    let flag = ("routing.scorers", "load-balance:1");
    let variable = ("PENSTOCK_ROUTING_PRESET", "lmetric");
    for (text, flags, variables, expected) in [
        ("{ preset: lmetric }", &[][..], &[][..], preset),
        ("{ scorers: \"queue-depth:1\" }", &[], &[], scorers),
        ("{ scorers: \"queue-depth:1\" }", &[], &[variable], preset),
        ("{ preset: lmetric }", &[flag], &[], scorers),
        ("{ strategy: random }", &[flag], &[], scorers),
        ("{ weights: { load: 30 } }", &[], &[], Some("only routing.weights is set")),
        ("{ weights: { load: 30 }, preset: lmetric }", &[], &[], preset),
        ("{ strategy: weighted, preset: lmetric }", &[], &[], None),
        ("{ scorers: [] }", &[], &[], None),
        ("{ strategy: smrt }", &[], &[], Some("routing.strategy names none")),
    ] {
        let routing = built(text, flags, variables).routing;
        assert_eq!(routing.strategy_reason, expected, "{text} {flags:?} {variables:?}");
    }
    let shadowed = built("{ preset: lmetric, shadow: { strategy: smart } }", &[], &[]).routing;
    let tried_out = shadowed.tried_out(shadowed.shadow.as_ref().unwrap());
    assert_eq!(tried_out.strategy_reason, None, "a shadow names its own");
}
