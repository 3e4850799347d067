//! An operator configures aliases and fallback models; users get a response
//! under the name they know, from whatever can give it.

use std::time::Duration;

use penstock_mock::{EngineModel, Flavour, MockEngine, MockSpec};
use serde_json::json;

use crate::support::client::{self, chat};
use crate::support::command::{file, run};
use crate::support::engines::{backend, backends, engine, last_body, shares, start};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const CHAT: &str = "/v1/chat/completions";

/// Three engines with a model each: `a`, `b`, `c`.
struct Fleet {
    a: MockEngine,
    b: MockEngine,
    c: MockEngine,
    penstock: Penstock,
}

impl Fleet {
    fn start(routing: &str, ill: &[&str]) -> Self {
        let [a, b, c] = ["a", "b", "c"].map(|name| {
            let engine = engine(name, &[name]);
            if ill.contains(&name) {
                engine.set_health(500);
            }
            engine
        });
        let items =
            backend(&a, "models: [a]") + &backend(&b, "models: [b]") + &backend(&c, "models: [c]");
        let penstock = Penstock::start(&format!(
            "routing: {{ expose_decision: true, {routing} }}\nbackends:\n{items}"
        ));
        Self { a, b, c, penstock }
    }

    fn shares(&self) -> Vec<usize> {
        shares(&[&self.a, &self.b, &self.c])
    }
}

#[test]
fn alias_rewrites_only_the_model_value() {
    let fleet = Fleet::start("aliases: { gpt-4: a, claude: gpt-4, fast: claude, b: c }", &[]);
    for name in ["gpt-4", "claude", "fast"] {
        let body = format!(
            "{{\"messages\" : [ {{\"role\":\"user\",\"content\":\"{name} \\\"model\\\":\\\"{name}\\\"\"}}],\r\n\t\"model\":\"{name}\",\"seed\":18446744073709551616}}"
        );
        let response = client::request(fleet.penstock.data, "POST", CHAT, &[], body.as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        let expected = body.replace(&format!("\t\"model\":\"{name}\""), "\t\"model\":\"a\"");
        assert_eq!(String::from_utf8(last_body(&fleet.a)).unwrap(), expected);
        assert_eq!(response.header("x-penstock-backend"), Some("a"));
    }
    assert_eq!(fleet.penstock.chat("b").status, 200);
    assert_eq!(fleet.shares(), [3, 0, 1], "an alias goes before the model it hides");
    assert!(fleet.penstock.log().contains("hides the model"), "and the log says so");
}

#[test]
fn fallback_serves_when_the_model_is_unavailable() {
    let routing = "aliases: { old: c }, fallbacks: { a: [b, old], ghost: [b] }";
    let fleet = Fleet::start(routing, &["a", "b"]);
    let response = fleet.penstock.chat("a");
    assert_eq!((response.status, response.json()["model"].as_str()), (200, Some("c")));
    assert_eq!(last_body(&fleet.c), chat("c", "hello").to_string().as_bytes());
    assert_eq!(fleet.shares(), [0, 0, 1]);
    let decision = &fleet.penstock.admin("/decisions?n=1").json()["decisions"][0];
    assert_eq!((&decision["fallback"], &decision["model"]), (&json!(true), &json!("c")));
    assert_eq!(decision["requirements"]["model"], "a", "the requested name");
    eventually("the fallback is counted", Duration::from_secs(5), || {
        fleet.penstock.admin("/metrics").text().contains("penstock_fallbacks_total 1")
    });
    assert_eq!(fleet.penstock.chat("ghost").status, 503, "its only fallback is out");
}

#[test]
fn fallback_serves_when_connecting_fails() {
    let fleet = Fleet::start("fallbacks: { a: [b] }", &[]);
    block_on(fleet.a.kill()).unwrap();
    let response = fleet.penstock.chat("a");
    assert_eq!((response.status, response.json()["model"].as_str()), (200, Some("b")));
    assert_eq!(last_body(&fleet.b), chat("b", "hello").to_string().as_bytes());
    let response = fleet.penstock.chat("c");
    assert_eq!(response.json()["model"], "c", "others are not touched");
}

#[test]
fn missing_capability_falls_back_before_it_is_refused() {
    let (blind, sees) = (engine("blind", &["a"]), engine("sees", &["b"]));
    let yaml = format!(
        "routing: {{ fallbacks: {{ a: [b] }} }}\nbackends:\n{}{}",
        backend(&blind, "models: [{ id: a, capabilities: [] }]"),
        backend(&sees, "models: [{ id: b, capabilities: [vision] }]")
    );
    let penstock = Penstock::start(&yaml);
    let parts = json!([{"type": "image_url", "image_url": {"url": "data:,"}}]);
    let image = json!({"model": "a", "messages": [{"role": "user", "content": parts}]});
    assert_eq!(penstock.post(CHAT, &image).status, 200);
    assert_eq!(shares(&[&blind, &sees]), [0, 1]);
    let mut tools = image.clone();
    tools["tools"] = json!([]);
    let response = penstock.post(CHAT, &tools);
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "fallback_chain_exhausted")
    );
    assert_eq!(shares(&[&blind, &sees]), [0, 1], "never one that lacks something");
}

#[test]
fn each_attempt_sends_the_backends_model_name() {
    let (one, two) = (engine("one", &["first/m"]), engine("two", &["m"]));
    let third = engine("three", &["spare/n"]);
    let yaml = format!(
        "routing: {{ aliases: {{ alias: m }}, fallbacks: {{ m: [n] }} }}\nbackends:\n{}{}{}",
        backend(&one, "priority: 1, models: [{ id: m, upstream_id: first/m }]"),
        backend(&two, "models: [m]"),
        backend(&third, "models: [{ id: n, upstream_id: spare/n }]")
    );
    let penstock = Penstock::start(&yaml);
    let body = |name: &str| chat(name, "alias m first/m").to_string().into_bytes();
    let send = || penstock.post(CHAT, &chat("alias", "alias m first/m")).status;
    assert_eq!(send(), 200);
    assert_eq!(last_body(&one), body("first/m"));
    block_on(one.kill()).unwrap();
    assert_eq!(send(), 200);
    assert_eq!(last_body(&two), body("m"), "rewritten from the client's bytes");
    block_on(two.kill()).unwrap();
    assert_eq!(send(), 200);
    assert_eq!(last_body(&third), body("spare/n"));
}

#[test]
fn exhausted_fallback_chain_lists_every_model() {
    let fleet = Fleet::start("fallbacks: { a: [b, c], b: [c] }", &["a", "b", "c"]);
    let response = fleet.penstock.chat("a");
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "fallback_chain_exhausted")
    );
    let message = "All backends in fallback chain unavailable: [a, b, c]";
    assert_eq!(response.json()["error"]["message"], message);
    assert!(response.header("retry-after").is_some());
    let body = json!({"model": "b", "max_tokens": 1, "messages": []});
    let response = fleet.penstock.post("/v1/messages", &body);
    let message = "All backends in fallback chain unavailable: [b, c]";
    let wanted = json!({"type": "overloaded_error", "message": message});
    assert_eq!((response.status, &response.json()["error"]), (503, &wanted));
    assert_eq!(response.json()["type"], "error");
    let response = fleet.penstock.chat("c");
    assert_eq!(response.error_code(), "no_healthy_backend", "without a chain it is itself");
}

#[test]
fn unserved_alias_error_names_alias_and_target() {
    let fleet = Fleet::start("aliases: { gpt-4: ghost }", &[]);
    let response = fleet.penstock.chat("gpt-4");
    assert_eq!((response.status, response.error_code().as_str()), (404, "model_not_found"));
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("'gpt-4'") && message.contains("'ghost'"), "{message}");
}

#[test]
fn patterns_cover_names_that_no_backend_serves() {
    let routing = r#"aliases: { "*": a, "gpt-*": b, "gpt-4?": c, gpt-4o: a, best: gpt-4x }, fallbacks: { b: [c] }"#;
    let fleet = Fleet::start(routing, &[]);
    for (name, wanted) in [
        ("gpt-4o", "a"),
        ("gpt-4x", "c"),
        ("best", "c"),
        ("gpt-3.5-turbo", "b"),
        ("claude-3", "a"),
        ("b", "b"),
        ("c", "c"),
    ] {
        let response = fleet.penstock.chat(name);
        assert_eq!(response.status, 200, "{name}: {}", response.text());
        assert_eq!(response.header("x-penstock-backend"), Some(wanted), "{name}");
        assert_eq!(response.json()["model"], wanted, "{name}: the engine gets its own name");
    }
    let listed = fleet.penstock.get("/v1/models").json();
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "b", "best", "c", "gpt-4o"], "a pattern is never listed");
    let fleet = Fleet::start(routing, &["b"]);
    let response = fleet.penstock.chat("gpt-5");
    assert_eq!(
        response.header("x-penstock-backend"),
        Some("c"),
        "the fallback of the model behind it"
    );
}

#[test]
fn window_of_a_split_is_that_of_its_shortest_branch() {
    let engine = |name: &str, context_length: u32| {
        let model = EngineModel { context_length, ..EngineModel::new(name) };
        start(MockSpec { flavour: Flavour::Vllm, ..MockSpec::new(name, [model]) })
    };
    let (long, short) = (engine("long", 131_072), engine("short", 4096));
    let penstock = Penstock::start(&format!(
        "routing: {{ aliases: {{ first: [{{ to: long }}, {{ to: short }}], second: [{{ to: short }}, {{ to: long }}], \
         one: long }} }}\n{}",
        backends(&[&long, &short], "engine: vllm"),
    ));
    let expected =
        [("first", 4096), ("long", 131_072), ("one", 131_072), ("second", 4096), ("short", 4096)];
    let listed = |headers: &[(&str, &str)], member: &str| {
        let list = client::request(penstock.data, "GET", "/v1/models", headers, b"").json();
        let models = list["data"].as_array().unwrap().iter();
        let window = |model: &serde_json::Value| {
            (model["id"].as_str().unwrap().to_owned(), model[member].as_u64().unwrap_or(0))
        };
        models.map(window).collect::<Vec<_>>()
    };
    let expected = expected.map(|(name, window)| (name.to_owned(), window));
    eventually("both are listed", Duration::from_secs(10), || {
        listed(&[], "max_model_len").len() == 5
    });
    assert_eq!(listed(&[], "max_model_len"), expected);
    let anthropic = [("anthropic-version", "2023-06-01")];
    assert_eq!(listed(&anthropic, "max_input_tokens"), expected);
    let one = client::request(penstock.data, "GET", "/v1/models/second", &anthropic, b"").json();
    assert_eq!(one["max_input_tokens"], 4096);
    for (alias, context) in [("first", 4096), ("second", 4096), ("one", 131_072)] {
        let shown = penstock.post("/api/show", &serde_json::json!({"model": alias})).json();
        assert_eq!(shown["model_info"]["unknown.context_length"], context, "{alias}");
    }
}

const SPLIT: &str = "aliases: { gpt: [{ to: a, weight: 3 }, { to: b, weight: 1 }] }";

fn served_by(fleet: &Fleet, headers: &[(&str, &str)]) -> String {
    let mut headers = headers.to_vec();
    headers.push(("content-type", "application/json"));
    let body = chat("gpt", "hello").to_string();
    let response = client::request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    response.header("x-penstock-backend").unwrap().to_owned()
}

#[test]
fn alias_splits_requests_by_weight() {
    let fleet = Fleet::start(SPLIT, &[]);
    let all = 400;
    let on_b = (0..all).filter(|_| served_by(&fleet, &[]) == "b").count();
    // Within five standard deviations of 100.
    assert!((57..=143).contains(&on_b), "{on_b} of {all}");
    assert_eq!(fleet.shares(), [all - on_b, on_b, 0]);
    let body: serde_json::Value = serde_json::from_slice(&last_body(&fleet.b)).unwrap();
    assert_eq!(body["model"], "b", "the engine gets its own model");
    let listed = fleet.penstock.get("/v1/models").json();
    let listed = listed["data"].as_array().unwrap();
    assert_eq!(listed.iter().filter(|one| one["id"] == "gpt").count(), 1, "{listed:?}");

    // Weight 0 gets nothing, and a failing model's requests go to its own fallbacks.
    let fleet = Fleet::start(
        "aliases: { gpt: [{ to: a, weight: 0 }, { to: b }] }, fallbacks: { b: [c] }",
        &["b"],
    );
    assert!((0..20).all(|_| served_by(&fleet, &[]) == "c"));
}

#[test]
fn split_is_sticky_by_session_and_key() {
    let fleet = Fleet::start(SPLIT, &[]);
    let mut seen = [0, 0];
    for number in 0..40 {
        let session = format!("session-{number}");
        let first = served_by(&fleet, &[("x-session-id", &session)]);
        for _ in 0..4 {
            assert_eq!(served_by(&fleet, &[("x-session-id", &session)]), first, "{session}");
        }
        seen[usize::from(first == "b")] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");

    let keys: String = (0..20).map(|key| format!("{{ name: k{key}, key: sk-{key} }}, ")).collect();
    let engines = ["a", "b"].map(|name| engine(name, &[name]));
    let penstock = Penstock::start(&format!(
        "auth: {{ keys: [{keys}] }}\nrouting: {{ {SPLIT}, split_by: key, expose_decision: true }}\nbackends:\n{}{}",
        backend(&engines[0], "models: [a]"),
        backend(&engines[1], "models: [b]")
    ));
    let [a, b] = engines;
    let fleet = Fleet { a, b, c: engine("c", &["c"]), penstock };
    let mut seen = [0, 0];
    for key in 0..20 {
        let bearer = format!("Bearer sk-{key}");
        let header = ("authorization", bearer.as_str());
        let first = served_by(&fleet, &[header]);
        for session in ["x", "y", "z"] {
            assert_eq!(served_by(&fleet, &[header, ("x-session-id", session)]), first, "{key}");
        }
        seen[usize::from(first == "b")] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn split_is_explained_and_replayed() {
    let fleet = Fleet::start(SPLIT, &[]);
    assert_eq!(fleet.penstock.admin("/decisions?capture=true").status, 200);
    let session = ("x-session-id", "session-7");
    let backend = served_by(&fleet, &[session]);
    (0..30).for_each(|_| _ = served_by(&fleet, &[]));
    let request = file("request.json", chat("gpt", "hello").to_string());
    let explain = |more: &[&str]| {
        let fixed = ["explain", request.to_str().unwrap(), "--config"];
        let config = fleet.penstock.config.to_str().unwrap();
        run(fixed.iter().chain(&[config]).chain(more))
    };
    let ran = explain(&["--json", "--header", "x-session-id: session-7"]);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(value["split"]["model"], backend.as_str(), "{value:#}");
    assert_eq!(value["split"]["branches"][1], json!({"model": "b", "weight": 1}));
    let text = explain(&["--seed", "3"]).stdout;
    assert!(text.contains("split       gpt -> ") && text.contains("(of a 3, b 1)"), "{text}");
    assert_eq!(explain(&["--seed", "3"]).stdout, text);

    let captured = fleet.penstock.admin("/decisions?capture=true").text();
    let replay = |text: &str| {
        let decisions = file("captured.json", text);
        run(["explain", "--decision", decisions.to_str().unwrap()])
    };
    let ran = replay(&captured);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert!(ran.stdout.contains("31 decisions, 31 identical"), "{}", ran.stdout);
    let swapped = captured.replace("\"weight\":1}", "\"weight\":3000}");
    assert_ne!(swapped, captured, "{captured}");
    let ran = replay(&swapped);
    assert_eq!(ran.code, Some(1), "other weights decide for another model: {}", ran.stdout);
}
