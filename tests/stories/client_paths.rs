//! Clients of every kind (SDKs with and without `/v1` in their base URL, rerankers, token counters,
//! editors) find the path they call, and reach an engine that serves it.

use penstock_api::{BodyFormat, OPERATIONS};
use penstock_mock::{EngineModel, Flavour, MockEngine, MockSpec};
use serde_json::{Value, json};

use crate::support::client::{self, Response, get, post};
use crate::support::engines::{backend, engine, model, serving_all, shares, start};
use crate::support::eventually;
use crate::support::fleet::{SOON, find_metric, metric};
use crate::support::penstock::Penstock;

/// A body that has the prompt of every operation.
fn body(stream: bool) -> Value {
    json!({
        "model": "m", "stream": stream, "max_tokens": 4,
        "messages": [{"role": "user", "content": "hello"}],
        "prompt": "hello", "input": "hello", "content": "hello", "tokens": [1, 2],
        "query": "hello", "documents": ["a", "b"], "text_1": "hello", "text_2": ["a"],
        "input_prefix": "hello", "input_suffix": "bye", "suffix": "bye",
    })
}

fn flavoured(name: &str, flavour: Flavour) -> MockEngine {
    start(MockSpec { flavour, ..MockSpec::new(name, [EngineModel::new("m")]) })
}

/// A vLLM, a llama.cpp and an Ollama that serve the same model.
fn fleet() -> ([MockEngine; 3], Penstock) {
    let engines = [
        flavoured("vllm", Flavour::Vllm),
        flavoured("llamacpp", Flavour::LlamaCpp),
        flavoured("ollama", Flavour::Ollama),
    ];
    let items: String = engines.iter().map(|engine| backend(engine, "engine: auto")).collect();
    let routing = "routing: { strategy: round_robin }\n";
    let penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    (engines, penstock)
}

#[test]
fn every_path_of_an_operation_is_served() {
    let engine = engine("one", &["m"]);
    let models = format!("models: [{}]", serving_all("m"));
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, &models)));
    for row in OPERATIONS.iter().filter(|row| row.body == BodyFormat::Json) {
        for path in row.paths {
            let response = post(penstock.data, path, &body(false));
            assert_eq!(response.status, 200, "{path}: {}", response.text());
            let received = engine.received().pop().unwrap();
            assert_eq!(received.target, row.paths[0], "{path}: the path that every engine serves");
        }
    }
    let response = client::request(penstock.data, "POST", "/v2/rerank?x=1", &[], &to_bytes());
    assert_eq!(response.status, 200);
    assert_eq!(engine.received().pop().unwrap().target, "/v1/rerank?x=1", "the query is kept");
}

fn to_bytes() -> Vec<u8> {
    body(false).to_string().into_bytes()
}

#[test]
fn requests_go_to_engines_that_serve_the_operation() {
    let (engines, penstock) = fleet();
    let [vllm, llamacpp, ollama] = &engines;
    for (path, wanted) in [
        ("/infill", [0, 6, 0]),
        ("/completion", [0, 6, 0]),
        ("/embeddings", [0, 6, 0]),
        ("/apply-template", [0, 6, 0]),
        ("/v1/responses/input_tokens", [0, 6, 0]),
        ("/score", [6, 0, 0]),
        ("/classify", [6, 0, 0]),
        ("/pooling", [6, 0, 0]),
        ("/tokenize", [3, 3, 0]),
        ("/v1/messages/count_tokens", [3, 3, 0]),
        ("/rerank", [3, 3, 0]),
        ("/chat/completions", [2, 2, 2]),
    ] {
        engines.iter().for_each(MockEngine::clear);
        for _ in 0..6 {
            let response = post(penstock.data, path, &body(false));
            assert_eq!(response.status, 200, "{path}: {}", response.text());
        }
        assert_eq!(shares(&[vllm, llamacpp, ollama]), wanted, "{path}");
    }
}

#[test]
fn operations_no_engine_serves_are_named() {
    let (engines, penstock) = fleet();
    for (path, operation) in [("/v1/moderations", "moderations"), ("/v1/fim/completions", "fim")] {
        let response = post(penstock.data, path, &body(false));
        assert_eq!(response.status, 400, "{path}: {}", response.text());
        assert_eq!(response.error_code(), "capability_mismatch");
        assert!(response.text().contains(operation), "{path}: {}", response.text());
    }
    assert!(engines.iter().all(|engine| engine.counters().requests == 0));
}

#[test]
fn errors_have_the_shape_of_the_path() {
    let engine = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, "models: [m]")));
    let unknown =
        json!({"model": "nope", "messages": [], "input": "x", "documents": [], "query": ""});
    for path in ["/v1/messages/count_tokens", "/messages"] {
        let response = post(penstock.data, path, &unknown);
        assert_eq!((response.status, &response.json()["type"]), (404, &json!("error")), "{path}");
    }
    for path in ["/rerank", "/tokenize", "/chat/completions", "/v1/responses/input_tokens"] {
        let response = post(penstock.data, path, &unknown);
        assert_eq!((response.status, response.error_code().as_str()), (404, "model_not_found"));
    }
    let response = post(penstock.data, "/api/chat", &unknown);
    assert_eq!(response.status, 404);
    assert!(response.json()["error"].is_string(), "{}", response.text());
    let response: Response = client::request(penstock.data, "GET", "/api/nothing", &[], b"");
    assert_eq!(response.status, 404);
    assert!(response.json()["error"].is_string(), "{}", response.text());
    let response = get(penstock.data, "/tokenize");
    assert_eq!((response.status, response.header("allow")), (405, Some("POST")));
}

#[test]
fn models_are_listed_without_v1() {
    let engine = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, "models: [m]")));
    let response = get(penstock.data, "/models");
    assert_eq!(response.json()["data"][0]["id"], "m", "{}", response.text());
}

#[test]
fn prompts_too_long_to_run_can_be_counted() {
    let all = penstock_api::Capabilities::ALL;
    let small = start(MockSpec::new("small", [model("m", 100, all)]));
    let items = backend(&small, "models: [{ id: m, context_length: 20 }]");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    let text = "word".repeat(50);
    let long = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    let refused = post(penstock.data, "/v1/messages", &long);
    assert_eq!(refused.status, 400, "{}", refused.text());
    let counted = post(penstock.data, "/v1/messages/count_tokens", &long);
    assert_eq!(counted.status, 200, "{}", counted.text());
    assert_eq!(counted.json()["input_tokens"], 50);
}

#[test]
fn native_streams_count_their_tokens() {
    let engine = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, "models: [m]")));
    let response = post(penstock.data, "/completion", &body(true));
    assert_eq!(response.status, 200);
    assert!(response.is_whole && response.text().contains("\"stop\":true"), "{}", response.text());
    let name = "penstock_stream_tokens_total{backend=\"one\"";
    eventually("tokens are counted", SOON, || {
        find_metric(&penstock, name).is_some_and(|count| count > 0.0)
    });
    assert_eq!(metric(&penstock, name), 4.0, "the last event has no token");
}
