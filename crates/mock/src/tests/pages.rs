//! Information pages.

use std::time::Duration;

use penstock_api::Capabilities;
use serde_json::{Value, json};

use super::client::{Client, Response};
use super::{chat, post};
use crate::{EngineModel, Flavour, MockEngine, MockSpec, Pace};

async fn engine_of(flavour: Flavour) -> MockEngine {
    let capabilities = Capabilities::VISION.union(Capabilities::TOOLS);
    let model = EngineModel { context_length: 4096, capabilities, ..EngineModel::new("org/m:7b") };
    MockEngine::start_local(MockSpec { flavour, ..MockSpec::new("a", [model]) }).await.unwrap()
}

async fn get(engine: &MockEngine, path: &str) -> Response {
    let mut client = Client::connect(engine).await;
    client.get(path).await;
    client.response().await.unwrap()
}

async fn first_model(engine: &MockEngine) -> Value {
    let list = get(engine, "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "org/m:7b");
    assert_eq!(get(engine, "/v1/models/org/m:7b").await.json(), list["data"][0]);
    list["data"][0].clone()
}

#[tokio::test]
async fn vllm_reports_its_context_length() {
    let engine = engine_of(Flavour::Vllm).await;
    assert_eq!(first_model(&engine).await["max_model_len"], 4096);
    let health = get(&engine, "/health").await;
    assert_eq!((health.status, health.body.len()), (200, 0));
    assert!(get(&engine, "/version").await.json()["version"].is_string());
}

#[tokio::test]
async fn llama_cpp_reports_props_and_modalities() {
    let engine = engine_of(Flavour::LlamaCpp).await;
    let model = first_model(&engine).await;
    assert_eq!(model["owned_by"], "llamacpp");
    assert_eq!(model["meta"]["n_ctx_train"], 4096);
    let props = get(&engine, "/props").await.json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert_eq!(props["modalities"]["vision"], true);
    assert_eq!(get(&engine, "/health").await.json()["status"], "ok");
}

#[tokio::test]
async fn ollama_reports_tags_and_show() {
    let engine = engine_of(Flavour::Ollama).await;
    assert_eq!(first_model(&engine).await["owned_by"], "library");
    assert_eq!(get(&engine, "/").await.text(), "Ollama is running");
    assert_eq!(get(&engine, "/health").await.status, 404);
    assert_eq!(get(&engine, "/api/tags").await.json()["models"][0]["name"], "org/m:7b");
    assert!(get(&engine, "/api/version").await.json()["version"].is_string());
    let show = post(&engine, "/api/show", &json!({"model": "org/m:7b"})).await.json();
    assert_eq!(show["model_info"]["llama.context_length"], 4096);
    assert_eq!(show["capabilities"], json!(["completion", "tools", "vision"]));
    assert_eq!(post(&engine, "/api/show", &json!({"model": "x"})).await.status, 404);
    assert_eq!(engine.received().len(), 0, "show is a probe");
}

#[tokio::test]
async fn health_is_settable_and_leaves_the_work_alone() {
    let engine = super::engine().await;
    engine.set_health(503);
    assert_eq!(get(&engine, "/health").await.status, 503);
    assert_eq!(get(&engine, "/v1/models").await.status, 503);
    assert_eq!(super::post_chat(&engine, &chat()).await.status, 200);
    engine.set_health(200);
    assert_eq!(get(&engine, "/health").await.status, 200);
    assert_eq!(engine.counters().probes, 3);
    assert_eq!(engine.probes()[1].path(), "/v1/models");
}

#[tokio::test]
async fn head_has_a_response_without_a_body() {
    let engine = engine_of(Flavour::Ollama).await;
    let mut client = Client::connect(&engine).await;
    client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    let bytes = String::from_utf8(client.rest().await.bytes).unwrap();
    assert!(bytes.contains("Content-Length: 17\r\n") && bytes.ends_with("\r\n\r\n"), "{bytes}");
}

#[tokio::test]
async fn key_guards_models_and_work_but_not_health() {
    let spec =
        MockSpec { api_key: Some("k".to_owned()), ..MockSpec::new("a", [EngineModel::new("m")]) };
    let engine = MockEngine::start_local(spec).await.unwrap();
    assert_eq!(get(&engine, "/health").await.status, 200);
    assert_eq!(get(&engine, "/v1/models").await.status, 401);
    let path = "/v1/chat/completions";
    let given = [
        ("", 401),
        ("Authorization: Bearer x\r\n", 401),
        ("Authorization: Bearer k\r\n", 200),
        ("X-Api-Key: k\r\n", 200),
    ];
    for (headers, status) in given {
        let mut client = Client::connect(&engine).await;
        client.post_with(path, headers, chat().to_string().as_bytes()).await;
        assert_eq!(client.response().await.unwrap().status, status, "{headers}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let engine = super::engine().await;
    assert_eq!(get(&engine, "/nowhere").await.status, 404);
    assert_eq!(get(&engine, "/v1/chat/completions").await.status, 405);
    assert_eq!(post(&engine, "/nowhere", &chat()).await.status, 404);
}

#[test]
fn fleet_serves_what_the_examples_ask_for() {
    let fleet = crate::fleet();
    for example in &crate::EXAMPLES {
        let body: Value = serde_json::from_str(example.body).unwrap();
        let model = match body["model"].as_str().unwrap() {
            "gpt-4" => "qwen2.5:14b",
            model => model,
        };
        assert!(fleet.iter().any(|engine| engine.model(model).is_some()), "{model}");
        assert!(!example.body.contains('\''), "a shell takes the body in single quotes");
    }
}

#[tokio::test]
async fn load_is_the_requests_in_progress() {
    let pace = Pace { first_token: Duration::from_secs(60), ..Pace::at_once(1) };
    let spec = MockSpec { pace, ..MockSpec::new("a", [EngineModel::new("m")]) };
    let silent = MockEngine::start_local(spec.clone()).await.unwrap();
    assert_eq!(get(&silent, "/metrics").await.status, 404, "only where it is switched on");
    let engine = MockEngine::start_local(MockSpec { reports_load: true, ..spec }).await.unwrap();
    let mut client = Client::connect(&engine).await;
    client.post("/v1/chat/completions", &chat()).await;
    engine.wait_for(|counters| counters.open_requests == 1).await.unwrap();
    let page = get(&engine, "/metrics").await.text();
    assert!(page.contains("\nvllm:num_requests_running 1\n"), "{page}");
    assert!(page.contains("\nvllm:num_requests_waiting 0\n"), "{page}");
}
