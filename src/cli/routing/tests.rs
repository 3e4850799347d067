use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    routing: RoutingArgs,
}

fn settings(flags: &[&str]) -> Result<Vec<(String, String)>, String> {
    let line = Line::try_parse_from([&["x"], flags].concat()).unwrap();
    line.routing.settings().map_err(|error| error.to_string())
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn policies_are_strategies_or_presets() {
    assert_eq!(settings(&[]).unwrap(), []);
    assert_eq!(
        settings(&["--routing-policy", "round-robin"]).unwrap(),
        pairs(&[("routing.strategy", "round_robin")])
    );
    assert_eq!(
        settings(&["--routing-policy", "least_loaded"]).unwrap(),
        pairs(&[("routing.strategy", "weighted"), ("routing.preset", "least-loaded")])
    );
    let flags =
        ["--routing-policy", "weighted", "--routing-scorers", "prefix-affinity:3,queue-depth:2"];
    assert_eq!(
        settings(&flags).unwrap(),
        pairs(&[
            ("routing.strategy", "weighted"),
            ("routing.scorers", "prefix-affinity:3,queue-depth:2")
        ])
    );
    let error = settings(&["--routing-policy", "best"]).unwrap_err();
    assert!(error.starts_with("--routing-policy: unknown 'best'"), "{error}");
    assert!(error.contains("llm-d"), "{error}");
    let both = ["--routing-policy", "lmetric", "--routing-scorers", "queue-depth:1"];
    let error = settings(&both).unwrap_err();
    assert!(error.contains("the preset lmetric has its own"), "{error}");
}

#[test]
fn scorers_are_checked_before_anything_is_read() {
    let scorers = |flags: &[&str]| {
        let line = Line::try_parse_from([&["x"], flags].concat()).unwrap();
        line.routing.scorers().map_err(|error| error.to_string())
    };
    assert_eq!(scorers(&[]).unwrap(), None);
    let specs = scorers(&["--routing-scorers", "queue-depth:2"]).unwrap().unwrap();
    assert_eq!(specs, [ScorerSpec::new("queue-depth", 2.0)]);
    for (flags, expected) in [
        (&["--routing-scorers", "nope:1"][..], "--routing-scorers: unknown scorer 'nope'"),
        (&["--routing-scorers", "queue-depth:0"], "--routing-scorers: the weight of"),
        (&["--routing-scorers", "queue-depth:1,queue_depth:1"], "is listed twice"),
        (
            &["--routing-scorers", "queue-depth:1", "--routing-policy", "round-robin"],
            "--routing-policy: round_robin has no scorers",
        ),
    ] {
        let error = scorers(flags).unwrap_err();
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
}

#[test]
fn flags_override_the_policy_file() {
    let folder = std::env::temp_dir().join(format!("penstock-policy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("policy.yaml");
    let with = |text: &str, flags: &[&str]| {
        std::fs::write(&path, text).unwrap();
        settings(&[&["--policy-config", path.to_str().unwrap()], flags].concat())
    };
    let text = "routing-policy: weighted\nrouting-scorers:\n  - name: queue-depth\n    weight: 2\n";
    let expected = [("routing.strategy", "weighted"), ("routing.scorers", "queue-depth:2")];
    assert_eq!(with(text, &[]).unwrap(), pairs(&expected));
    let load = ["--routing-scorers", "load-balance:1"];
    let preset = ["--routing-policy", "lmetric"];
    let chosen = [("routing.strategy", "weighted"), ("routing.preset", "lmetric")];
    let expected = [("routing.strategy", "weighted"), ("routing.scorers", "load-balance:1")];
    assert_eq!(with(text, &load).unwrap(), pairs(&expected));
    for policy in ["routing-policy: llm-d", "routing-policy: round-robin"] {
        assert_eq!(with(policy, &load).unwrap(), pairs(&expected[1..]), "{policy}");
    }
    assert_eq!(with(text, &preset).unwrap(), pairs(&chosen));
    let turns = pairs(&[("routing.strategy", "round_robin")]);
    assert_eq!(with(text, &["--routing-policy", "round-robin"]).unwrap(), turns);
    for (text, expected) in [
        ("cache_weight: 0.5", "cache_weight"),
        ("routing-polcy: weighted", "routing-polcy"),
        ("routing-scorers: [{name: x, wait: 1}]", "wait"),
        ("routing-policy: best", "policy.yaml: routing-policy: unknown 'best'"),
        ("routing-scorers: []", "policy.yaml: routing-scorers: no scorers are listed"),
        (
            "routing-scorers: [{name: 'queue-depth:1,kv-utilization', weight: 1}]",
            "routing-scorers: unknown scorer 'queue-depth:1,kv-utilization'",
        ),
        ("routing-scorers: [{name: queue-depth, weight: -2}]", "above 0, not -2"),
        (
            "{routing-policy: lmetric, routing-scorers: [{name: queue-depth, weight: 2}]}",
            "policy.yaml: routing-scorers: the preset lmetric has its own",
        ),
        ("{routing-policy: lmetric", "policy.yaml:1:"),
    ] {
        let error = with(text, &[]).unwrap_err();
        assert!(error.contains(expected) && error.contains("policy.yaml"), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
