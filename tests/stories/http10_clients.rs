//! Clients of HTTP/1.0 (`ab`, old monitors, scripts that read to the end) get a response that ends:
//! the connection is kept only if they ask for it.

use std::io::Read;

use serde_json::json;

use crate::support::client::{Client, chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Setup, reference};

/// Reads until the other side closes. The client waits for 20 s: less than `server.keep_alive`
/// (100 s) and the idle timeout of the admin port (60 s).
fn read_to_end(client: &mut Client) -> String {
    let mut bytes = Vec::new();
    client.stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn post(version: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {CHAT} {version}\r\nHost: t\r\nContent-Length: {length}\r\n{fields}\r\n{body}")
        .into_bytes()
}

#[test]
fn connection_closes_unless_keep_alive_is_requested() {
    let fleet = Fleet::start(1, Setup::default());
    let body = chat("m", "hello").to_string();
    let chat = post("HTTP/1.0", "", &body);
    for (request, status) in [
        (&b"GET /health HTTP/1.0\r\n\r\n"[..], 200),
        (b"GET /v1/models HTTP/1.0\r\nConnection: x-private\r\n\r\n", 200),
        (b"GET /nowhere HTTP/1.0\r\n\r\n", 404),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", 200),
        (&chat, 200),
    ] {
        let mut client = Client::connect(fleet.penstock.data);
        client.send_bytes(request);
        let text = read_to_end(&mut client);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        assert!(text.to_lowercase().contains("\r\nconnection: close\r\n"), "{text}");
    }
}

#[test]
fn requested_keep_alive_is_kept() {
    let fleet = Fleet::start(1, Setup::default());
    let body = chat("m", "hello").to_string();
    let mut client = Client::connect(fleet.penstock.data);
    for _ in 0..3 {
        client.send_bytes(&post("HTTP/1.0", "Connection: Keep-Alive\r\n", &body));
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("connection"), Some("keep-alive"));
    }
    client.send_bytes(b"GET /health HTTP/1.0\r\n\r\n");
    assert!(read_to_end(&mut client).contains("healthy"));
}

#[test]
fn admin_port_does_the_same() {
    let fleet = Fleet::start(1, Setup::default());
    for path in ["/metrics", "/health/live", "/nowhere"] {
        let mut client = Client::connect(fleet.penstock.admin);
        client.send_bytes(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        let text = read_to_end(&mut client);
        assert!(text.to_lowercase().contains("\r\nconnection: close\r\n"), "{text}");
    }
    let mut client = Client::connect(fleet.penstock.admin);
    for _ in 0..2 {
        client.send_bytes(b"GET /health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(client.read_response().unwrap().header("connection"), Some("keep-alive"));
    }
}

#[test]
fn streams_end_with_the_connection() {
    let fleet = Fleet::start(1, Setup::default());
    let body = streaming_chat("m", "hello");
    let whole = reference("a", CHAT, &body).text();
    for fields in ["", "Connection: keep-alive\r\n"] {
        let mut client = Client::connect(fleet.penstock.data);
        client.send_bytes(&post("HTTP/1.0", fields, &body.to_string()));
        let text = read_to_end(&mut client);
        let (head, stream) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(stream, whole);
        let head = head.to_lowercase();
        assert!(head.contains("connection: close"), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
    }
}

#[test]
fn http11_close_is_obeyed() {
    let fleet = Fleet::start(1, Setup::default());
    let body = json!({"model": "m", "input": "x"}).to_string();
    for fields in ["Connection: close\r\n", "Connection: x-private, Close\r\n"] {
        let mut client = Client::connect(fleet.penstock.data);
        client.send_bytes(&post("HTTP/1.1", fields, &body));
        let text = read_to_end(&mut client);
        assert!(text.to_lowercase().contains("connection: close"), "{text}");
    }
}
