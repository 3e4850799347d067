//! Malformed, oversized and hostile bodies get an error that the client can read; none of them
//! reaches a backend or affects other clients.

use penstock_api::{BodyFormat, OPERATIONS};
use penstock_mock::{Fault, MockEngine};
use serde_json::json;

use crate::support::client::{Client, Response, chat, request};
use crate::support::engines::{backend, engine, last_body};
use crate::support::penstock::Penstock;

pub(crate) const CHAT: &str = "/v1/chat/completions";

pub(crate) fn start(more: &str) -> (MockEngine, Penstock) {
    let engine = engine("one", &["m"]);
    let yaml = format!("{more}\nbackends:\n{}", backend(&engine, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    (engine, penstock)
}

pub(crate) fn send(penstock: &Penstock, body: &[u8]) -> Response {
    request(penstock.data, "POST", CHAT, &[("content-type", "application/json")], body)
}

pub(crate) fn assert_openai_error(response: &Response, status: u16, code: &str, what: &str) {
    assert_eq!(response.status, status, "{what}: {}", response.text());
    let error = &response.json()["error"];
    assert_eq!(error["code"], code, "{what}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{what}");
    assert!(error["type"].is_string() && error.get("param").is_some(), "{what}");
    assert_eq!(response.header("content-type"), Some("application/json"), "{what}");
}

/// Valid bodies broken at one place: `@` in the frame stands for each of these.
const BROKEN_VALUES: [&str; 58] = [
    "",
    " ",
    ",",
    ":",
    "tru",
    "True",
    "TRUE",
    "nul",
    "None",
    "undefined",
    "NaN",
    "Infinity",
    "-Infinity",
    "+1",
    "01",
    "-01",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x1",
    "1_000",
    "--1",
    "-",
    "1 2",
    "'a'",
    "`a`",
    "\"a",
    "a\"",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\\u12g4\"",
    "\"\\\"",
    "\"\n\"",
    "\"\t\"",
    "\"\u{1}\"",
    "[",
    "]",
    "[1",
    "[1,",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1,,2]",
    "{",
    "}",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":1",
    "{\"a\":1,",
    "{\"a\":1,}",
    "{a:1}",
    "{1:2}",
    "{\"a\" 1}",
    "{\"a\"::1}",
    "{,}",
    "/* x */ 1",
    "[1} ",
];

/// Bodies that are malformed as a whole.
const BROKEN_BODIES: [&[u8]; 38] = [
    b"",
    b" ",
    b"\r\n",
    b"\0",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[]",
    b"null",
    b"true",
    b"12",
    b"\"m\"",
    b"model",
    b"{}{}",
    b"{} x",
    b"{},",
    b"{]",
    b"[}",
    b"{\"model\"}",
    b"{\"model\":}",
    b"{\"model\":\"m\"",
    b"{\"model\":\"m\",}",
    b"{\"model\":\"m\"}}",
    b"{\"model\" \"m\"}",
    b"{'model':'m'}",
    b"{model:\"m\"}",
    b"{\"model\":\"m\"};",
    b"{\"model\":\"m\"}\0",
    b" \xef\xbb\xbf{\"model\":\"m\",\"messages\":[]}",
    b"{\"model\":\"\xff\",\"messages\":[]}",
    b"{\"model\":\"m\",\"messages\":[],\"x\":\"\xc3\"}",
    b"{\"model\":\"m\",\"x\":\"\xed\xa0\x80\"}",
    b"{\"model\":\"m\",\"x\":\"\xc0\xaf\"}",
    b"{\"model\":\"m\"\"x\":1}",
    b"{\"model\":\"m\",\"x\":1 1}",
    b"model=m&messages=x",
    b"<xml model=\"m\"/>",
];

#[test]
fn malformed_json_gets_400_and_reaches_no_backend() {
    let (engine, penstock) = start("");
    let framed = BROKEN_VALUES
        .iter()
        .map(|value| format!("{{\"model\":\"m\",\"messages\":[],\"x\":{value}}}").into_bytes());
    let bodies: Vec<Vec<u8>> =
        framed.chain(BROKEN_BODIES.iter().map(|body| body.to_vec())).collect();
    assert!(bodies.len() >= 90);
    let mut client = Client::connect(penstock.data);
    for body in &bodies {
        // One connection for all: a refused body must not break it.
        client.send("POST", CHAT, &[], body);
        let response = client.read_response().unwrap();
        assert_openai_error(&response, 400, "invalid_json", &String::from_utf8_lossy(body));
    }
    for row in OPERATIONS.iter().filter(|row| row.name != "messages") {
        let Some(path) = row.path() else { continue };
        let kind = match row.body {
            BodyFormat::Json => "application/json",
            BodyFormat::Multipart => "multipart/form-data; boundary=b",
        };
        let fields = [("content-type", kind)];
        let response = request(penstock.data, "POST", path, &fields, b"{\"model\":");
        assert_eq!(response.status, 400, "{}", row.name);
    }
    assert_eq!(engine.counters().requests, 0);
    assert_eq!(send(&penstock, chat("m", "x").to_string().as_bytes()).status, 200);
}

#[test]
fn wrong_types_get_400_with_the_field() {
    let (engine, penstock) = start("routing: { default_model: none }");
    let cases = [
        (json!({"messages": []}), "missing_model", "model"),
        (json!({}), "missing_model", "model"),
        (json!({"model": "", "messages": []}), "missing_model", "model"),
        (json!({"model": "  ", "messages": []}), "missing_model", "model"),
        (json!({"model": 7, "messages": []}), "invalid_type", "model"),
        (json!({"model": ["m"], "messages": []}), "invalid_type", "model"),
        (json!({"model": {"id": "m"}, "messages": []}), "invalid_type", "model"),
        (json!({"model": true, "messages": []}), "invalid_type", "model"),
        (json!({"model": "m", "messages": "hi"}), "invalid_type", "messages"),
        (json!({"model": "m", "messages": {}}), "invalid_type", "messages"),
        (json!({"model": "m", "messages": 1}), "invalid_type", "messages"),
    ];
    for (body, code, param) in cases {
        let response = send(&penstock, body.to_string().as_bytes());
        assert_openai_error(&response, 400, code, &body.to_string());
        assert_eq!(response.json()["error"]["param"], param, "{body}");
    }
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn anthropic_clients_get_anthropic_errors() {
    let (engine, penstock) = start("routing: { default_model: none }");
    for body in [&b"{"[..], b"{}", b"{\"model\":1}", b"\xff"] {
        let response = request(penstock.data, "POST", "/v1/messages", &[], body);
        assert_eq!((response.status, &response.json()["type"]), (400, &json!("error")));
        assert_eq!(response.json()["error"]["type"], "invalid_request_error");
    }
    let mut client = Client::connect(penstock.data);
    client.send_bytes(
        b"POST /v1/messages HTTP/1.1\r\nhost: t\r\ncontent-length: 10737418240\r\n\r\n",
    );
    let response = client.read_response().unwrap();
    assert_eq!(
        (response.status, &response.json()["error"]["type"]),
        (413, &json!("request_too_large"))
    );
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn malformed_forms_are_refused() {
    let (engine, penstock) = start("routing: { default_model: none }");
    let path = "/v1/audio/transcriptions";
    let good = "multipart/form-data; boundary=b";
    let cases: [(&str, &[u8]); 6] = [
        (good, b""),
        (good, b"--b--\r\n"),
        (good, b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n"),
        (good, b"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm"),
        (good, b"{\"model\":\"m\"}"),
        (
            "multipart/form-data",
            b"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n",
        ),
    ];
    for (kind, body) in cases {
        let response = request(penstock.data, "POST", path, &[("content-type", kind)], body);
        assert_openai_error(&response, 400, response.error_code().as_str(), kind);
    }
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn other_media_types_get_415() {
    let (engine, penstock) = start("");
    let json = json!({"model": "m"}).to_string();
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
    for row in OPERATIONS {
        let Some(path) = row.path() else { continue };
        let (kind, body) = match row.body {
            BodyFormat::Multipart => ("application/json", json.as_str()),
            BodyFormat::Json => ("multipart/form-data; boundary=b", form),
        };
        let fields = [("content-type", kind)];
        let response = request(penstock.data, "POST", path, &fields, body.as_bytes());
        assert_eq!(response.status, 415, "{}: {}", path, response.text());
        if row.body == BodyFormat::Multipart {
            assert_openai_error(&response, 415, "unsupported_encoding", path);
            let message = response.json()["error"]["message"].to_string();
            assert!(message.contains("multipart/form-data"), "{message}");
        }
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let fields = [("content-type", kind)];
        let body = chat("m", "hello").to_string();
        let response = request(penstock.data, "POST", CHAT, &fields, body.as_bytes());
        assert_eq!(response.status, 200, "{kind}: clients send JSON under other names");
    }
    assert_eq!(engine.counters().requests, 2);
}

#[test]
fn byte_order_mark_is_skipped_and_forwarded() {
    let (engine, penstock) = start("routing: { aliases: { gpt: m } }");
    for name in ["m", "gpt"] {
        let body = format!("\u{feff} {}", chat(name, "hello"));
        // What the engine makes of the mark is its own matter.
        engine.script([Fault::Status {
            status: 200,
            retry_after: None,
            body: r#"{"id":"x"}"#.to_owned(),
            headers: Vec::new(),
        }]);
        let response = send(&penstock, body.as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        let expected = body.replace("\"gpt\"", "\"m\"");
        assert_eq!(last_body(&engine), expected.as_bytes(), "every byte as it came");
    }
    let twice = format!("\u{feff}\u{feff}{}", chat("m", "hello"));
    assert_openai_error(&send(&penstock, twice.as_bytes()), 400, "invalid_json", "two marks");
    let broken = send(&penstock, b"\xef\xbb{}");
    assert_openai_error(&broken, 400, "invalid_json", "half a mark");
}

#[test]
fn repeated_credentials_get_400() {
    for keys in ["", "auth: { keys: [{ name: team, key: good-key-of-team }] }"] {
        let (engine, penstock) = start(keys);
        let body = chat("m", "hello").to_string();
        for name in ["authorization", "Authorization", "x-api-key"] {
            let good =
                if name == "x-api-key" { "good-key-of-team" } else { "Bearer good-key-of-team" };
            for fields in [[(name, good), (name, good)], [(name, good), (name, "Bearer other")]] {
                let response = request(penstock.data, "POST", CHAT, &fields, body.as_bytes());
                assert_openai_error(&response, 400, "invalid_request", name);
                assert_eq!(response.header("connection"), Some("close"));
            }
            let response = request(penstock.data, "POST", CHAT, &[(name, good)], body.as_bytes());
            assert_eq!(response.status, 200, "{name}");
        }
        assert_eq!(engine.counters().requests, 3);
    }
}
