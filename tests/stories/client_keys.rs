//! Client keys that are hashes, start and expire: a client whose key is refused learns the reason
//! in the form of its API.

use serde_json::{Value, json};

use crate::support::client::{Response, chat, request};
use crate::support::engines::{backend, engine};
use crate::support::penstock::Penstock;

/// A path of each API, and where its errors have their code.
const PATHS: [&str; 5] =
    ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/api/chat"];

/// Sends a request with a key.
pub fn send(penstock: &Penstock, path: &str, key: &str) -> Response {
    let bearer = format!("Bearer {key}");
    let mut body = chat("m", "hello");
    body["max_tokens"] = json!(3);
    body["input"] = json!("hello");
    let headers = [("authorization", &*bearer)];
    request(penstock.data, "POST", path, &headers, body.to_string().as_bytes())
}

/// Checks that a key is refused for one reason on the paths of every API.
pub fn assert_refused(penstock: &Penstock, key: &str, status: u16, code: &str, words: &str) {
    for path in PATHS {
        let response = send(penstock, path, key);
        let text = response.text();
        assert_eq!(response.status, status, "{path}: {text}");
        assert!(text.contains(words) && !text.contains(key), "{path}: {text}");
        match path {
            "/v1/messages" => {
                let body = response.json();
                let kind = if status == 401 { "authentication_error" } else { "permission_error" };
                assert_eq!(
                    (&body["type"], &body["error"]["type"]),
                    (&json!("error"), &json!(kind))
                );
            }
            "/api/chat" => assert!(matches!(response.json()["error"], Value::String(_)), "{text}"),
            _ => assert_eq!(response.error_code(), code, "{path}"),
        }
    }
}

#[test]
fn hashes_of_the_file_stand_for_their_keys() {
    let engine = engine("one", &["m"]);
    let items = backend(&engine, "models: [m]");
    // printf %s sk-hashed-1 | sha256sum
    let hash = "98d713413ee057f11d8d05a871c22b77a18b4ceeb72853707e1c2f8e2a9582e6";
    let keys = format!("[{{ name: a, hash: \"sha256:{hash}\", team: red, note: by hash }}]");
    let penstock = Penstock::start(&format!("auth: {{ keys: {keys} }}\nbackends:\n{items}"));
    assert_eq!(send(&penstock, PATHS[0], "sk-hashed-1").status, 200);
    assert_eq!(send(&penstock, PATHS[0], "sk-hashed-2").status, 401);
    assert_eq!(send(&penstock, PATHS[0], hash).status, 401, "the hash is no key");
    let shown = request(penstock.admin, "GET", "/config", &[], b"").text();
    assert!(!shown.contains("98d713"), "{shown}");
}

#[test]
fn keys_outside_their_time_say_so() {
    let engine = engine("one", &["m"]);
    let items = backend(&engine, "models: [m]");
    let keys = "[{ name: old, key: sk-old-1, expires_at: 2024-02-29T12:00:00+02:00 },
        { name: new, key: sk-new-1, not_before: 2999-01-01T00:00:00Z },
        { name: now, key: sk-now-1, not_before: 2024-01-01T00:00:00Z,
          expires_at: 2999-01-01T00:00:00Z }]";
    let penstock = Penstock::start(&format!("auth: {{ keys: {keys} }}\nbackends:\n{items}"));
    assert_refused(&penstock, "sk-old-1", 401, "key_expired", "expired at 2024-02-29T10:00:00Z");
    let words = "valid from 2999-01-01T00:00:00Z";
    assert_refused(&penstock, "sk-new-1", 401, "key_not_yet_valid", words);
    assert_eq!(send(&penstock, PATHS[0], "sk-now-1").status, 200);
    assert_eq!(engine.counters().requests, 1);
}
