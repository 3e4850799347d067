//! Mock engines as a raw client sees them, byte by byte.

mod client;
mod control;
mod faults;
mod pages;
mod streams;
mod strictness;
mod whole;

use std::time::Duration;

use serde_json::{Value, json};

use super::{EngineModel, MockEngine, MockSpec, Pace};
use client::{Client, Response};

/// Starts an engine `a` that serves `m` at once.
async fn engine() -> MockEngine {
    MockEngine::start_local(MockSpec::new("a", [EngineModel::new("m")])).await.unwrap()
}

/// Starts an engine that takes an hour for everything.
async fn slow_engine() -> MockEngine {
    let hour = Duration::from_secs(3600);
    let pace = Pace { first_token: hour, per_token: hour, tokens: 8 };
    let spec = MockSpec { pace, ..MockSpec::new("a", [EngineModel::new("m")]) };
    MockEngine::start_local(spec).await.unwrap()
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
}

fn chat_stream() -> Value {
    with(chat(), &json!({"stream": true}))
}

/// Returns `base` with the fields of `more`.
fn with(mut base: Value, more: &Value) -> Value {
    let fields = more.as_object().unwrap().clone();
    base.as_object_mut().unwrap().extend(fields);
    base
}

async fn post(engine: &MockEngine, path: &str, body: &Value) -> Response {
    let mut client = Client::connect(engine).await;
    client.post(path, body).await;
    client.response().await.unwrap()
}

async fn post_chat(engine: &MockEngine, body: &Value) -> Response {
    post(engine, "/v1/chat/completions", body).await
}
