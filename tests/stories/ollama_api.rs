//! Ollama's own API on Ollama backends: bytes pass untouched both ways, streams are JSON lines and
//! the default, a broken stream ends in an error line, and every error is one that Ollama's clients
//! read.

use std::time::Duration;

use penstock_mock::{Cut, EngineModel, Fault, Flavour, MockSpec, Pace};
use serde_json::{Value, json};

use crate::support::client::{self, Response};
use crate::support::engines::{last_body, start};
use crate::support::fleet::{Fleet, Leave, Setup, begin, read_until, reference};
use crate::support::penstock::Penstock;

const OLLAMA: Setup<'static> = Setup {
    strategy: "priority_only",
    routing: "",
    health: "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, slow_start: 0s, path: /health",
    sections: "",
    backend: "engine: ollama",
    pace: Pace::at_once(8),
    listeners: &[],
    server: "",
    metrics: None,
};

fn chat(more: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

fn lines(response: &Response) -> Vec<Value> {
    let text = response.text();
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn ollama_requests_pass_untouched_both_ways() {
    let fleet = Fleet::start(1, OLLAMA);
    let embed = json!({"model": "m", "input": ["a", "b"]});
    for (path, body) in [
        ("/api/chat", chat(&json!({"stream": false, "options": {"num_predict": 3}, "x": 1}))),
        ("/api/chat", chat(&json!({}))),
        ("/api/generate", json!({"model": "m", "prompt": "hello", "stream": false})),
        ("/api/generate", json!({"model": "m", "prompt": "hello", "raw": true})),
        ("/api/embed", embed),
        ("/api/embeddings", json!({"model": "m", "prompt": "a"})),
    ] {
        let direct = reference("a", path, &body);
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(response.text(), direct.text(), "{path}");
        assert_eq!(response.header("content-type"), direct.header("content-type"), "{path}");
        assert_eq!(fleet.a().received().pop().unwrap().path(), path);
        assert_eq!(last_body(fleet.a()), body.to_string().into_bytes(), "{path}");
    }
    fleet.wait_idle();
    let sample = "penstock_requests_total{model=\"m\",backend=\"a\",operation=\"ollama_chat\"";
    fleet.wait_metric(sample, 2.0);
    let counted = fleet.metric("penstock_tokens_total{model=\"m\",backend=\"a\",type=\"output\"");
    assert!(counted > 0.0, "the counts of the last line are read");
}

#[test]
fn streams_are_the_default_and_unbuffered() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(400), tokens: 4 };
    let fleet = Fleet::start(1, Setup { pace, ..OLLAMA });
    let mut client = begin(fleet.penstock.data, "/api/chat", &chat(&json!({})));
    let (status, headers) = client.read_head().unwrap();
    let kind = headers.iter().find(|(name, _)| name == "content-type").unwrap();
    assert_eq!((status, kind.1.as_str()), (200, "application/x-ndjson"));
    let first = read_until(&mut client, "serving m");
    assert!(!first.contains("\"done\":true"), "the first line does not wait for the last: {first}");
    read_until(&mut client, "\"done\":true");
    fleet.wait_metric("penstock_stream_tokens_total", 4.0);
}

#[test]
fn timeouts_are_those_of_streams_by_default() {
    let sections = "timeouts: { response: 200ms, first_token: 20s }";
    let fleet = Fleet::start(1, Setup { sections, ..OLLAMA });
    for (more, status) in
        [(json!({}), 200), (json!({"stream": null}), 200), (json!({"stream": false}), 504)]
    {
        fleet.a().script([Fault::SlowHead(Duration::from_millis(600))]);
        let response = fleet.penstock.post("/api/chat", &chat(&more));
        assert_eq!(response.status, status, "{more}: {}", response.text());
    }
}

#[test]
fn broken_stream_ends_with_an_error_line() {
    let fleet = Fleet::start(1, OLLAMA);
    for path in ["/api/chat", "/api/generate"] {
        let mut body = chat(&json!({}));
        body["prompt"] = json!("hello");
        for (how, after_events) in [
            (Cut::Fin, 0),
            (Cut::Fin, 3),
            (Cut::Reset, 3),
            (Cut::BadChunk, 3),
            (Cut::ShortLength, 3),
        ] {
            fleet.a().script([Fault::CutStream { after_events, how }]);
            let response = fleet.penstock.post(path, &body);
            let lines = lines(&response);
            let case = format!("{path} {how:?} after {after_events}: {}", response.text());
            assert_eq!(lines.len(), after_events as usize + 1, "{case}");
            let (last, tokens) = lines.split_last().unwrap();
            assert!(last["error"].as_str().unwrap().contains("backend"), "{case}");
            assert!(tokens.iter().all(|line| line["done"] == false), "{case}");
        }
        let response = fleet.penstock.post(path, &body);
        let dones = lines(&response).iter().filter(|line| line["done"] == true).count();
        assert_eq!(dones, 1, "{}", response.text());
    }
}

#[test]
fn models_are_loaded_and_unloaded_by_empty_requests() {
    let fleet = Fleet::start(1, OLLAMA);
    for (path, body, reason) in [
        ("/api/chat", json!({"model": "m"}), "load"),
        ("/api/chat", json!({"model": "m", "messages": [], "keep_alive": 0}), "unload"),
        ("/api/generate", json!({"model": "m", "prompt": ""}), "load"),
        ("/api/generate", json!({"model": "m", "keep_alive": 0}), "unload"),
    ] {
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        assert_eq!(response.json()["done_reason"], reason, "{path} {body}");
    }
    assert_eq!(fleet.requests(), 4, "Ollama loads and unloads its models itself");
}

#[test]
fn unknown_models_and_bad_bodies_get_ollama_errors() {
    let fleet = Fleet::start(1, OLLAMA);
    let error = |path: &str, body: &Value| {
        let response = fleet.penstock.post(path, body);
        let text = response.json()["error"].as_str().map(str::to_owned);
        (response.status, text.unwrap_or_else(|| panic!("{path}: {}", response.text())))
    };
    let unknown = json!({"model": "nope", "messages": [], "prompt": "x", "input": "x"});
    for path in ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"] {
        assert_eq!(error(path, &unknown), (404, "model 'nope' not found".to_owned()), "{path}");
        let (status, text) = error(path, &json!({"model": "", "prompt": "x"}));
        assert_eq!(status, 400, "{path}: {text}");
    }
    let (status, text) = error("/api/chat", &json!({"model": "m", "messages": "x"}));
    assert_eq!((status, text.as_str()), (400, "'messages' must be an array"));
    let response = client::request(fleet.penstock.data, "POST", "/api/chat", &[], b"{");
    assert_eq!((response.status, response.json()["error"].is_string()), (400, true));
    let response = client::get(fleet.penstock.data, "/api/chat");
    assert_eq!((response.status, response.json()["error"].is_string()), (405, true));
    let fleet = Fleet::start(
        1,
        Setup { health: "interval: 50ms, fall: 1, rise: 1, path: /health", ..OLLAMA },
    );
    fleet.a().set_health(500);
    fleet.wait_fact("a", "health", &json!("unhealthy"));
    let response = fleet.penstock.post("/api/chat", &chat(&json!({})));
    assert_eq!((response.status, response.json()["error"].is_string()), (503, true));
}

#[test]
fn busy_ollama_is_saturation() {
    let fleet = Fleet::start(2, OLLAMA);
    let busy = r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#;
    let fault = Fault::Status {
        status: 503,
        retry_after: None,
        body: busy.to_owned(),
        headers: Vec::new(),
    };
    fleet.a().script([fault.clone()]);
    let response = fleet.penstock.post("/api/chat", &chat(&json!({"stream": false})));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(fleet.b().counters().requests, 1, "the other backend takes it");
    fleet.b().script([fault]);
    fleet.a().clear();
    let response = fleet.penstock.post("/api/chat", &chat(&json!({"stream": false})));
    assert_eq!((response.status, response.text().as_str()), (503, busy), "a cools down, b is busy");
    fleet.wait_idle();
}

#[test]
fn disconnect_frees_the_engine() {
    let pace = Pace { first_token: Duration::ZERO, per_token: Duration::from_secs(30), tokens: 4 };
    let fleet = Fleet::start(1, Setup { pace, ..OLLAMA });
    for how in Leave::BOTH {
        for stream in [true, false] {
            let body = chat(&json!({"stream": stream}));
            let client = begin(fleet.penstock.data, "/api/chat", &body);
            fleet.wait_fact("a", "in_flight", &json!(1));
            let left = how.now(client);
            fleet.wait_fact("a", "in_flight", &json!(0));
            drop(left);
        }
    }
    fleet.wait_idle();
}

#[test]
fn images_and_tools_choose_a_capable_backend() {
    let engine = |name: &str, capabilities| {
        let model = EngineModel { capabilities, ..EngineModel::new("m") };
        let flavour = Flavour::Ollama;
        start(MockSpec { flavour, ..MockSpec::new(name, [model]) })
    };
    let (blind, sees) = (
        engine("blind", penstock_api::Capabilities::NONE),
        engine("sees", penstock_api::Capabilities::ALL),
    );
    let item = |engine: &penstock_mock::MockEngine, priority: u32, capabilities: &str| {
        format!(
            "  - {{ name: {}, url: {}, engine: ollama, priority: {priority}, models: [{{ id: m, \
             capabilities: [{capabilities}] }}] }}\n",
            engine.spec().name,
            engine.url()
        )
    };
    let yaml = format!(
        "routing: {{ strategy: priority_only }}\nbackends:\n{}{}",
        item(&blind, 1, ""),
        item(&sees, 2, "vision, tools, json_mode")
    );
    let penstock = Penstock::start(&yaml);
    let image = json!([{"role": "user", "content": "what is this", "images": ["iVBORw0KGgo="]}]);
    for (path, body) in [
        ("/api/chat", json!({"model": "m", "messages": image})),
        ("/api/generate", json!({"model": "m", "prompt": "x", "images": ["iVBORw0KGgo="]})),
        ("/api/generate", json!({"model": "m", "prompt": "x", "format": "json"})),
    ] {
        let before = sees.counters().requests;
        assert_eq!(penstock.post(path, &body).status, 200, "{path} {body}");
        assert_eq!(sees.counters().requests, before + 1, "{path} {body}");
    }
    assert_eq!(penstock.post("/api/chat", &chat(&json!({}))).status, 200);
    assert_eq!(blind.counters().requests, 1);
}

#[test]
fn aliases_rename_the_model_in_place() {
    let fleet = Fleet::start(1, Setup { routing: "aliases: { gpt-4: m }", ..OLLAMA });
    let mut body = chat(&json!({"stream": false, "options": {"seed": 7}}));
    body["model"] = json!("gpt-4");
    let text = body.to_string();
    let response = client::request(fleet.penstock.data, "POST", "/api/chat", &[], text.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    let received = String::from_utf8(last_body(fleet.a())).unwrap();
    assert_eq!(received, text.replace("gpt-4", "m"));
}
