//! A client that names no model gets the fleet's only one, the operator's default, or the model
//! that serves the operation; the backend gets its name.

use penstock_mock::{EngineModel, Flavour, MockSpec};
use serde_json::{Value, json};

use crate::support::client::{self, post};
use crate::support::engines::{backend, engine, last_body, start};
use crate::support::penstock::Penstock;

const CHAT: &str = "/v1/chat/completions";

fn nameless() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}], "input": "x", "prompt": "x"})
}

#[test]
fn the_only_model_is_the_default() {
    let engine = engine("one", &["org/real"]);
    let items = backend(&engine, "models: [{ id: m, upstream_id: org/real }]");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    for (body, sent) in [
        (r#"{"messages":[]}"#, r#"{"model":"org/real","messages":[]}"#),
        (r#" { "messages" : [] }"#, r#" {"model":"org/real", "messages" : [] }"#),
        (r#"{"model" : null,"n":1}"#, r#"{"model" : "org/real","n":1}"#),
        ("{ }", r#"{"model":"org/real" }"#),
    ] {
        let response = client::request(penstock.data, "POST", CHAT, &[], body.as_bytes());
        assert_eq!(response.status, 200, "{body}: {}", response.text());
        assert_eq!(String::from_utf8(last_body(&engine)).unwrap(), sent);
    }
    let kind = [("content-type", "multipart/form-data; boundary=XyZ")];
    let part = "--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx\r\n--XyZ--\r\n";
    let path = "/v1/audio/transcriptions";
    let response = client::request(penstock.data, "POST", path, &kind, part.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    let field = "--XyZ\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\norg/real\r\n";
    assert_eq!(String::from_utf8(last_body(&engine)).unwrap(), format!("{field}{part}"));
    let logged = post(penstock.data, CHAT, &json!({"model": "", "messages": []}));
    assert_eq!(logged.status, 400, "an empty name is an error, not a missing one");
}

#[test]
fn configured_default_serves_any_operation() {
    let engine = engine("one", &["a", "b"]);
    let items = backend(&engine, "models: [a, b]");
    let routing = "routing: { default_model: fast, aliases: { fast: b } }\n";
    let penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    for path in [CHAT, "/v1/embeddings", "/v1/messages", "/tokenize"] {
        let response = post(penstock.data, path, &nameless());
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let sent: Value = serde_json::from_slice(&last_body(&engine)).unwrap();
        assert_eq!(sent["model"], "b", "{path}: aliases apply to the default");
    }
}

#[test]
fn defaults_can_differ_by_operation() {
    let engine = engine("one", &["a", "b", "c"]);
    let items = backend(&engine, "models: [a, b, c]");
    let routing = "routing: { default_model: { embeddings: c, images: b } }\n";
    let penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    for (path, model) in [("/v1/embeddings", "c"), ("/v1/images/generations", "b")] {
        assert_eq!(post(penstock.data, path, &nameless()).status, 200, "{path}");
        let sent: Value = serde_json::from_slice(&last_body(&engine)).unwrap();
        assert_eq!(sent["model"], model, "{path}");
    }
    let response = post(penstock.data, CHAT, &nameless());
    assert_eq!((response.status, response.error_code().as_str()), (400, "missing_model"));
}

#[test]
fn without_a_default_the_error_names_the_field() {
    let engine = engine("one", &["m"]);
    let items = backend(&engine, "models: [m]");
    let penstock =
        Penstock::start(&format!("routing: {{ default_model: none }}\nbackends:\n{items}"));
    for path in [CHAT, "/v1/embeddings", "/v1/messages", "/infill"] {
        let response = post(penstock.data, path, &nameless());
        assert_eq!(response.status, 400, "{path}");
        assert!(response.text().contains("'model'"), "{}", response.text());
    }
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn optional_models_go_where_the_operation_is_served() {
    let llamacpp = start(MockSpec {
        flavour: Flavour::LlamaCpp,
        ..MockSpec::new("llamacpp", ["a", "b"].map(EngineModel::new))
    });
    let hosted = engine("hosted", &["gpt-4o", "omni-moderation"]);
    let items = backend(&llamacpp, "engine: auto") + &backend(&hosted, "engine: openai");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    for path in ["/v1/moderations", "/v1/images/generations"] {
        let response = post(penstock.data, path, &json!({"input": "x", "prompt": "x"}));
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let sent: Value = serde_json::from_slice(&last_body(&hosted)).unwrap();
        assert!(sent.get("model").is_none(), "{path}: the service picks its own: {sent}");
    }
    assert_eq!(llamacpp.counters().requests, 0, "llama.cpp serves neither");
    drop(penstock);
    let declared = "models: [gpt-4o, { id: omni-moderation, operations: [moderations] }]";
    let items = backend(&llamacpp, "engine: auto") + &backend(&hosted, declared);
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    assert_eq!(post(penstock.data, "/v1/moderations", &json!({"input": "x"})).status, 200);
    let sent: Value = serde_json::from_slice(&last_body(&hosted)).unwrap();
    assert_eq!(sent["model"], "omni-moderation", "the one that is declared to serve it");
}

#[test]
fn keys_apply_to_the_default_model() {
    let engine = engine("one", &["m"]);
    let items = backend(&engine, "models: [m]");
    let keys = "auth: { keys: [{ name: a, key: 0123456789abcdef0123, models: [other] }] }\n";
    let penstock = Penstock::start(&format!("{keys}backends:\n{items}"));
    let key = [("authorization", "Bearer 0123456789abcdef0123")];
    let body = nameless().to_string();
    let response = client::request(penstock.data, "POST", CHAT, &key, body.as_bytes());
    assert_eq!((response.status, response.error_code().as_str()), (403, "model_not_allowed"));
}
