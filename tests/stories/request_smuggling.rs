//! Request smuggling: a request that two parsers read differently gets a 400 and its connection is
//! closed. Whatever reaches a backend is parsed strictly there and is exactly what the client
//! meant.

use std::thread;

use penstock_mock::MockEngine;
use serde_json::json;

use crate::support::client::{Client, Response, chat};
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::fleet::{CHAT, SOON, find_metric};
use crate::support::penstock::Penstock;

fn start(more: &str) -> (MockEngine, Penstock) {
    let engine = engine("one", &["m"]);
    let yaml = format!("{more}\nbackends:\n{}", backend(&engine, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    (engine, penstock)
}

/// A request that would be served if it were parsed as one.
fn smuggled() -> String {
    let body = chat("m", "smuggled").to_string();
    format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends bytes whole and in small pieces: both times a refusal and the end are all that comes back.
fn assert_refused(penstock: &Penstock, bytes: &[u8], statuses: &[u16]) {
    for piece in [bytes.len(), 5] {
        let shown = bytes.get(..200).unwrap_or(bytes).escape_ascii();
        let mut client = Client::connect(penstock.data);
        for part in bytes.chunks(piece) {
            // The connection may be closed before everything is written.
            if std::io::Write::write_all(&mut client.stream, part).is_err() {
                break;
            }
        }
        let response = client.read_response().unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert!(
            statuses.contains(&response.status),
            "{shown}: {} {}",
            response.status,
            response.text()
        );
        assert!(response.json()["error"]["message"].is_string(), "{shown}");
        assert_eq!(response.header("connection"), Some("close"), "{shown}");
        let rest = client.read_raw().unwrap_or_default();
        assert_eq!(rest, b"", "{shown}: a response to what was smuggled");
    }
}

fn assert_untouched(engine: &MockEngine) {
    assert_eq!(engine.malformed().len(), 0, "{:?}", engine.malformed());
    assert_eq!(engine.received().len(), 0, "something was forwarded: {:?}", engine.received());
}

/// Framings of a five byte body, each after `POST … HTTP/1.1` and `Host`.
const FRAMINGS: [&str; 30] = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Content-Length: 0\r\nTransfer-Encoding: chunked",
    "Content-Length: 5\r\nContent-Length: 5",
    "Content-Length: 5\r\nContent-Length: 0",
    "Content-Length: 0\r\nContent-Length: 5",
    "Content-Length: 5, 5",
    "Content-Length: 5,0",
    "Content-Length: +5",
    "Content-Length: -5",
    "Content-Length: 0x5",
    "Content-Length: 5 0",
    "Content-Length: 5.0",
    "Content-Length: ",
    "Content-Length: 18446744073709551621",
    "Content-Length : 5",
    "Content-Length\t: 5",
    " Content-Length: 5",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked;q=0.5",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding:\u{b}chunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer\u{b}Encoding: chunked",
];

/// Malformed heads.
const HEADS: [&str; 32] = [
    "POST @ HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked",
    "POST @ HTTP/1.1\nHost: t\nContent-Length: 5\n",
    "POST @ HTTP/1.1\r\nHost: t\nContent-Length: 5",
    "POST @ HTTP/1.1\r\nHost: t\r\nX: a\rContent-Length: 5",
    "POST @ HTTP/1.1\r\nHost: t\r\nX: a\0b",
    "POST @ HTTP/1.1\r\nHost: t\r\nX\0: a",
    "POST @ HTTP/1.1\r\nHost: t\r\nX: a\r\n folded: b",
    "POST @ HTTP/1.1\r\nHost: t\r\nX: a\r\n\tfolded: b",
    "POST @ HTTP/1.1\r\nHost: t\r\nno colon",
    "POST @ HTTP/1.1\r\nHost: t\r\n: no name",
    "POST @ HTTP/1.1\r\nHost: t\r\nb@d: x",
    "POST @ HTTP/1.1\r\nHost: t\r\nb d: x",
    "POST @ HTTP/1.1\r\nHost: t\r\nX: \u{1b}[31m",
    "POST @ HTTP/1.1\r\nHost: t\r\nHost: t",
    "POST @ HTTP/1.1\r\nHost: t\r\nHost: other",
    "POST @ HTTP/1.1\r\nHost: a, b",
    "POST @ HTTP/1.1\r\nHost: a/b",
    "POST @ HTTP/1.1\r\nHost: user@t",
    "POST @ HTTP/1.1\r\nX: no host",
    "POST http://other@ HTTP/1.1\r\nHost: t",
    "POST http://user@t@ HTTP/1.1\r\nHost: t",
    "POST @",
    "POST @\r\nHost: t",
    "POST @ HTTP/1.2\r\nHost: t",
    "POST @ HTTP/2.0\r\nHost: t",
    "POST @ HTTP/0.9\r\nHost: t",
    "POST @ http/1.1\r\nHost: t",
    "POST @ HTTP/1.1 \r\nHost: t",
    "POST @  HTTP/1.1\r\nHost: t",
    "POST\t@ HTTP/1.1\r\nHost: t",
    "POST @#x HTTP/1.1\r\nHost: t",
    "CONNECT t:80 HTTP/1.1\r\nHost: t",
];

#[test]
fn ambiguous_heads_are_refused() {
    let (engine, penstock) = start("");
    let framed = FRAMINGS.map(|fields| {
        format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\n{fields}\r\n\r\n0\r\n\r\n{}", smuggled())
    });
    let bare =
        HEADS.map(|head| format!("{}\r\n\r\n0\r\n\r\n{}", head.replace('@', CHAT), smuggled()));
    thread::scope(|scope| {
        for bytes in framed.iter().chain(&bare) {
            let penstock = &penstock;
            scope.spawn(move || assert_refused(penstock, bytes.as_bytes(), &[400]));
        }
    });
    assert_untouched(&engine);
    assert_eq!(penstock.chat("m").status, 200, "other clients are served");
}

#[test]
fn ambiguous_chunks_are_refused() {
    let (engine, penstock) = start("");
    let long_extension = format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(2000));
    let long_size = format!("{}2\r\n{{}}\r\n0\r\n\r\n", "0".repeat(40));
    let long_trailer = format!("2\r\n{{}}\r\n0\r\nX: {}\r\n\r\n", "x".repeat(10_000));
    let bodies = [
        "2;a\n=b\r\n{}\r\n0\r\n\r\n",
        "2;a\0=b\r\n{}\r\n0\r\n\r\n",
        "2;a\rb\r\n{}\r\n0\r\n\r\n",
        "2\n{}\r\n0\r\n\r\n",
        "2\r\n{}\n0\r\n\r\n",
        "2\r\n{}0\r\n\r\n",
        "2\r\n{}xx0\r\n\r\n",
        "2\r{}\r\n0\r\n\r\n",
        " 2\r\n{}\r\n0\r\n\r\n",
        "+2\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2_0\r\n{}\r\n0\r\n\r\n",
        "g\r\n{}\r\n0\r\n\r\n",
        "10000000000000002\r\n{}\r\n0\r\n\r\n",
        "\r\n{}\r\n0\r\n\r\n",
        ";x\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}\r\n0\r\nX: y\n\r\n",
        "2\r\n{}\r\n0\r\nX: \0\r\n\r\n",
        "2\r\n{}\r\n0\r\n\n",
        // Without the empty line the next request would pass for trailers.
        "2\r\n{}\r\n0\r\n",
        "2\r\n{}\r\n0\r\nX: y\r\n",
        "2\r\n{}\r\n0\r\nno colon\r\n\r\n",
        "2\r\n{}\r\n0\r\n: no name\r\n\r\n",
        "2\r\n{}\r\n0\r\nX: y\r\n folded\r\n\r\n",
        &long_extension,
        &long_size,
        &long_trailer,
    ];
    thread::scope(|scope| {
        for body in bodies {
            let head = format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked");
            let bytes = format!("{head}\r\n\r\n{body}{}", smuggled());
            let penstock = &penstock;
            scope.spawn(move || assert_refused(penstock, bytes.as_bytes(), &[400]));
        }
    });
    assert_untouched(&engine);
}

#[test]
fn refusals_use_the_dialect_and_are_counted() {
    let (engine, penstock) = start("");
    let send = |path: &str, fields: &str| -> Response {
        let mut client = Client::connect(penstock.data);
        let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n\r\n");
        client.send_bytes(head.as_bytes());
        client.read_response().unwrap()
    };
    let both = "Content-Length: 5\r\nTransfer-Encoding: chunked";
    let openai = send(CHAT, both);
    assert_eq!(openai.error_code(), "invalid_request");
    assert!(openai.json()["error"]["message"].as_str().unwrap().contains("Content-Length"));
    assert!(openai.header("x-request-id").is_some_and(|id| id.len() == 32));
    assert_eq!(openai.header("x-should-retry"), Some("false"));
    let anthropic = send("/v1/messages", both);
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (400, &json!("error")));
    assert_eq!(anthropic.json()["error"]["type"], "invalid_request_error");
    eventually("both are counted", SOON, || {
        find_metric(&penstock, "penstock_errors_total{code=\"invalid_request\"") == Some(2.0)
    });
    assert_untouched(&engine);
}

#[test]
fn unusual_but_valid_requests_are_served() {
    let (engine, penstock) = start("");
    let body = chat("m", "hello").to_string();
    let (length, size) = (body.len(), format!("{:X}", body.len()));
    let chunked = "Transfer-Encoding: Chunked\r\n\r\n";
    let requests = [
        format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length:\t{length} \t\r\n\r\n{body}"),
        format!("POST {CHAT} HTTP/1.1\r\nhOST:t\r\ncONTENT-lENGTH:{length}\r\n\r\n{body}"),
        format!("POST {CHAT} HTTP/1.1\r\nHost:\r\nContent-Length: 000{length}\r\n\r\n{body}"),
        format!(
            "POST http://t{CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
        format!(
            "POST {CHAT}?a=%20&b HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
        format!("\r\nPOST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}"),
        format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\n{chunked}{size}\r\n{body}\r\n0\r\n\r\n"),
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: t\r\n{chunked}00{size} ;a=\"b\"\r\n{body}\r\n0\r\n\r\n"
        ),
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: t\r\n{chunked}{size}\r\n{body}\r\n0\r\nX: trailer\r\n\r\n"
        ),
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\
             \r\n{body}"
        ),
    ];
    // One connection per request, in one write and byte by byte; then all on one, pipelined.
    for request in &requests {
        for piece in [request.len(), 1] {
            let mut client = Client::connect(penstock.data);
            for part in request.as_bytes().chunks(piece) {
                client.send_bytes(part);
            }
            assert_eq!(client.read_response().unwrap().status, 200, "{request}");
        }
    }
    let mut client = Client::connect(penstock.data);
    client.send_bytes(requests.concat().as_bytes());
    for request in &requests {
        assert_eq!(client.read_response().unwrap().status, 200, "pipelined: {request}");
    }
    let received = engine.received();
    assert_eq!(received.len(), requests.len() * 3);
    for one in received {
        assert_eq!(one.body.as_deref(), Some(body.as_bytes()));
        assert_eq!(one.header("content-length"), Some(length.to_string().as_str()));
        assert!(one.target.starts_with(CHAT), "{}", one.target);
        for own in ["transfer-encoding", "expect", "x", "trailer"] {
            assert_eq!(one.header(own), None, "{own}");
        }
    }
    assert_eq!(engine.malformed().len(), 0);
}

#[test]
fn upgrades_are_ignored() {
    let (engine, penstock) = start("");
    let body = chat("m", "hello").to_string();
    for (protocol, more) in [
        (
            "websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
        ),
        ("h2c", "HTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
        ("foo/1", ""),
    ] {
        let upgrade =
            format!("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n{more}");
        let mut client = Client::connect(penstock.data);
        let length = body.len();
        client.send_bytes(
            format!(
                "POST {CHAT} HTTP/1.1\r\nHost: t\r\n{upgrade}Content-Length: {length}\r\n\r\n{body}\
                 GET /v1/models HTTP/1.1\r\nHost: t\r\n{upgrade}\r\n\
                 GET /v1/nothing HTTP/1.1\r\nHost: t\r\n\r\n"
            )
            .as_bytes(),
        );
        let served = client.read_response().unwrap();
        assert_eq!(served.status, 200, "{protocol}: {}", served.text());
        assert_eq!(served.header("upgrade"), None);
        assert_eq!(
            client.read_response().unwrap().status,
            200,
            "{protocol}: a request like any other"
        );
        assert_eq!(client.read_response().unwrap().status, 404, "{protocol}: no tunnel after it");
        let received = engine.received().pop().unwrap();
        for gone in ["connection", "upgrade", "http2-settings"] {
            assert_eq!(received.header(gone), None, "{protocol}: {gone}");
        }
    }
    assert_eq!((engine.received().len(), engine.malformed().len()), (3, 0));
}

#[test]
fn hop_by_hop_headers_are_not_forwarded() {
    let (engine, penstock) = start("");
    let body = chat("m", "hello").to_string();
    let mut client = Client::connect(penstock.data);
    client.send_bytes(
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: evil.example\r\nConnection: close, X-One\r\n\
             Connection: host , content-length,x-request-id,X-Two\r\nX-One: 1\r\nX-Two: 2\r\n\
             Content_Length: 3\r\nTransfer_Encoding: chunked\r\nX_Api_Key: k\r\nTE: trailers\r\n\
             Trailer: X\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic x\r\nX-Kept: yes\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    let response = client.read_response().unwrap();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    let received = engine.received().pop().unwrap();
    let mut names: Vec<_> = received.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
    names.sort();
    let expected =
        ["accept-encoding", "content-length", "host", "traceparent", "x-kept", "x-request-id"];
    assert_eq!(names, expected);
    assert_eq!(received.header("host"), Some(engine.addr().to_string().as_str()));
    assert_eq!(received.header("content-length"), Some(body.len().to_string().as_str()));
}

#[test]
fn head_limit_is_exact() {
    let (_engine, penstock) = start("limits: { max_head_size: 2KiB }");
    let sized = |size: usize| {
        let (before, after) = ("GET /health HTTP/1.1\r\nhost: t\r\nx: ", "\r\n\r\n");
        format!("{before}{}{after}", "x".repeat(size - before.len() - after.len()))
    };
    let (whole, larger) = (sized(2048), sized(2049));
    for piece in [1, 1000, 2047, 2048, 5000] {
        let mut client = Client::connect(penstock.data);
        // One after the other, so that a read may end anywhere.
        for head in [&whole, &whole, &larger] {
            let status = if head.len() > 2048 { 431 } else { 200 };
            head.as_bytes().chunks(piece).for_each(|part| client.send_bytes(part));
            assert_eq!(client.read_response().unwrap().status, status, "in pieces of {piece}");
        }
        let mut client = Client::connect(penstock.data);
        client.send_bytes(format!("{whole}{whole}{larger}").as_bytes());
        for status in [200, 200, 431] {
            assert_eq!(client.read_response().unwrap().status, status, "all at once");
        }
    }
}

#[test]
fn oversized_heads_use_bounded_memory() {
    let (engine, penstock) = start("limits: { header_timeout: 20s }");
    let host = format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\n");
    let fields = "X: y\r\n".repeat(100);
    let head_of = |size: usize| format!("{host}X: {}\r\n\r\n", "x".repeat(size));
    let target_of = |size: usize| format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "x".repeat(size));
    assert_refused(&penstock, format!("{host}{fields}\r\n").as_bytes(), &[431]);
    assert_refused(&penstock, head_of(64 << 10).as_bytes(), &[431]);
    assert_refused(&penstock, target_of(16 << 10).as_bytes(), &[414]);
    assert_refused(&penstock, target_of(1 << 20).as_bytes(), &[414, 431]);
    let before = penstock.resident();
    let endless = [head_of(8 << 20), target_of(8 << 20), host + &"X: y\r\n".repeat(1 << 20)];
    thread::scope(|scope| {
        for bytes in endless.iter().cycle().take(24) {
            let penstock = &penstock;
            scope.spawn(move || {
                let mut client = Client::connect(penstock.data);
                // Refused long before its end: writing it may fail.
                let written = std::io::Write::write_all(&mut client.stream, bytes.as_bytes());
                let status = client.read_response().map(|response| response.status);
                let is_refused = matches!(status, Ok(414 | 431));
                assert!(is_refused || written.is_err(), "{status:?}");
            });
        }
    });
    let grown = penstock.resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more for 24 heads of 8 MiB");
    assert_untouched(&engine);
    let mut client = Client::connect(penstock.data);
    client.send_bytes(target_of((16 << 10) - 1).as_bytes());
    assert_eq!(client.read_response().unwrap().status, 404, "16 KiB are allowed");
}

#[test]
fn other_protocols_get_400_immediately() {
    // So long that a test which waits for it fails.
    let (engine, penstock) = start("limits: { header_timeout: 600s }");
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET /\r\n",
        b"GET /v1/models HTTP/1.1\nHost: t\n\n",
        b"PRI * HTTP/3.0\r\n\r\n",
        b"\x05\x01\x00",
    ] {
        let mut client = Client::connect(penstock.data);
        client.send_bytes(bytes);
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 400, "{}", bytes.escape_ascii());
        assert_eq!(client.read_raw().unwrap(), b"");
    }
    // A client that disconnects within its head gets no response.
    let mut client = Client::connect(penstock.data);
    client.send_bytes(b"GET /v1/models HTTP/1.1\r\nHo");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.read_raw().unwrap(), b"");
    assert_untouched(&engine);
    assert!(!penstock.log().contains("ERROR"), "{}", penstock.log());
}
