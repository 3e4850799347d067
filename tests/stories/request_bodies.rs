//! Bodies in every framing: sizes at and above the limit, chunked ones, `Expect`, several on one
//! connection. What is refused gets a readable error and is never parsed as another request.

use std::io::{ErrorKind, Write};
use std::thread;

use serde_json::Value;

use crate::request_validation::{CHAT, assert_openai_error, send, start};
use crate::support::client::{Client, chat};

#[test]
fn depth_bombs_are_refused_after_a_few_bytes() {
    let (engine, penstock) = start("");
    let million = 1_000_000;
    for bomb in [
        "[".repeat(million),
        "{\"a\":".repeat(million),
        format!("{}1{}", "[".repeat(million), "]".repeat(million)),
        "[{\"a\":".repeat(million / 2),
    ] {
        for frame in ["{\"model\":\"m\",\"messages\":@}", "{\"model\":\"m\",\"tools\":@}", "@"] {
            let body = frame.replace('@', &bomb);
            let response = send(&penstock, body.as_bytes());
            assert_eq!(response.status, 400, "{}", response.text());
            let message = response.json()["error"]["message"].to_string();
            let (_, offset) =
                message.rsplit_once(" at byte ").unwrap_or_else(|| panic!("{message}"));
            let digits: String = offset.chars().take_while(char::is_ascii_digit).collect();
            assert!(digits.parse::<usize>().unwrap() < 1000, "{message}");
        }
    }
    let fits = |depth: usize| {
        let value = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        format!("{{\"model\":\"m\",\"messages\":[],\"x\":{value}}}")
    };
    assert_eq!(engine.counters().requests, 0);
    assert_eq!(send(&penstock, fits(100).as_bytes()).status, 200, "a hundred levels are fine");
    assert_eq!(send(&penstock, fits(200).as_bytes()).status, 400);
}

#[test]
fn oversized_bodies_get_a_readable_413() {
    let (engine, penstock) = start("limits: { max_body_size: 1MiB }");
    // Announced: refused before a byte of it is sent.
    let mut client = Client::connect(penstock.data);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: 10737418240\r\n\r\n");
    client.send_bytes(head.as_bytes());
    let response = client.read_response().unwrap();
    assert_openai_error(&response, 413, "body_too_large", "announced");
    assert!(response.text().contains("1MiB"), "{}", response.text());
    assert_eq!(response.header("connection"), Some("close"));
    // Sent without waiting: the client writes all of it and can still read the response.
    let body = vec![b' '; (1 << 20) + 1];
    assert_openai_error(&send(&penstock, &body), 413, "body_too_large", "by one byte");
    let body = vec![b' '; 20 << 20];
    assert_openai_error(&send(&penstock, &body), 413, "body_too_large", "by far");
    // Chunked: refused as soon as it is too much.
    let mut client = Client::connect(penstock.data);
    client.send_bytes(
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes(),
    );
    let chunk = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..17 {
        client.send_bytes(&chunk);
    }
    assert_openai_error(&client.read_response().unwrap(), 413, "body_too_large", "chunked");
    for length in ["99999999999999999999999", "18446744073709551616"] {
        let mut client = Client::connect(penstock.data);
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {length}\r\n\r\n");
        client.send_bytes(head.as_bytes());
        let refused = client.read_response().map(|response| response.status);
        assert!(refused.as_ref().map_or(true, |status| matches!(status, 400 | 413)), "{refused:?}");
    }
    assert_eq!(engine.counters().requests, 0);
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn bodies_up_to_the_limit_pass() {
    let (engine, penstock) = start("limits: { max_body_size: 1MiB }");
    let mut body = chat("m", "x").to_string().into_bytes();
    body.resize(1 << 20, b' ');
    let response = send(&penstock, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(engine.received().pop().unwrap().body.unwrap().len(), 1 << 20);
}

fn chunked(parts: &[&[u8]], extension: &str) -> Vec<u8> {
    in_chunks("", parts, extension)
}

/// A chat request with `fields`, in chunks.
pub(crate) fn in_chunks(fields: &str, parts: &[&[u8]], extension: &str) -> Vec<u8> {
    let framing = "transfer-encoding: chunked";
    let mut bytes =
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\n{fields}{framing}\r\n\r\n").into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("{:X}{extension}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

#[test]
fn chunked_bodies_arrive_whole() {
    let (engine, penstock) = start("");
    let body = chat("m", "hello, chunks").to_string().into_bytes();
    let single: Vec<&[u8]> = body.chunks(1).collect();
    let mut client = Client::connect(penstock.data);
    for (parts, extension) in [(vec![&body[..]], ""), (single.clone(), ""), (single, ";a=b")] {
        // In writes of seven bytes, on one connection.
        for part in chunked(&parts, extension).chunks(7) {
            client.send_bytes(part);
        }
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        let received = engine.received().pop().unwrap();
        assert_eq!(received.header("content-length"), Some(body.len().to_string().as_str()));
        assert_eq!(received.header("transfer-encoding"), None);
        assert_eq!(received.body.unwrap(), body);
    }
    assert_eq!(engine.received().len(), 3);
}

const BROKEN_CHUNKS: [&str; 8] = [
    "zz\r\n{}\r\n",
    "-1\r\n{}\r\n",
    "2\r\n{}x\r\n",
    "2 2\r\n{}\r\n",
    "fffffffffffffffff\r\n{}\r\n",
    "\r\n{}\r\n",
    "0x2\r\n{}\r\n",
    "2\n{}\n",
];

#[test]
fn malformed_chunks_reach_no_backend() {
    let (engine, penstock) = start("");
    thread::scope(|scope| {
        for broken in BROKEN_CHUNKS {
            let address = penstock.data;
            scope.spawn(move || {
                let head = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked");
                let mut client = Client::connect(address);
                client.send_bytes(format!("{head}\r\n\r\n{broken}0\r\n\r\n").as_bytes());
                let response = client.read_response().unwrap();
                assert_eq!(response.status, 400, "{broken:?}: {}", response.text());
                let rest = client.read_raw().unwrap_or_else(|error| panic!("{broken:?}: {error}"));
                assert_eq!(rest, b"", "{broken:?}: the connection is closed after it");
            });
        }
    });
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn expect_100_continue_has_a_response() {
    let (engine, penstock) = start("");
    let body = chat("m", "x").to_string();
    let mut client = Client::connect(penstock.data);
    let head = |length: usize| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    client.send_bytes(head(body.len()).as_bytes());
    let interim = client.read_raw().unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&interim));
    client.send_bytes(body.as_bytes());
    assert_eq!(client.read_response().unwrap().status, 200);
    assert_eq!(engine.received().pop().unwrap().header("expect"), None);
    // A body that will be refused gets no 100 Continue.
    client.send_bytes(head(1 << 40).as_bytes());
    let response = client.read_raw().unwrap();
    assert!(response.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&response));
}

#[test]
fn pipelined_requests_are_served_in_order() {
    let (engine, penstock) = start("");
    let mut both = Vec::new();
    for text in ["first", "second", "third"] {
        let body = chat("m", text).to_string();
        both.extend_from_slice(
            format!(
                "POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
        both.extend_from_slice(b"GET /v1/models HTTP/1.1\r\nhost: t\r\n\r\n");
    }
    let mut client = Client::connect(penstock.data);
    client.send_bytes(&both);
    for _ in 0..3 {
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json()["object"], "chat.completion");
        assert_eq!(client.read_response().unwrap().json()["object"], "list", "in their order");
    }
    let texts: Vec<Value> = engine
        .received()
        .into_iter()
        .map(|one| serde_json::from_slice(&one.body.unwrap()).unwrap())
        .map(|body: Value| body["messages"][0]["content"].clone())
        .collect();
    assert_eq!(texts, ["first", "second", "third"]);
    let chunks = [
        chunked(&[chat("m", "x").to_string().as_bytes()], ""),
        b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n".to_vec(),
    ]
    .concat();
    client.send_bytes(&chunks);
    assert_eq!(client.read_response().unwrap().status, 200, "after chunks, too");
    assert_eq!(client.read_response().unwrap().json()["status"], "healthy");
}

#[test]
fn unread_bodies_are_not_parsed_as_requests() {
    let (engine, penstock) = start("auth: { keys: [{ name: k, key: sk-1 }] }");
    let inner = chat("m", "smuggled").to_string();
    let smuggled = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer sk-1\r\ncontent-length: {}\r\n\r\n{inner}",
        inner.len()
    );
    let key = "authorization: Bearer sk-1\r\n";
    let encoded = format!("{key}content-encoding: compress\r\n");
    let cases = [
        (404, "POST /nowhere", key),
        (401, "POST /v1/chat/completions", ""),
        (401, "POST /v1/messages", "authorization: Bearer wrong\r\n"),
        (405, "PUT /v1/chat/completions", key),
        (405, "DELETE /v1/models", key),
        (200, "GET /health", key),
        (200, "GET /v1/models", key),
        (415, "POST /v1/chat/completions", &encoded),
    ];
    let (length, chunk) = (smuggled.len(), format!("{:x}", smuggled.len()));
    let framings = [
        format!("content-length: {length}\r\n\r\n{smuggled}"),
        format!("transfer-encoding: chunked\r\n\r\n{chunk}\r\n{smuggled}\r\n0\r\n\r\n"),
    ];
    thread::scope(|scope| {
        for (status, line, extra) in cases {
            for framed in &framings {
                let address = penstock.data;
                scope.spawn(move || {
                    let mut client = Client::connect(address);
                    let head = format!("{line} HTTP/1.1\r\nhost: t\r\n{extra}");
                    client.send_bytes(format!("{head}{framed}").as_bytes());
                    let response = client.read_response().unwrap();
                    assert_eq!(response.status, status, "{line}: {}", response.text());
                    // Then the connection ends, or the next request is served: never the body.
                    let written =
                        client.stream.write_all(b"GET /v1/nothing HTTP/1.1\r\nhost: t\r\n\r\n");
                    let next =
                        written.and_then(|()| client.read_response()).map(|next| next.status);
                    assert!(matches!(next, Err(_) | Ok(404)), "{line}: {next:?} for {framed}");
                });
            }
        }
    });
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn missing_body_times_out() {
    let (engine, penstock) = start("limits: { body_read_timeout: 1s, header_timeout: 1s }");
    let mut slow_body = Client::connect(penstock.data);
    slow_body.send_bytes(
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{{").as_bytes(),
    );
    let mut slow_head = Client::connect(penstock.data);
    slow_head.send_bytes(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n");
    let response = slow_body.read_response().unwrap();
    assert_openai_error(&response, 408, "body_timeout", "slow body");
    // The client waits for 20 s, the defaults of the timeouts are 30 s and 60 s.
    match slow_head.read_raw() {
        Ok(rest) => assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}"),
        Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is still open"),
    }
    assert_eq!(engine.counters().requests, 0);
}
