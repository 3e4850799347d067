//! An OpenAI client behind penstock gets each response from a backend that can give it, unchanged.

use penstock_mock::{EngineModel, MockEngine, MockSpec};
use serde_json::json;

use crate::support::block_on;
use crate::support::client::{self, chat, streaming_chat};
use crate::support::penstock::Penstock;

fn engine(model: &str) -> MockEngine {
    block_on(MockEngine::start_local(MockSpec::new("one", [EngineModel::new(model)]))).unwrap()
}

fn config(engine: &MockEngine) -> String {
    format!(
        "routing: {{ aliases: {{ gpt-4: m }} }}\n\
         backends: [{{ name: one, url: {}, models: [{{ id: m, capabilities: [vision, tools, json_mode] }}] }}]",
        engine.url()
    )
}

#[test]
fn response_is_relayed_unchanged() {
    let engine = engine("m");
    let penstock = Penstock::start(&config(&engine));
    let through = penstock.chat("m");
    let direct = client::post(engine.addr(), "/v1/chat/completions", &chat("m", "hello"));
    assert_eq!(through.status, 200);
    assert_eq!(through.json()["choices"], direct.json()["choices"]);
    assert!(through.header("x-request-id").is_some());
    assert_eq!(through.header("content-type"), direct.header("content-type"));
}

#[test]
fn stream_is_relayed_byte_for_byte() {
    let engine = engine("m");
    let penstock = Penstock::start(&config(&engine));
    let body = streaming_chat("m", "hello");
    let through = penstock.post("/v1/chat/completions", &body);
    let direct = client::post(engine.addr(), "/v1/chat/completions", &body);
    assert!(through.is_whole);
    assert_eq!(through.text(), direct.text());
    assert_eq!(through.header("x-accel-buffering"), Some("no"));
    assert_eq!(through.header("cache-control"), Some("no-cache"));
}

#[test]
fn alias_changes_only_the_model_value() {
    let engine = engine("m");
    let penstock = Penstock::start(&config(&engine));
    let body = br#"{ "stream":false,"model" : "gpt-4", "messages":[{"role":"user","content":"a\u0041 \"gpt-4\""}],  "x":1.50 }"#;
    let response = client::request(penstock.data, "POST", "/v1/chat/completions", &[], body);
    assert_eq!(response.status, 200, "{}", response.text());
    let expected =
        String::from_utf8_lossy(body).replacen("\"model\" : \"gpt-4\"", "\"model\" : \"m\"", 1);
    let received = engine.received().pop().unwrap();
    assert_eq!(received.body.unwrap(), expected.as_bytes());
    assert_eq!(received.headers.iter().filter(|(name, _)| name == "content-length").count(), 1);
}

#[test]
fn bodies_of_every_size_arrive_byte_for_byte() {
    let engine = engine("m");
    let penstock = Penstock::start(&config(&engine));
    for size in [100, 1023, 1024, 4096, 65_535, 65_536, 65_537, 131_073, 1 << 20, 20 << 20] {
        let text = "x".repeat(size);
        let body = json!({"model": "m", "input": text, "max_tokens": 1}).to_string();
        for is_chunked in [false, true] {
            let mut client = client::Client::connect(penstock.data);
            if is_chunked {
                let head =
                    "POST /v1/embeddings HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
                let mut bytes = head.as_bytes().to_vec();
                for part in body.as_bytes().chunks(10_007) {
                    bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                    bytes.extend_from_slice(part);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
                client.send_bytes(&bytes);
            } else {
                client.send("POST", "/v1/embeddings", &[], body.as_bytes());
            }
            let response = client.read_response().unwrap();
            assert!(
                response.status == 200 || response.status == 400,
                "{size}: {}",
                response.text()
            );
            let received = engine.received().pop().unwrap();
            assert_eq!(received.body.unwrap().len(), body.len(), "{size}");
            assert_eq!(engine.received().pop().unwrap().body.unwrap(), body.as_bytes());
        }
    }
    assert!(engine.malformed().is_empty());
}
