//! A key of the store and a token of an identity provider are checked on every request, whatever
//! carries it: a connection of HTTP/2 that many clients share, and a WebSocket.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::key_store::{CHAT, admin, create};
use super::passthrough::{open, read_until};
use crate::support::client::chat;
use crate::support::free_address;
use crate::support::http2::{End, Http2};
use crate::support::identity_provider::{Provider, SigningKey};
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::{Penstock, scratch};

const ISSUER: &str = "https://login.example.com/tenant";
const SWITCHED: &str = "HTTP/1.1 101 ";

/// A penstock, and a key and a token that it lets in.
struct Scene {
    engine: OpenEngine,
    penstock: Penstock,
    /// A listener that speaks HTTP/2.
    http2: SocketAddr,
    _provider: Provider,
    id: String,
    key: String,
    token: String,
}

impl Scene {
    fn start() -> Self {
        let engine = OpenEngine::start("one");
        let signing = SigningKey::ed25519("k");
        let provider = Provider::start(ISSUER, &[&signing]);
        let http2 = free_address();
        let listener = format!("{{ address: \"{http2}\", http2: true }}");
        let yaml = format!(
            "auth: {{ store: {}, jwt: [{}], failures_per_minute: none }}\n\
             routing: {{ passthrough: {{ \"/ws\": one }} }}\nbackends:\n{}",
            scratch("keys.db").display(),
            provider.yaml(""),
            engine.item("models: [m]"),
        );
        let penstock = Penstock::start_listening(&[listener], "", &yaml);
        let (id, key) = create(&penstock, &json!({ "name": "a" }));
        let mut claims = provider.claims("alice");
        claims["jti"] = json!("t-1");
        let token = signing.token(&claims);
        engine.take_requests();
        Self { engine, penstock, http2, _provider: provider, id, key, token }
    }

    fn secrets(&self) -> [&str; 2] {
        [&self.key, &self.token]
    }

    fn revoke_both(&self) {
        let revoked = admin(&self.penstock, "DELETE", &format!("/keys/{}", self.id), &Value::Null);
        assert_eq!(revoked.status, 200, "{}", revoked.text());
        let token = json!({ "jti": "t-1", "issuer": ISSUER });
        let revoked = admin(&self.penstock, "POST", "/revoked_tokens", &token);
        assert_eq!(revoked.status, 201, "{}", revoked.text());
    }
}

#[test]
fn each_request_of_an_http2_connection_is_checked() {
    let scene = Scene::start();
    let client = Http2::connect(scene.http2);
    let body = chat("m", "hello").to_string();
    let send = |name: &str, secret: &str| {
        let value =
            if name == "authorization" { format!("Bearer {secret}") } else { secret.into() };
        let headers = [("content-type", "application/json"), (name, &*value)];
        let (response, end) = client.post_bytes(CHAT, &headers, body.as_bytes());
        assert_eq!(end, End::Whole, "{response:?}");
        response
    };
    for name in ["authorization", "x-api-key"] {
        for secret in scene.secrets() {
            assert_eq!(send(name, secret).status, 200, "{name}");
            assert_eq!(send(name, "sk-wrong").status, 401, "{name}: not the client before");
            assert_eq!(send(name, &format!("{secret}x")).status, 401, "{name}");
        }
    }
    assert_eq!(client.get("/v1/models").status, 401, "no key");
    assert_eq!(scene.engine.take_requests().len(), 4);
    scene.revoke_both();
    for secret in scene.secrets() {
        let refused = send("authorization", secret);
        assert_eq!((refused.status, refused.error_code().as_str()), (401, "key_revoked"));
    }
    assert_eq!(scene.engine.take_requests(), Vec::<String>::new());
}

#[test]
fn websockets_are_opened_by_keys_and_tokens_that_are_valid() {
    let scene = Scene::start();
    let fields = |secret: &str| {
        [
            format!("authorization: Bearer {secret}\r\n"),
            format!("sec-websocket-protocol: realtime, openai-insecure-api-key.{secret}\r\n"),
        ]
    };
    let mut opened = Vec::new();
    for secret in scene.secrets() {
        for field in fields(secret) {
            let mut client = open(&scene.penstock, "/ws", &field);
            let head = read_until(&mut client, "one:");
            assert!(head.starts_with(SWITCHED) && !head.contains(secret), "{head}");
            opened.push(client);
        }
        for field in fields(&format!("{secret}x")) {
            let refused = open(&scene.penstock, "/ws", &field).read_response().unwrap();
            assert_eq!(refused.status, 401, "{}", refused.text());
        }
    }
    scene.engine.take_requests();
    scene.revoke_both();
    for field in scene.secrets().into_iter().flat_map(fields) {
        let refused = open(&scene.penstock, "/ws", &field).read_response().unwrap();
        assert_eq!((refused.status, refused.error_code().as_str()), (401, "key_revoked"));
    }
    assert_eq!(scene.engine.take_requests(), Vec::<String>::new());
    for client in &mut opened {
        client.send_bytes(b"still here");
        assert_eq!(client.read_raw().unwrap(), b"still here", "one that is open goes on");
    }
}
