//! An operator sees what policies do: tiers and quality on live traffic, errors in the words of
//! each client, and the same reasons in headers, logs, metrics, explanations, captures and checks.

use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Gate, MockSpec, Pace};
use serde_json::{Value, json};

use super::policies::{PRIVATE, Zones, saw_nothing};
use crate::support::client::{chat, request, streaming_chat};
use crate::support::command::{Ran, file, run};
use crate::support::engines::{backend, start};
use crate::support::fleet::{CHAT, FAULTS_FORGOTTEN, Fleet, SOON, Setup, begin, find_metric};
use crate::support::penstock::{Penstock, scratch};
use crate::support::{block_on, eventually};

const JSON: (&str, &str) = ("content-type", "application/json");

fn wait_metric(penstock: &Penstock, name: &str, value: f64) {
    eventually(&format!("{name} is {value}"), SOON, || find_metric(penstock, name) == Some(value));
}

fn explained(penstock: &Penstock, body: &Value, headers: &Value, query: &str) -> String {
    let body = json!({"path": CHAT, "headers": headers, "body": body.to_string()}).to_string();
    let path = format!("/explain{query}");
    request(penstock.admin, "POST", &path, &[JSON], body.as_bytes()).text()
}

#[test]
fn request_may_add_a_policy_and_not_remove_one() {
    let policies = "policies:\n  - { name: private, models: [m], zones: [home] }\n  \
                    - { name: open, models: [none] }\n  - { name: away, models: [none], zones: [away] }\n";
    let zones = Zones::start(&format!("routing: {{ strategy: priority_only }}\n{policies}"));
    let wish = |name| [("x-penstock-policy", name)];
    for name in ["open", "private", " private "] {
        assert_eq!(zones.chat("m", &wish(name)).status, 200, "{name}");
        zones.far_saw_nothing(name);
    }
    let both = zones.chat("m", &wish("away"));
    assert_eq!(both.error_code(), "no_backend_in_zone", "both hold: {}", both.text());
    assert_eq!(zones.chat("n", &wish("private")).status, 200);
    for wrong in ["none", "Private", "private, open", "*", "\u{a0}", ""] {
        let refused = zones.chat("m", &wish(wrong));
        assert_eq!(refused.status, 400, "{wrong:?}: {}", refused.text());
    }
    let twice = [wish("private")[0], wish("open")[0]];
    assert_eq!(zones.chat("n", &twice).status, 400);
    let unknown = zones.send(
        "/v1/messages",
        &wish("none"),
        &json!({"model": "m", "max_tokens": 1, "messages": []}),
    );
    let error = unknown.json();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("invalid_request_error"))
    );
    assert!(unknown.text().contains("x-penstock-policy"), "{}", unknown.text());
    let unknown = zones.send("/api/chat", &wish("none"), &json!({"model": "m", "messages": []}));
    assert!(unknown.json()["error"].as_str().unwrap().contains("no such policy"));
    zones.far_saw_nothing("all of them");
    assert_eq!(zones.chat("n", &[]).status, 200);
    assert_eq!(zones.far.received().len(), 1);
    let of_none = Zones::start("");
    assert_eq!(of_none.chat("m", &wish("private")).status, 400, "without policies");
}

#[test]
fn error_is_in_the_words_of_each_client() {
    let zones = Zones::start(
        "routing: { expose_decision: true }\npolicies: [{ name: mars, models: [m], zones: [mars] }]\n",
    );
    let words = "Requests for model 'm' may only reach the zone mars, where no backend serves it (2 in other zones)";
    for (path, message) in [
        (CHAT, "/error/message"),
        ("/v1/responses", "/error/message"),
        ("/v1/messages", "/error/message"),
        ("/api/chat", "/error"),
    ] {
        let body = json!({"model": "m", "max_tokens": 9, "input": "x", "messages": [{"role": "user", "content": "x"}]});
        let response = zones.send(path, &[], &body);
        assert_eq!(response.status, 503, "{path}");
        assert_eq!(response.json().pointer(message).unwrap(), words, "{path}: {}", response.text());
        assert_eq!(response.header("x-should-retry"), Some("false"), "{path}");
        assert_eq!(response.header("retry-after"), None, "{path}");
        assert_eq!(response.header("x-penstock-decision"), Some("none;rejected=zone:2"), "{path}");
    }
    assert_eq!(zones.chat("m", &[]).error_code(), "no_backend_in_zone");
    let unknown = zones.chat("nothing", &[]);
    assert_eq!(
        (unknown.status, unknown.error_code().as_str()),
        (404, "model_not_found"),
        "comes first"
    );
    wait_metric(&zones.penstock, "penstock_rejections_total{reason=\"zone\"}", 10.0);
    wait_metric(&zones.penstock, "penstock_errors_total{code=\"no_backend_in_zone\"}", 5.0);
    let zones = Zones::start(PRIVATE);
    block_on(zones.near.kill()).unwrap();
    zones.chat("m", &[]);
    let drained = request(zones.penstock.admin, "POST", "/backends/near/drain", &[], b"");
    assert_eq!(drained.status, 200);
    let refused = zones.chat("m", &[]);
    assert_eq!(refused.error_code(), "no_backend_in_zone", "{}", refused.text());
    assert!(refused.text().contains("near is draining (1 in other zones)"), "{}", refused.text());
    assert_eq!(refused.header("x-should-retry"), Some("true"), "it may return");
    zones.far_saw_nothing("near is drained");
}

/// Backends `low` and `high` of `m`, the first one with the better priority.
fn tiers(sections: &str) -> Zones {
    Zones::with(sections, "tier: 4", "tier: 2")
}

#[test]
fn strict_tier_refuses_and_a_flexible_one_says_so() {
    let log = scratch("access.log");
    let log_to = format!("access_log: {{ path: \"{}\" }}\n", log.display());
    let policy = |mode: &str| {
        format!(
            "routing: {{ strategy: priority_only, expose_decision: true }}\n\
             policies: [{{ name: good, models: [m], min_tier: 3, tier_mode: {mode} }}]\n"
        )
    };
    let zones = tiers(&policy("strict"));
    let served = zones.chat("m", &[]);
    assert_eq!(
        (served.header("x-penstock-backend"), served.header("x-penstock-tier")),
        (Some("near"), None)
    );
    assert!(served.header("x-penstock-decision").unwrap().contains(";policy=good"));
    let drain = |zones: &Zones, what: &str| {
        let path = format!("/backends/near/{what}");
        assert_eq!(request(zones.penstock.admin, "POST", &path, &[], b"").status, 200);
    };
    drain(&zones, "drain");
    let refused = zones.chat("m", &[]);
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "no_healthy_backend"));
    assert!(refused.text().contains("tier 3"), "{}", refused.text());
    wait_metric(&zones.penstock, "penstock_rejections_total{reason=\"tier\"}", 1.0);
    zones.far_saw_nothing("its tier is 2");
    let refused = zones.chat("m", &[("x-penstock-strict", "false")]);
    assert_eq!(refused.status, 400, "{}", refused.text());

    let zones = tiers(&format!("{log_to}{}", policy("flexible")));
    assert_eq!(zones.chat("m", &[]).header("x-penstock-backend"), Some("near"));
    drain(&zones, "drain");
    let served = zones.chat("m", &[]);
    assert_eq!(
        (served.header("x-penstock-backend"), served.header("x-penstock-tier")),
        (Some("far"), Some("2;min=3"))
    );
    assert!(served.header("x-penstock-decision").unwrap().contains(";below_tier;policy=good"));
    let strict = zones.chat("m", &[("x-penstock-strict", "true")]);
    assert_eq!(strict.error_code(), "no_healthy_backend", "{}", strict.text());
    let text = explained(&zones.penstock, &chat("m", "x"), &json!({}), "");
    assert!(text.contains("\"below_tier\": true"), "{text}");
    eventually("three lines", SOON, || {
        std::fs::read_to_string(&log).unwrap_or_default().lines().count() == 3
    });
    let lines: Vec<Value> = std::fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.iter().all(|line| line["policy"] == "good"), "{lines:?}");
    // Requests that end together are written in any order.
    assert_eq!(lines.iter().filter(|line| line["below_tier"] == true).count(), 1, "{lines:?}");
}

#[test]
fn strict_request_stays_strict_for_its_fallbacks() {
    let high = start(MockSpec::new("high", [EngineModel::new("m")]));
    let low = start(MockSpec::new("low", [EngineModel::new("n")]));
    let yaml = format!(
        "routing: {{ fallbacks: {{ m: [n] }} }}\nhealth: {{ {FAULTS_FORGOTTEN} }}\npolicies:\n  \
         - {{ name: good, models: [m], min_tier: 2, tier_mode: flexible }}\n  \
         - {{ name: better, models: [n], min_tier: 4, tier_mode: flexible }}\nbackends:\n{}{}",
        backend(&high, "tier: 5, models: [m]"),
        backend(&low, "tier: 3, models: [n]"),
    );
    let penstock = Penstock::start(&yaml);
    assert_eq!(request(penstock.admin, "POST", "/backends/high/drain", &[], b"").status, 200);
    let strict = [JSON, ("x-penstock-strict", "true")];
    let body = chat("m", "x").to_string();
    let refused = request(penstock.data, "POST", CHAT, &strict, body.as_bytes());
    assert_eq!(refused.status, 503, "{}", refused.text());
    saw_nothing(&low, "its tier is too low");
    assert_eq!(penstock.chat("m").header("x-penstock-tier"), Some("3;min=4"));
}

#[test]
fn backend_that_falls_behind_is_left_out_and_returns() {
    let setup = Setup {
        pace: Pace { first_token: Duration::from_millis(1), ..Pace::at_once(2) },
        sections: "policies: [{ name: fast, quality: { max_ttft: 60ms, min_requests: 4, window: 3s } }]",
        ..Setup::default()
    };
    let fleet = Fleet::start(2, setup);
    let before = fleet.b().counters().requests;
    assert_eq!(before, 0, "a is preferred");
    fleet.a().always(Some(Fault::SlowHead(Duration::from_millis(150))));
    for _ in 0..6 {
        assert_eq!(fleet.stream().status, 200);
    }
    // One request at a time tries it; others go elsewhere.
    let gate = Gate::new();
    fleet.a().always(Some(Fault::Gate(gate.clone())));
    let mut trial = begin(fleet.penstock.data, CHAT, &streaming_chat("m", "x"));
    block_on(gate.reached_by(1));
    for _ in 0..4 {
        assert_eq!(fleet.stream().status, 200);
    }
    assert_eq!(fleet.b().counters().requests, 4, "a is left out");
    let text = explained(&fleet.penstock, &streaming_chat("m", "x"), &json!({}), "");
    assert!(text.contains("bounds of the request's policy for quality"), "{text}");
    assert_eq!(request(fleet.penstock.admin, "POST", "/backends/b/drain", &[], b"").status, 200);
    let mut other = begin(fleet.penstock.data, CHAT, &streaming_chat("m", "x"));
    block_on(gate.reached_by(2));
    gate.open();
    for client in [&mut trial, &mut other] {
        assert_eq!(client.read_response().unwrap().status, 200, "rather than none");
    }
    assert_eq!(request(fleet.penstock.admin, "POST", "/backends/b/resume", &[], b"").status, 200);
    // It is fast again: after a while it gets all of them.
    fleet.a().always(None);
    eventually("a is back", Duration::from_secs(20), || {
        let mut streams: Vec<_> =
            (0..3).map(|_| begin(fleet.penstock.data, CHAT, &streaming_chat("m", "x"))).collect();
        let before = fleet.b().counters().requests;
        streams
            .iter_mut()
            .for_each(|client| assert_eq!(client.read_response().unwrap().status, 200));
        let text = explained(&fleet.penstock, &streaming_chat("m", "x"), &json!({}), "");
        before == fleet.b().counters().requests && !text.contains("for quality")
    });
}

#[test]
fn explanations_and_captures_name_policy_and_reason() {
    let zones = Zones::start(&format!("routing: {{ strategy: priority_only }}\n{PRIVATE}"));
    let headers = json!({});
    let text = explained(&zones.penstock, &chat("m", "x"), &headers, "");
    let report: Value = serde_json::from_str(&text).unwrap();
    let policy = json!({"name": "private", "zones": ["home"], "tier": 1, "preferred_tier": 1});
    assert_eq!(report["policy"], policy, "{text}");
    let candidates = report["decision"]["candidates"].as_array().unwrap();
    let far = candidates.iter().find(|one| one["backend"] == "far").unwrap();
    assert_eq!(
        (&far["excluded"], &far["reason"]),
        (&json!("zone"), &json!("zone away is not one of home"))
    );
    let admin = format!("http://{}", zones.penstock.admin);
    let requests = file(
        "requests.jsonl",
        json!({"path": CHAT, "body": chat("m", "x").to_string()}).to_string(),
    );
    let ran = run(["explain", "--admin", &admin, "--requests", requests.to_str().unwrap()]);
    let config = run([
        "explain",
        "--config",
        zones.penstock.config.to_str().unwrap(),
        "--requests",
        requests.to_str().unwrap(),
    ]);
    for ran in [ran, config] {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(
            ran.stdout.contains("private") && ran.stdout.contains("zone away is not one of home"),
            "{}",
            ran.stdout
        );
    }
    assert_eq!(zones.penstock.admin("/decisions?capture=true").status, 200);
    assert_eq!(zones.chat("m", &[]).status, 200);
    let captured = zones.penstock.admin("/decisions?capture=true").text();
    let all: Value = serde_json::from_str(&captured).unwrap();
    let rejected = &all["decisions"][0]["rejected"][0];
    assert_eq!((&rejected["backend"], &rejected["excluded"]), (&json!("far"), &json!("zone")));
    let captured = file("captured.json", captured);
    let ran = run(["explain", "--decision", captured.to_str().unwrap()]);
    assert!(ran.stdout.contains("1 identical"), "{}{}", ran.stdout, ran.stderr);
}

fn check(yaml: &str) -> Ran {
    run(["check", "--config", file("penstock.yaml", yaml).to_str().unwrap()])
}

#[test]
fn check_warns_of_policies_that_do_not_fit() {
    let backends = "backends:\n  - { name: a, url: \"http://10.0.0.1:1\", models: [m, other] }\n  \
                    - { name: b, url: \"https://api.example\", tier: 3, models: [n] }\n";
    for (sections, expected) in [
        ("policies: [{ name: p, models: [m], zones: [mars] }]", "mars"),
        ("policies: [{ name: p, models: [m, n, other], zones: [Local] }]", "local"),
        ("policies: [{ name: p, zones: [local], min_tier: 2 }]", "no backend"),
        (
            "policies: [{ name: p, models: [m, n], zones: [local] }]",
            "no policy is about model 'other'",
        ),
        (
            "policies: [{ name: p, models: [m, other], zones: [local] }, { name: q }]\nrouting: { fallbacks: { m: [n] } }",
            "fallback",
        ),
        ("policies: [{ name: p, quality: { window: 1m } }]", "quality"),
    ] {
        let ran = check(&format!("{sections}\n{backends}"));
        assert_eq!(ran.code, Some(0), "{sections}: {}{}", ran.stdout, ran.stderr);
        let text = format!("{}{}", ran.stdout, ran.stderr);
        let warned = text.lines().any(|line| line.contains("warning: ") && line.contains(expected));
        assert!(warned, "{sections}: {text}");
    }
    let fine = check(&format!(
        "policies: [{{ name: p, models: [m, other], zones: [local] }}, {{ name: q, min_tier: 2, models: [n] }}]\n{backends}"
    ));
    assert!(fine.stdout.contains("warnings    0"), "{}{}", fine.stdout, fine.stderr);
}

#[test]
fn simulation_keeps_requests_in_their_zones() {
    let items: String = (0..4)
        .map(|n| {
            let (zone, priority) = if n < 2 { ("home", 90) } else { ("away", 1) };
            format!("  - {{ name: {zone}-{n}, url: \"http://10.0.0.{n}:1\", zone: {zone}, priority: {priority} }}\n")
        })
        .collect();
    let config = |policies: &str| {
        file(
            "penstock.yaml",
            format!("routing: {{ strategy: round_robin }}\n{policies}backends:\n{items}"),
        )
    };
    for (policies, expected) in [("policies: [{ name: p, zones: [home] }]\n", false), ("", true)] {
        let requests = scratch("requests.jsonl");
        let config = config(policies);
        let arguments = ["simulate", "conversation", "--part", "0.01", "--seeds", "1", "--config"];
        let more = [config.to_str().unwrap(), "--requests", requests.to_str().unwrap()];
        let ran = run(arguments.iter().chain(&more));
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        let text = std::fs::read_to_string(&requests).unwrap();
        assert!(
            text.contains("home-0") && text.contains("home-1"),
            "{}",
            &text[..500.min(text.len())]
        );
        assert_eq!(text.contains("away-"), expected, "{policies}");
    }
}

#[test]
fn quote_offers_only_backends_inside() {
    let sections = "routing: { strategy: priority_only, predict: true }\n\
                    policies: [{ name: private, models: [m], zones: [home] }]\n";
    let zones = Zones::start(sections);
    let quoted = |model: &str| {
        let body = json!({"model": model, "tokens": 10}).to_string();
        let found = request(zones.penstock.admin, "POST", "/quote", &[JSON], body.as_bytes());
        assert_eq!(found.status, 200, "{}", found.text());
        let found = found.json();
        let mut names: Vec<String> = found["backends"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["backend"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(quoted("m"), ["near"]);
    assert_eq!(quoted("M:latest"), ["near"]);
    assert_eq!(quoted("n"), ["far", "near"]);
}
