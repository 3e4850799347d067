//! The routes besides the chat: health and models for the proxies, counters and knobs for
//! `bench.py`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::Engine;

/// A whole JSON response.
pub(crate) fn json_response(status: &str, body: &str) -> Vec<u8> {
    whole_response((status, "application/json"), body)
}

fn whole_response((status, kind): (&str, &str), body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// The part of vLLM's metrics that a balancer reads.
fn metrics(engine: &Engine) -> Vec<u8> {
    let running = engine.running.get();
    let page = format!(
        "vllm:num_requests_running{{engine=\"0\",model_name=\"mock-model\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"mock-model\"}} 0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"mock-model\"}} 0.25\n"
    );
    whole_response(("200 OK", "text/plain; version=0.0.4"), &page)
}

/// Responses a GET.
pub(crate) fn reply(engine: &Engine, target: &str) -> Vec<u8> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let body = match path {
        "/metrics" => return metrics(engine),
        "/health" => json!({}),
        "/v1/models" => json!({"object": "list", "data": [
            {"id": "mock-model", "object": "model", "created": 0, "owned_by": "rig",
             "max_model_len": 4_000_000}]}),
        "/_stats" => json!({
            "requests": engine.requests.get(),
            "body_bytes": engine.body_bytes.get(),
            "running": engine.running.get(),
            "cancelled": engine.cancels.borrow().len(),
        }),
        "/_cancels" => cancels(engine),
        "/_set" => {
            set(engine, query);
            json!({})
        }
        _ => return json_response("404 Not Found", r#"{"error":{"message":"no such route"}}"#),
    };
    json_response("200 OK", &body.to_string())
}

fn cancels(engine: &Engine) -> Value {
    let cancels = engine.cancels.borrow();
    cancels.iter().map(|cancel| (cancel.user.clone(), json!(cancel.seen_ns))).collect()
}

fn set(engine: &Engine, query: &str) {
    let mut knobs = engine.knobs.get();
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let value: u32 = value.parse().unwrap_or_else(|_| panic!("{name} is no number"));
        match name {
            "event_gap_ms" => knobs.event_gap = Duration::from_millis(value.into()),
            "events" => knobs.events = value,
            _ => panic!("no knob {name}"),
        }
    }
    engine.knobs.set(knobs);
}
