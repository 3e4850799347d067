//! An operator forwards paths that penstock does not know, with any method and as WebSockets, to
//! one backend or by the model that a request names.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::json;

use crate::support::client::{Client, is_ok, post, request};
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::fleet::{SOON, find_metric};
use crate::support::open_engine::OpenEngine;
use crate::support::pace::pause_between_drips;
use crate::support::penstock::Penstock;

fn start(more: &str) -> (OpenEngine, OpenEngine, Penstock) {
    let (one, two) = (OpenEngine::start("one"), OpenEngine::start("two"));
    let items = one.item("engine: other, models: [m, a]") + &two.item("engine: other, models: [n]");
    let routing = "routing: { passthrough: { \"/v1/files*\": two, \"/v1/realtime\": by-model, \
                   \"/x/*\": by-model, \"/ws\": one }, aliases: { alias: n } }\n";
    let penstock = Penstock::start(&format!("{routing}{more}backends:\n{items}"));
    (one, two, penstock)
}

#[test]
fn paths_are_forwarded_to_the_named_backend() {
    let (one, two, penstock) = start("");
    for (method, path, body) in [
        ("GET", "/v1/files?limit=3", ""),
        ("POST", "/v1/files", "--b\r\nanything\r\n--b--"),
        ("DELETE", "/v1/files/file-1", ""),
        ("PUT", "/v1/files/file-1", "{\"model\": \"m\"}"),
        ("PATCH", "/v1/files/x/y", "z"),
    ] {
        let response = request(penstock.data, method, path, &[], body.as_bytes());
        assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
        let expected = json!({"served_by": "two", "method": method, "target": path, "body": body});
        assert_eq!(response.json(), expected);
        assert_eq!(two.take_requests(), [format!("{method} {path}")]);
    }
    let mut client = Client::connect(penstock.data);
    client.send("HEAD", "/v1/files", &[], b"");
    assert_eq!(client.read_head().unwrap().0, 200);
    client.send("GET", "/v1/files", &[], b"");
    assert_eq!(client.read_response().unwrap().json()["method"], "GET", "no body follows a HEAD");
    assert!(one.take_requests().is_empty());
    let name =
        "penstock_requests_total{model=\"unknown\",backend=\"two\",operation=\"passthrough\"";
    eventually("they are counted", SOON, || find_metric(&penstock, name) == Some(7.0));
}

#[test]
fn paths_are_forwarded_by_model() {
    let (_one, _two, penstock) = start("");
    for (model, server) in [("m", "one"), ("n", "two"), ("alias", "two")] {
        let response = post(penstock.data, "/x/anything", &json!({"model": model}));
        assert_eq!(response.json()["served_by"], server, "{model}: {}", response.text());
        let sent = response.json()["body"].as_str().unwrap().to_owned();
        let wanted = if model == "alias" { "n" } else { model };
        assert!(sent.contains(&format!("\"{wanted}\"")), "{sent}");
        let path = format!("/v1/realtime?model={model}");
        let response = request(penstock.data, "GET", &path, &[], b"");
        assert_eq!(response.json()["served_by"], server, "{path}: {}", response.text());
        let target = response.json()["target"].as_str().unwrap().to_owned();
        assert_eq!(target, format!("/v1/realtime?model={wanted}"), "the backend's own name");
    }
    let unnamed = request(penstock.data, "GET", "/v1/realtime", &[], b"");
    assert_eq!((unnamed.status, unnamed.error_code().as_str()), (400, "missing_model"));
    let unknown = request(penstock.data, "GET", "/v1/realtime?model=nope", &[], b"");
    assert_eq!((unknown.status, unknown.error_code().as_str()), (404, "model_not_found"));
}

#[test]
fn nothing_else_is_forwarded() {
    let (one, two, penstock) = start("");
    for path in ["/metrics", "/v1/files/../../metrics", "/v1/files/%2e%2e/x", "/v1/batches", "/"] {
        let response = request(penstock.data, "POST", path, &[], b"");
        assert_ne!(response.status, 200, "{path}");
    }
    let response =
        post(penstock.data, "/v1/chat/completions", &json!({"model": "m", "messages": []}));
    assert_eq!(response.json()["served_by"], "one", "operations stay operations");
    assert_eq!((one.take_requests().len(), two.take_requests().len()), (1, 0));
    let plain = engine("plain", &["m"]);
    let off = Penstock::start(&format!("backends:\n{}", backend(&plain, "models: [m]")));
    assert_eq!(request(off.data, "GET", "/v1/files", &[], b"").status, 404, "off by default");
}

/// A client whose connection has been switched.
pub fn open(penstock: &Penstock, target: &str, more: &str) -> Client {
    let mut client = Client::connect(penstock.data);
    client.send_bytes(
        format!(
            "GET {target} HTTP/1.1\r\nhost: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
        )
        .as_bytes(),
    );
    client
}

pub fn read_until(client: &mut Client, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let bytes = client.read_raw().unwrap();
        assert!(!bytes.is_empty(), "closed after {text:?}");
        text += &String::from_utf8_lossy(&bytes);
    }
    text
}

#[test]
fn websockets_pass_bytes_both_ways() {
    let (one, two, penstock) = start("");
    for (target, server) in
        [("/ws?x=1", "one"), ("/v1/realtime?model=n", "two"), ("/v1/realtime?model=alias", "two")]
    {
        let mut client = open(&penstock, target, "");
        let head = read_until(&mut client, &format!("{server}:"));
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        let lower = head.to_ascii_lowercase();
        for field in [
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-accept: s3p",
            "x-upstream-request-id: req_open",
        ] {
            assert!(lower.contains(field), "{field} in {head}");
        }
        client.send_bytes(b"ping\x00\xff");
        assert_eq!(client.read_raw().unwrap(), b"ping\x00\xff");
        let large = vec![b'x'; 300_000];
        let mut writer = client.stream.try_clone().unwrap();
        let sent = large.clone();
        let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let mut echoed = vec![0; large.len()];
        client.stream.read_exact(&mut echoed).unwrap();
        sender.join().unwrap();
        assert!(echoed == large);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.read_raw().unwrap(), b"", "the other side closes, too");
    }
    assert_eq!(one.take_requests(), ["UPGRADE /ws?x=1"]);
    let named = "UPGRADE /v1/realtime?model=n";
    assert_eq!(two.take_requests(), [named, named], "an alias is replaced");
}

#[test]
fn websockets_count_as_in_flight_and_end_when_idle() {
    let (_one, _two, penstock) = start("timeouts: { between_tokens: 1s }\n");
    let mut client = open(&penstock, "/ws", "");
    read_until(&mut client, "one:");
    let in_flight = || penstock.backend("one")["in_flight"].as_u64();
    assert_eq!(in_flight(), Some(1));
    for _ in 0..4 {
        pause_between_drips(Duration::from_millis(400));
        client.send_bytes(b"x");
        assert_eq!(client.read_raw().unwrap(), b"x", "bytes keep it open");
    }
    // The client waits for 20 s, the default of the timeout is 60 s.
    assert_eq!(client.read_raw().unwrap(), b"", "an orderly end");
    eventually("it is no longer in flight", SOON, || in_flight() == Some(0));
}

#[test]
fn refusal_of_a_named_backend_states_when_it_has_room() {
    let one = OpenEngine::start("one");
    let items = one.item("engine: other, max_in_flight: 1, models: [m]");
    let routing = "routing: { passthrough: { \"/ws\": one, \"/v1/files*\": one } }\n";
    let penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    let mut client = open(&penstock, "/ws", "");
    read_until(&mut client, "one:");
    // Nothing is known of how long its requests take: ten seconds each.
    for (file, wait) in [("a", "10"), ("b", "20")] {
        let body = format!("{{\"file\": \"{file}\"}}");
        let response = request(penstock.data, "POST", "/v1/files", &[], body.as_bytes());
        assert_eq!((response.status, response.header("retry-after")), (503, Some(wait)));
    }
}

#[test]
fn websockets_need_a_key() {
    let keys = "auth: { keys: [{ name: a, key: 0123456789abcdef0123 }, \
                { name: b, key: 0123456789abcdef0124, models: [m] }] }\n";
    let (_one, _two, penstock) = start(keys);
    let refused = |target: &str, more: &str| open(&penstock, target, more).read_response().unwrap();
    assert_eq!(refused("/ws", "").status, 401);
    let limited = "authorization: Bearer 0123456789abcdef0124\r\n";
    assert_eq!(refused("/ws", limited).status, 403, "its models cannot be checked there");
    assert_eq!(refused("/v1/realtime?model=n", limited).status, 403);
    let full = "authorization: Bearer 0123456789abcdef0123\r\n";
    for (target, fields, server) in
        [("/ws", full, "one:"), ("/v1/realtime?model=m", limited, "one:")]
    {
        read_until(&mut open(&penstock, target, fields), server);
    }
}

#[test]
fn a_refused_upgrade_is_relayed() {
    let plain = engine("plain", &["m"]);
    let routing = "routing: { passthrough: { \"/ws\": plain } }\n";
    let penstock =
        Penstock::start(&format!("{routing}backends:\n{}", backend(&plain, "models: [m]")));
    let mut client = open(&penstock, "/ws", "");
    assert_eq!(client.read_response().unwrap().status, 404, "the engine's own response");
}

#[test]
fn websockets_are_closed_in_order_on_shutdown() {
    let (one, two) = (OpenEngine::start("one"), OpenEngine::start("two"));
    let items = one.item("models: [m]") + &two.item("models: [n]");
    let routing = "routing: { passthrough: { \"/ws\": one } }\n";
    // The support starts penstock with `drain_timeout: 5s`.
    let mut penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    let mut client = open(&penstock, "/ws", "");
    read_until(&mut client, "one:");
    penstock.signal("TERM");
    eventually("it drains", SOON, || !is_ok(penstock.admin, "/health/ready"));
    client.send_bytes(b"still");
    assert_eq!(client.read_raw().unwrap(), b"still", "open connections may go on for a while");
    assert_eq!(client.read_raw().unwrap(), b"", "an orderly end, no reset");
    assert!(penstock.wait_end(Duration::from_secs(20)).success());
    let log = penstock.log();
    assert!(log.contains("drained, exiting"), "it ended before the timeout cut it: {log}");
}

/// The status of a request to switch to a protocol, as the client gets it.
fn switched(penstock: &Penstock, path: &str, upgrade: &str) -> u16 {
    let mut client = Client::connect(penstock.data);
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13";
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: t\r\nConnection: Upgrade\r\n{upgrade}{key}\r\n\r\n");
    client.send_bytes(head.as_bytes());
    client.read_status()
}

#[test]
fn only_websockets_are_connected_through() {
    let (one, two, penstock) = start("");
    for token in ["websocket", "WebSocket", "WEBSOCKET"] {
        let upgrade = format!("Upgrade: {token}\r\n");
        assert_eq!(switched(&penstock, "/ws", &upgrade), 101, "{token}");
        assert_eq!(one.take_requests(), ["UPGRADE /ws"], "{token}");
    }
    for upgrade in [
        "Upgrade: h2c\r\n",
        "Upgrade: foo\r\n",
        "Upgrade: websocket, h2c\r\n",
        "Upgrade: h2c, websocket\r\n",
        "Upgrade: websocket/13\r\n",
        "Upgrade: TLS/1.0\r\n",
        "Upgrade: websocket\r\nUpgrade: h2c\r\n",
    ] {
        let mut client = Client::connect(penstock.data);
        let head = format!("GET /ws HTTP/1.1\r\nhost: t\r\nConnection: Upgrade\r\n{upgrade}\r\n");
        client.send_bytes(head.as_bytes());
        assert_eq!(client.read_response().unwrap().status, 200, "{upgrade}: an ordinary request");
        assert_eq!(one.take_requests(), ["GET /ws"], "{upgrade}");
    }
    for path in ["/ws", "/v1/files", "/v1/chat/completions", "/x/a?model=m"] {
        let response = request(penstock.data, "TRACE", path, &[], b"");
        assert_eq!(response.status, 405, "{path}: {}", response.text());
    }
    assert!(one.take_requests().is_empty() && two.take_requests().is_empty());
}

#[test]
fn methods_that_penstock_does_not_serve_are_forwarded() {
    let one = OpenEngine::start("one");
    let routing = "routing: { passthrough: { \"/v1/*\": one, \"/*\": one } }\n";
    let penstock = Penstock::start(&format!("{routing}backends:\n{}", one.item("models: [m]")));
    one.take_requests();
    for (method, path) in [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/models/m:generateContent"),
        ("GET", "/v1/chat/completions?limit=2"),
        ("DELETE", "/v1/chat/completions/chatcmpl-1"),
        ("PATCH", "/v1/responses/resp_1"),
        ("PUT", "/api/chat"),
        ("POST", "/health"),
    ] {
        let response = request(penstock.data, method, path, &[], b"{}");
        assert_ne!(response.status, 405, "{method} {path}: {}", response.text());
        assert_eq!(one.take_requests(), [format!("{method} {path}")]);
    }
    for (method, path) in [("GET", "/v1/models"), ("GET", "/health"), ("GET", "/v1/models/m")] {
        assert_eq!(request(penstock.data, method, path, &[], b"").status, 200);
        assert!(one.take_requests().is_empty(), "{path} is penstock's own");
    }
}

#[test]
fn websocket_on_a_path_of_penstock_gets_426() {
    let (one, _two, penstock) = start("");
    for path in ["/v1/responses", "/v1/chat/completions"] {
        let mut client = open(&penstock, path, "");
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (426, "upgrade_required"));
        assert!(response.header("upgrade").is_some());
        client.send("GET", "/v1/models", &[], b"");
        assert_eq!(client.read_response().unwrap().status, 200, "the connection goes on");
    }
    assert!(one.take_requests().is_empty());
    let routing = "routing: { passthrough: { \"/v1/responses\": one } }\n";
    let passing = Penstock::start(&format!("{routing}backends:\n{}", one.item("models: [m]")));
    assert_eq!(switched(&passing, "/v1/responses", "Upgrade: websocket\r\n"), 101);
}

#[test]
fn models_are_deleted_by_those_who_may_manage_them() {
    let one = OpenEngine::start("one");
    let keys =
        "auth: { keys: [{ name: a, key: k1 }, { name: b, key: k2, manage_models: true }] }\n";
    let routing = "routing: { passthrough: { \"/v1/*\": one, \"/other/*\": by-model } }\n";
    let penstock =
        Penstock::start(&format!("{keys}{routing}backends:\n{}", one.item("models: [m]")));
    one.take_requests();
    let send = |key: &str, path: &str| {
        let key = format!("Bearer {key}");
        request(penstock.data, "DELETE", path, &[("authorization", &key)], b"")
    };
    for path in ["/v1/models/m", "/v1/Models/m", "/other/models/m?model=m", "/v1/model%73/m"] {
        let refused = send("k1", path);
        assert_eq!(
            (refused.status, refused.error_code().as_str()),
            (403, "management_not_allowed")
        );
        assert!(one.take_requests().is_empty(), "{path}");
        assert_eq!(send("k2", path).status, 200, "{path}");
        assert_eq!(one.take_requests().len(), 1, "{path}");
    }
    assert_eq!(send("k1", "/v1/files/file-1").status, 200, "other things may be deleted");
}
