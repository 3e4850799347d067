//! Isolation: error responses reveal no internals, a request cannot choose another backend, the
//! data port serves no admin endpoint, and concurrent clients each get their own responses.

use std::net::TcpListener;

use penstock_mock::{Cut, Fault};
use serde_json::json;

use crate::support::block_on;
use crate::support::client::{Client, Response, chat, request, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Setup};

fn head_and_body(response: &Response) -> String {
    let head = response.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
    head.collect::<String>() + &response.text()
}

#[test]
fn errors_reveal_no_address_path_or_panic() {
    let sections =
        "timeouts: { connect: 300ms, first_token: 300ms, response: 300ms, between_tokens: 300ms }";
    let fleet = Fleet::start(1, Setup { sections, routing: "max_retries: 0", ..Setup::default() });
    let mut responses = Vec::new();
    let faults = [
        Fault::CloseOnAccept,
        Fault::CloseUnread,
        Fault::CloseAfterRequest,
        Fault::ResetAfterRequest,
        Fault::HangBeforeHead,
        Fault::Garbage,
        Fault::Switching101,
        Fault::TwoLengths,
        Fault::BigHead { bytes: 200_000 },
        Fault::CutStream { after_events: 2, how: Cut::Reset },
        Fault::HangMidStream { after_events: 2 },
    ];
    for fault in faults {
        fleet.a().script([fault.clone()]);
        let response = fleet.stream();
        assert!(response.text().contains("\"error\""), "{fault:?}: {}", response.text());
        responses.push(head_and_body(&response));
        fleet.a().clear();
    }
    let data = fleet.penstock.data;
    for body in ["{", "[]", "\u{0}", r#"{"model":7}"#, r#"{"model":"unknown"}"#, ""] {
        responses.push(head_and_body(&request(data, "POST", CHAT, &[], body.as_bytes())));
    }
    for (method, path) in [("GET", "/etc/passwd"), ("PUT", CHAT), ("GET", "/v1/models/x")] {
        responses.push(head_and_body(&request(data, method, path, &[], b"")));
    }
    let mut client = Client::connect(data);
    client.send_bytes(b"nonsense\r\n\r\n");
    responses.push(String::from_utf8_lossy(&client.read_raw().unwrap_or_default()).into_owned());
    let (address, port) = (fleet.a().addr(), fleet.a().addr().port().to_string());
    block_on(fleet.a().kill()).unwrap();
    responses.push(head_and_body(&fleet.chat()));
    let root = env!("CARGO_MANIFEST_DIR");
    let names = [&address.to_string(), &port, root, "127.0.0.1", ".rs", "panick", "thread '"];
    for text in responses {
        // The response may contain what its client sent, and no more.
        let text = text.replace("/etc/passwd", "");
        for name in names {
            assert!(!text.contains(name), "{name} in\n{text}");
        }
        assert!(!text.contains("/src/") && !text.contains("/home/"), "{text}");
    }
    assert!(!fleet.penstock.log().contains("panicked"), "{}", fleet.penstock.log());
}

/// Sends the request with foreign addresses in its head; returns how many were served.
fn request_by_other_names(fleet: &Fleet, target: &str, body: &str) -> usize {
    let mut sent = 0;
    for host in [target, "169.254.169.254", "localhost:22", "[::1]:1", "user@evil.example"] {
        let mut client = Client::connect(fleet.penstock.data);
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send_bytes(head.as_bytes());
        let status = client.read_response().unwrap().status;
        assert!(matches!(status, 200 | 400), "{host}: {status}");
        sent += usize::from(status == 200);
    }
    for line in [
        format!("POST http://{target}/v1/chat/completions HTTP/1.1"),
        format!("POST //{target}{CHAT} HTTP/1.1"),
        format!("GET http://{target}/v1/models HTTP/1.1"),
        format!("CONNECT {target} HTTP/1.1"),
    ] {
        let mut client = Client::connect(fleet.penstock.data);
        let length = body.len();
        let head = format!("{line}\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
        client.send_bytes(head.as_bytes());
        if client
            .read_response()
            .is_ok_and(|response| response.status == 200 && line.starts_with("POST"))
        {
            sent += 1;
        }
    }
    sent
}

#[test]
fn request_cannot_choose_another_backend() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let target = elsewhere.local_addr().unwrap().to_string();
    let url = format!("http://{target}/v1");
    let fleet = Fleet::start(1, Setup::default());
    let mut body = chat("m", "hello");
    for key in ["api_base", "base_url", "url", "endpoint", "host", "upstream", "backend", "proxy"] {
        body[key] = json!(url);
    }
    body["extra_body"] = json!({"api_base": url});
    let body = body.to_string();
    let headers = [
        "x-upstream",
        "x-upstream-url",
        "x-forwarded-host",
        "x-forwarded-server",
        "forwarded",
        "x-original-url",
        "x-rewrite-url",
        "x-host",
        "x-penstock-backend",
        "x-api-base",
        "x-gateway-destination-endpoint",
        "proxy",
        "location",
        "destination",
    ];
    let mut sent = 0;
    for name in headers {
        for value in [target.as_str(), &url] {
            let response =
                request(fleet.penstock.data, "POST", CHAT, &[(name, value)], body.as_bytes());
            assert_eq!(response.status, 200, "{name}: {value}: {}", response.text());
            sent += 1;
        }
    }
    sent += request_by_other_names(&fleet, &target, &body);
    assert_eq!(fleet.requests(), sent, "all of them went to the one backend there is");
    assert!(elsewhere.accept().is_err(), "no connection was made there");
}

#[test]
fn data_port_serves_no_admin_endpoint() {
    let fleet = Fleet::start(1, Setup::default());
    let index = fleet.penstock.admin("/").text();
    let lines = index.lines().filter(|line| line.starts_with("GET") || line.starts_with("POST"));
    let mut count = 0;
    for line in lines {
        let mut words = line.split_whitespace();
        let (verb, path) = (words.next().unwrap(), words.next().unwrap().replace("{name}", "a"));
        // Of the paths both ports have, one shows counts only, and one nothing about the fleet.
        if path == "/health" || path == "/" {
            continue;
        }
        let response = request(fleet.penstock.data, verb, &path, &[], b"");
        // Paths of Ollama's API have its errors, which are text.
        let text = response.text();
        assert!(response.status == 404 && text.contains("Unknown path"), "{line}: {text}");
        count += 1;
    }
    assert!(count >= 11, "{count} paths");
    assert_eq!(fleet.fact("a", "health"), "healthy", "no backend was drained");
    let json = [("accept", "application/json")];
    let root = request(fleet.penstock.data, "GET", "/", &json, b"").json();
    let mut keys: Vec<&String> = root.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["description", "documentation", "health", "models", "name"], "{root}");
    let health = fleet.penstock.get("/health").json();
    assert_eq!(health, json!({"status": "healthy", "backends": {"total": 1, "healthy": 1}}));
}

#[test]
fn own_key_is_masked_where_a_backend_quotes_it() {
    const KEY: &str = "sk-upstream-0123456789";
    let quote = format!("{{\"error\":{{\"message\":\"bad key {KEY}\"}}}}");
    let fault = |status| Fault::Status {
        status,
        retry_after: None,
        body: quote.clone(),
        headers: vec![("x-echo".to_owned(), format!("Bearer {KEY}"))],
    };
    let backend = format!("api_key: {KEY}");
    for status in [200, 401, 409, 429, 500] {
        // A new one each: some of the errors pause their backend.
        let fleet = Fleet::start(1, Setup { backend: &backend, ..Setup::default() });
        fleet.a().script([fault(status)]);
        let response = fleet.chat();
        let shown = head_and_body(&response);
        assert!(!shown.contains(KEY) && shown.contains("Bearer ***"), "{status}: {shown}");
        assert_eq!(response.text().len(), quote.len(), "{status}");
    }
}

/// A response that says in head and body whose request it belongs to.
fn request_as(fleet: &Fleet, number: usize, client: &mut Client) {
    let own = format!("client-{number}-only");
    let body = match number % 2 {
        0 => chat("m", &own),
        _ => streaming_chat("m", &own),
    };
    let id = format!("id-{number}");
    let headers = [("x-request-id", id.as_str()), ("x-mine", own.as_str())];
    client.send("POST", CHAT, &headers, body.to_string().as_bytes());
    let response = client.read_response().unwrap();
    assert_eq!((response.status, response.is_whole), (200, true), "{number}");
    assert_eq!(response.header("x-request-id"), Some(id.as_str()));
    let kind = response.header("content-type").unwrap_or_default();
    assert_eq!(kind.starts_with("text/event-stream"), number % 2 == 1, "{number}: {kind}");
    assert_eq!(response.text(), fleet_response(fleet, number), "{number}");
}

/// Returns the response of the engine itself to that client.
fn fleet_response(fleet: &Fleet, number: usize) -> String {
    let own = format!("client-{number}-only");
    let body = if number.is_multiple_of(2) { chat("m", &own) } else { streaming_chat("m", &own) };
    crate::support::client::post(fleet.a().addr(), CHAT, &body).text()
}

#[test]
fn concurrent_clients_get_their_own_responses() {
    const CLIENTS: usize = 400;
    let fleet = Fleet::start(1, Setup::default());
    let gate = std::sync::Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (fleet, gate) = (&fleet, &gate);
            let crowd = std::thread::Builder::new().stack_size(256 * 1024);
            crowd
                .spawn_scoped(scope, move || {
                    let mut client = Client::connect(fleet.penstock.data);
                    gate.wait();
                    request_as(fleet, number, &mut client);
                    request_as(fleet, number, &mut client);
                })
                .unwrap();
        }
    });
    for received in fleet.a().received() {
        let Some(id) = received.header("x-request-id") else { continue };
        let number = id.strip_prefix("id-").unwrap();
        let own = format!("client-{number}-only");
        assert_eq!(received.header("x-mine"), Some(own.as_str()), "{id}");
        let body = received.body.as_deref().unwrap_or_default();
        assert!(String::from_utf8_lossy(body).contains(&own), "{id}: another's body");
    }
}
