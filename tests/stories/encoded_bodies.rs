//! Clients compress their requests: with gzip, deflate, br or zstd, in one piece or streamed, over
//! either HTTP version and to every API. The engine gets the body as it was, without a trace of the
//! coding. Bodies that expand without end, are cut or come in two codings get a clear error and
//! cost little.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::json;

use crate::request_bodies::in_chunks;
use crate::request_validation::{CHAT, assert_openai_error, start};
use crate::support::client::{Client, Response, chat, request};
use crate::support::engines::last_body;
use crate::support::fleet::{Fleet, Setup, metric};
use crate::support::http2::{End, Http2};
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::Penstock;

const JSON: (&str, &str) = ("content-type", "application/json");

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zlib(text: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn raw_deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn brotli(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut encoder = brotli::CompressorWriter::new(&mut encoded, 4096, 4, 22);
    encoder.write_all(text).unwrap();
    drop(encoder);
    encoded
}

/// A frame without a length, as a client writes it that does not know it yet.
fn zstd_streamed(text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    for part in text.chunks(10_000) {
        encoder.write_all(part).unwrap();
        encoder.flush().unwrap();
    }
    encoder.finish().unwrap()
}

fn zstd_whole(text: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(text, 3).unwrap()
}

type Encoder = fn(&[u8]) -> Vec<u8>;
const FORMS: [(&str, Encoder); 7] = [
    ("gzip", gzip),
    ("X-Gzip", gzip),
    ("deflate", zlib),
    ("deflate", raw_deflate),
    ("br", brotli),
    ("zstd", zstd_whole),
    ("zstd", zstd_streamed),
];

/// A chat request with a text beside its prompt.
fn chat_with(text: &str) -> String {
    let mut body = chat("m", "hello");
    body["metadata"] = json!({"text": text});
    body.to_string()
}

fn send(penstock: &Penstock, path: &str, coding: &str, body: &[u8]) -> Response {
    request(penstock.data, "POST", path, &[JSON, ("content-encoding", coding)], body)
}

#[test]
fn every_coding_is_decoded_before_it_is_forwarded() {
    let (engine, penstock) = start("");
    let texts = ["hello".to_owned(), "A longer text, of many words. ".repeat(20_000)];
    for (coding, encode) in FORMS {
        for text in &texts {
            let body = chat_with(text);
            let fields = [JSON, ("content-encoding", coding), ("content-digest", "sha-256=:x:")];
            let encoded = encode(body.as_bytes());
            let response = request(penstock.data, "POST", CHAT, &fields, &encoded);
            assert_eq!(response.status, 200, "{coding}: {}", response.text());
            let received = engine.received().pop().unwrap();
            assert!(received.body.as_deref() == Some(body.as_bytes()), "{coding}");
            assert_eq!(received.header("content-length"), Some(&*body.len().to_string()));
            assert_eq!(received.header("content-encoding"), None, "{coding}");
            assert_eq!(received.header("content-digest"), None, "it is that of the encoded body");
        }
    }
    let plain = chat("m", "as it is").to_string();
    for coding in ["identity", "", "identity, identity"] {
        let response = send(&penstock, CHAT, coding, plain.as_bytes());
        assert_eq!(response.status, 200, "'{coding}': {}", response.text());
        let received = engine.received().pop().unwrap();
        assert_eq!(received.header("content-encoding"), None, "'{coding}'");
        assert_eq!(received.body.unwrap(), plain.as_bytes());
    }
    let two_members = [gzip(&plain.as_bytes()[..10]), gzip(&plain.as_bytes()[10..])].concat();
    assert_eq!(send(&penstock, CHAT, "gzip", &two_members).status, 200);
    assert_eq!(last_body(&engine), plain.as_bytes());
    let decoded = |coding: &str| {
        let start =
            format!("penstock_encoded_bodies_total{{coding=\"{coding}\",result=\"decoded\"}}");
        metric(&penstock, &start)
    };
    assert_eq!(["gzip", "deflate", "br", "zstd"].map(decoded), [5.0, 4.0, 2.0, 4.0]);
}

#[test]
fn encoded_uploads_come_in_chunks_and_over_http2() {
    let (fleet, address) = crate::http2_clients::start(1, Setup::default());
    let body = chat_with(&"over frames and chunks, ".repeat(10_000));
    let http2 = Http2::connect(address);
    let mut http1 = Client::connect(address);
    for (coding, encode) in FORMS {
        let encoded = encode(body.as_bytes());
        let (response, end) =
            http2.post_bytes(CHAT, &[JSON, ("content-encoding", coding)], &encoded);
        assert_eq!((response.status, end), (200, End::Whole), "{coding}: {}", response.text());
        assert!(last_body(fleet.a()) == body.as_bytes(), "{coding} over HTTP/2");
        // Two requests in one go: the second begins where the first one's chunks end.
        let field = format!("content-encoding: {coding}\r\n");
        let parts: Vec<&[u8]> = encoded.chunks(997).collect();
        let next = b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n";
        http1.send_bytes(&[&in_chunks(&field, &parts, "")[..], next].concat());
        let response = http1.read_response().unwrap();
        assert_eq!(response.status, 200, "{coding}: {}", response.text());
        assert!(last_body(fleet.a()) == body.as_bytes(), "{coding} in chunks");
        assert_eq!(http1.read_response().unwrap().json()["status"], "healthy");
    }
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

#[test]
fn every_api_takes_encoded_bodies() {
    let (engine, penstock) = start("");
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (path, body) in [
        ("/v1/messages", json!({"model": "m", "max_tokens": 5, "messages": messages})),
        ("/v1/responses", json!({"model": "m", "input": "hi"})),
        ("/v1/completions", json!({"model": "m", "prompt": "hi"})),
        ("/v1/embeddings", json!({"model": "m", "input": "hi"})),
        ("/api/chat", json!({"model": "m", "stream": false, "messages": messages})),
    ] {
        let response = send(&penstock, path, "zstd", &zstd_streamed(body.to_string().as_bytes()));
        assert_eq!(response.status, 200, "{path}: {}", response.text());
    }
    let form = "--XyZ\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--XyZ\r\n\
                Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\
                RIFF\r\n--XyZ--\r\n";
    let kind = ("content-type", "multipart/form-data; boundary=XyZ");
    let fields = [kind, ("content-encoding", "gzip")];
    let path = "/v1/audio/transcriptions";
    let response = request(penstock.data, "POST", path, &fields, &gzip(form.as_bytes()));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(last_body(&engine), form.as_bytes());
}

#[test]
fn unscanned_bodies_are_forwarded_unchanged() {
    let engine = OpenEngine::start("one");
    let routing =
        "routing: { passthrough: { \"/opaque\": one, \"/by-model\": by-model } }\nbackends:\n";
    let yaml = routing.to_owned() + &engine.item("engine: other, models: [m]");
    let penstock = Penstock::start(&yaml);
    let body = json!({"model": "m", "text": "hello"}).to_string();
    let encoded = gzip(body.as_bytes());
    let response = send(&penstock, "/by-model", "gzip", &encoded);
    assert_eq!(response.json()["body"], body, "the model is in the body");
    assert_eq!(response.json()["content_encoding"], json!(null));
    for coding in ["gzip", "gzip, gzip", "exotic"] {
        let response = send(&penstock, "/opaque", coding, &encoded);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json()["content_encoding"], coding, "the engine may decode it");
        assert_eq!(response.json()["body"], String::from_utf8_lossy(&encoded).as_ref());
    }
}

/// A chat request with a text of `bytes` equal bytes, encoded.
fn bomb(encode: Encoder, bytes: usize) -> Vec<u8> {
    encode(chat_with(&"a".repeat(bytes)).as_bytes())
}

#[test]
fn expanding_bodies_are_refused_and_leave_no_memory() {
    let (engine, penstock) = start("");
    assert_eq!(penstock.chat("m").status, 200);
    let before = penstock.resident();
    for (coding, encode) in FORMS {
        // Some hundred times as large, and not too large for a body that comes as it is.
        let encoded = bomb(encode, 30 << 20);
        assert!(encoded.len() < 256 << 10, "{coding}: {}", encoded.len());
        let bursts = std::thread::scope(|scope| {
            let senders: Vec<_> =
                (0..8).map(|_| scope.spawn(|| send(&penstock, CHAT, coding, &encoded))).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).collect::<Vec<_>>()
        });
        for response in bursts {
            assert_openai_error(&response, 413, "body_too_large", coding);
            assert!(response.text().contains("max_body_ratio"), "{}", response.text());
        }
    }
    // Small ones may be of one letter.
    assert_eq!(send(&penstock, CHAT, "br", &bomb(brotli, 1_000_000)).status, 200);
    assert_eq!(engine.counters().requests, 2);
    let grown = penstock.resident().saturating_sub(before) >> 20;
    assert!(grown < 64, "{grown} MiB");
    assert_eq!(metric(&penstock, "penstock_held_body_bytes"), 0.0);
    let counted = "penstock_encoded_bodies_total{coding=\"br\",result=\"too_large\"}";
    assert_eq!(metric(&penstock, counted), 8.0);
}

#[test]
fn limits_count_decoded_bytes() {
    let limits = "limits: { max_body_size: 64KiB, buffered_bodies: 256KiB, max_body_ratio: 5000 }";
    let (engine, penstock) = start(limits);
    for (coding, encode) in FORMS {
        let fits = send(&penstock, CHAT, coding, &bomb(encode, 65_000));
        assert_eq!(fits.status, 200, "{coding}: {}", fits.text());
        let more = send(&penstock, CHAT, coding, &bomb(encode, 66_000));
        assert_openai_error(&more, 413, "body_too_large", coding);
        assert!(more.text().contains("max_body_size"), "{}", more.text());
    }
    let large = vec![b'x'; 65_537];
    let more = send(&penstock, CHAT, "gzip", &large);
    assert_openai_error(&more, 413, "body_too_large", "the encoded body is bounded, too");
    assert_eq!(engine.counters().requests, FORMS.len());
    assert_eq!(metric(&penstock, "penstock_held_body_bytes"), 0.0);
}

#[test]
fn broken_bodies_get_400_and_the_connection_goes_on() {
    let (engine, penstock) = start("");
    let body = chat_with(&"some text ".repeat(5000));
    let mut client = Client::connect(penstock.data);
    for (coding, encode) in FORMS {
        let whole = encode(body.as_bytes());
        let cut = &whole[..whole.len() - 1];
        let longer = [&whole[..], b"{}"].concat();
        for (broken, reason) in
            [(cut, "ends early"), (&longer, "other bytes follow"), (body.as_bytes(), "malformed")]
        {
            client.send("POST", CHAT, &[JSON, ("content-encoding", coding)], broken);
            let response = client.read_response().unwrap();
            assert_openai_error(&response, 400, "invalid_request", coding);
            let message = response.text();
            assert!(message.contains(reason), "{coding}: {message}");
        }
        // Of another coding than the field says.
        let other = if coding == "br" { gzip(body.as_bytes()) } else { brotli(body.as_bytes()) };
        client.send("POST", CHAT, &[JSON, ("content-encoding", coding)], &other);
        assert_eq!(client.read_response().unwrap().status, 400, "{coding}");
    }
    client.send("POST", CHAT, &[JSON, ("content-encoding", "gzip")], b"");
    let response = client.read_response().unwrap();
    assert_openai_error(&response, 400, "invalid_json", "no body at all");
    assert_eq!(engine.counters().requests, 0);
    client.send("POST", CHAT, &[JSON], body.as_bytes());
    assert_eq!(client.read_response().unwrap().status, 200, "on the same connection");
}

#[test]
fn unknown_codings_get_415_in_the_clients_dialect() {
    let (engine, penstock) = start("");
    let encoded = gzip(chat("m", "x").to_string().as_bytes());
    for coding in ["compress", "gzip, gzip", "gzip, zstd", "utf-8", "aws-chunked", "gzip;q=1"] {
        let response = send(&penstock, CHAT, coding, &encoded);
        assert_openai_error(&response, 415, "unsupported_encoding", coding);
        assert_eq!(response.header("accept-encoding"), Some("gzip, deflate, br, zstd"));
        let response = send(&penstock, "/v1/messages", coding, &encoded);
        assert_eq!(response.status, 415, "{}", response.text());
        assert_eq!(response.json()["error"]["type"], "invalid_request_error");
        let response = send(&penstock, "/api/chat", coding, &encoded);
        assert!(response.json()["error"].is_string(), "{}", response.text());
    }
    let two = [JSON, ("content-encoding", "gzip"), ("content-encoding", "gzip")];
    let response = request(penstock.data, "POST", CHAT, &two, &encoded);
    assert_openai_error(&response, 415, "unsupported_encoding", "two fields");
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn requests_to_engines_accept_plain_responses_only() {
    let fleet = Fleet::start(1, Setup::default());
    for accepted in [&[][..], &["gzip"], &["zstd, br", "*"]] {
        let mut fields = vec![JSON];
        fields.extend(accepted.iter().map(|value| ("accept-encoding", *value)));
        let body = chat("m", "hi").to_string();
        let response = request(fleet.penstock.data, "POST", CHAT, &fields, body.as_bytes());
        assert_eq!(response.status, 200);
        let received = fleet.a().received().pop().unwrap();
        let values = received.headers.iter().filter(|(name, _)| name == "accept-encoding");
        let values: Vec<&str> = values.map(|(_, value)| &**value).collect();
        assert_eq!(values, ["identity"], "asked with {accepted:?}");
    }
}

#[test]
fn encoded_response_to_a_converted_request_is_named() {
    let engine = OpenEngine::start("one");
    let item = engine.item("engine: openai, models: [{ id: m, operations: [chat] }]");
    let penstock = Penstock::start(&format!("backends:\n{item}"));
    for stream in [false, true] {
        let body = json!({
            "model": "m", "max_tokens": 5, "stream": stream,
            "messages": [{"role": "user", "content": "encode"}]
        });
        let response = penstock.post("/v1/messages", &body);
        assert_eq!(response.status, 502, "{}", response.text());
        let message = response.json()["error"]["message"].to_string();
        assert!(message.contains("gzip"), "{message}");
    }
}
