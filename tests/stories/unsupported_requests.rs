//! A user's chat offers tools or shows an image to a model that can do neither: the engine refuses
//! it. Where `routing.retry_without` allows that, the request is sent once more without, and the
//! response says so. An SVG is refused before an engine sees it.

use penstock_mock::Fault;
use serde_json::{Value, json};

use crate::support::engines::last_body;
use crate::support::eventually;
use crate::support::fleet::{Fleet, Setup};

const CHAT: &str = "/v1/chat/completions";
const IMAGE: &str = "data:image/png;base64,iVBORw0KGgo=";
const WITHOUT: &str = "retry_without: [tools, vision]";

fn refusal(status: u16, text: &str) -> Fault {
    let body = json!({"error": {"code": status, "message": text}}).to_string();
    Fault::Status { status, retry_after: None, body, headers: Vec::new() }
}

fn no_tools() -> Fault {
    let body = json!({"error": "registry.ollama.ai/library/m does not support tools"}).to_string();
    Fault::Status { status: 400, retry_after: None, body, headers: Vec::new() }
}

fn no_images() -> Fault {
    refusal(500, "image input is not supported - hint: you may need to provide the mmproj")
}

fn start(routing: &str) -> Fleet {
    Fleet::start(1, Setup { routing, ..Setup::default() })
}

fn with_tools() -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": [tool],
        "tool_choice": "auto", "x": 1})
}

/// A request of each API with a text and an image, and the same without the image.
fn with_image() -> Vec<(&'static str, Value, Value)> {
    let text = json!({"type": "text", "text": "hello"});
    let chat =
        |parts: Value| json!({"model": "m", "messages": [{"role": "user", "content": parts}]});
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let url = json!({"type": "image_url", "image_url": {"url": IMAGE}});
    let input = |parts: Value| json!({"model": "m", "input": [{"role": "user", "content": parts}]});
    let ollama = |images: Value| json!({"model": "m", "stream": false, "messages": [{"role": "user", "content": "hello", "images": images}]});
    let typed = |kind: &str| json!({"type": kind, "text": "hello"});
    let seen = json!({"type": "input_image", "image_url": IMAGE});
    vec![
        (CHAT, chat(json!([text, url])), chat(json!([text]))),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [text, block]}]}),
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [text]}]}),
        ),
        (
            "/v1/responses",
            input(json!([typed("input_text"), seen])),
            input(json!([typed("input_text")])),
        ),
        ("/api/chat", ollama(json!(["iVBORw0KGgo="])), ollama(json!([]))),
    ]
}

fn last(fleet: &Fleet) -> Value {
    serde_json::from_slice(&last_body(fleet.a())).unwrap()
}

#[test]
fn refused_tools_are_taken_out() {
    let fleet = start(WITHOUT);
    fleet.a().script([no_tools()]);
    let response = fleet.penstock.post(CHAT, &with_tools());
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("x-penstock-retried-without"), Some("tools"));
    let expected =
        json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "x": 1});
    assert_eq!((last(&fleet), fleet.requests()), (expected, 2), "all else is as it came");
    fleet.wait_idle();
    fleet.wait_metric("penstock_requests_without_total{dropped=\"tools\"}", 1.0);
    fleet.wait_metric(
        "penstock_attempts_total{backend=\"a\",outcome=\"client\",code=\"capability_mismatch\"}",
        1.0,
    );
}

#[test]
fn refused_images_are_taken_out_in_every_dialect() {
    let fleet = start(WITHOUT);
    for (path, body, expected) in with_image() {
        fleet.a().script([no_images()]);
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(response.header("x-penstock-retried-without"), Some("vision"), "{path}");
        match path {
            // Converted for the engine.
            "/api/chat" => assert!(!last(&fleet).to_string().contains("iVBORw0KGgo"), "{path}"),
            _ => assert_eq!(last(&fleet), expected, "{path}"),
        }
    }
    let mut both = with_image().remove(0).1;
    both["tools"] = with_tools()["tools"].clone();
    fleet.a().script([no_tools(), no_images()]);
    let response = fleet.penstock.post(CHAT, &both);
    assert_eq!(response.header("x-penstock-retried-without"), Some("vision, tools"));
}

#[test]
fn only_configured_capabilities_are_removed_for_a_retry() {
    let fleet = start("retry_without: [vision]");
    fleet.a().script([no_tools()]);
    let response = fleet.penstock.post(CHAT, &with_tools());
    assert_eq!((response.status, fleet.requests()), (400, 1));
    assert!(response.text().contains("does not support tools"), "{}", response.text());
    let fleet = start("");
    for (path, body, _) in with_image() {
        fleet.a().script([no_images()]);
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 500, "off by default: {path}");
    }
    assert_eq!(fleet.requests(), 4);
}

#[test]
fn other_errors_are_passed_on() {
    let fleet = start(WITHOUT);
    fleet.a().script([refusal(400, "'messages' is too short")]);
    let response = fleet.penstock.post(CHAT, &with_tools());
    assert_eq!((response.status, fleet.requests()), (400, 1));
    assert!(response.text().contains("too short"), "{}", response.text());
    // An engine that goes on refusing gets the request no third time.
    fleet.a().script([no_tools(), no_tools(), no_tools()]);
    let response = fleet.penstock.post(CHAT, &with_tools());
    assert_eq!((response.status, fleet.requests()), (400, 3));
    assert!(response.text().contains("does not support tools"), "{}", response.text());
}

#[test]
fn request_goes_to_a_backend_that_has_the_capability() {
    let routing = "retry_without: [tools]";
    let fleet = Fleet::start(2, Setup { strategy: "round_robin", routing, ..Setup::default() });
    let post = |body: &Value| fleet.penstock.post(CHAT, body);
    let plain = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    fleet.a().script([no_tools()]);
    for number in 0..6 {
        let response = post(&with_tools());
        assert_eq!(response.status, 200, "{number}: {}", response.text());
        assert_eq!(response.header("x-penstock-retried-without"), None, "another has tools");
    }
    assert_eq!(fleet.a().counters().requests, 1, "its refusal is known");
    assert_eq!(fleet.penstock.backend("a")["models"][0]["lacks"], json!(["tools"]));
    assert!((0..2).all(|_| post(&plain).status == 200));
    assert_eq!(fleet.a().counters().requests, 2, "it serves what it can");
    // No backend is left that may have it: the request is served without.
    fleet.b().script([no_tools()]);
    let response = post(&with_tools());
    assert_eq!(response.header("x-penstock-retried-without"), Some("tools"));
    assert_eq!(fleet.penstock.backend("b")["models"][0]["lacks"], json!(["tools"]));
    let before = fleet.a().counters().requests;
    assert!((0..4).all(|_| post(&with_tools()).status == 200));
    assert_eq!(fleet.a().counters().requests, before + 2, "none is preferred to its equals");
}

#[test]
fn svg_is_refused_up_front() {
    let fleet = start("");
    for (path, mut body, _) in with_image() {
        let svg = "data:image/svg+xml;base64,PHN2Zz4=";
        let text = body.to_string().replace(IMAGE, svg);
        if !text.contains(svg) {
            continue;
        }
        body = serde_json::from_str(&text).unwrap();
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 400, "{path}: {}", response.text());
        assert!(response.text().contains("SVG"), "{}", response.text());
    }
    assert_eq!(fleet.requests(), 0);
    let mut body = with_image().remove(0).1;
    body["messages"][0]["content"][0]["text"] = json!("what is data:image/svg+xml ?");
    assert_eq!(fleet.penstock.post(CHAT, &body).status, 200, "only images count, not the text");
}

#[test]
fn debug_log_has_decisions_counts_and_failed_connections() {
    let sections = "log: { level: debug }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a secret prompt"}]});
    assert_eq!(fleet.penstock.post(CHAT, &body).status, 200);
    crate::support::block_on(fleet.a().kill()).unwrap();
    fleet.penstock.post(CHAT, &body);
    let has = |line: &str, words: &[&str]| words.iter().all(|word| line.contains(word));
    let address = fleet.a().addr().to_string();
    for words in [
        vec!["picked", "backend=a", "model=\"m\"", "candidates=1", "attempt=1"],
        vec!["counted", "backend=\"a\"", "input_tokens=", "output_tokens="],
        vec!["cannot connect", "backend=a", address.as_str()],
    ] {
        let what = format!("{words:?}");
        eventually(&what, std::time::Duration::from_secs(10), || {
            fleet.penstock.log().lines().any(|line| has(line, &words))
        });
    }
    assert!(!fleet.penstock.log().contains("secret"), "no prompt in logs");
}
