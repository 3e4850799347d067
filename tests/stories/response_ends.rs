//! The end of a response, and what is no response of an engine at all: neither looks like a
//! success, and an engine that has sent all of its response has done its work.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::response_outcomes::{
    CHATS, EVENTS, HELLO, HELLO_EVENTS, JSON, alone, beside_a_good_one, served_elsewhere,
};
use crate::support::client::{chat, streaming_chat};
use crate::support::eventually;
use crate::support::fleet::{CHAT, SOON, find_metric};
use crate::support::penstock::Penstock;
use crate::support::raw_engine::{Respond, chunked, until_close, whole};

const LINES: &str = "application/x-ndjson";
const REDIRECT: &[u8] =
    b"HTTP/1.1 302 Found\r\nlocation: http://10.1.2.3/\r\ncontent-length: 0\r\n\r\n";

/// Returns the attempts at the only backend with this outcome.
fn attempts(penstock: &Penstock, outcome: &str) -> f64 {
    let series = format!("penstock_attempts_total{{backend=\"only\",outcome=\"{outcome}\"");
    find_metric(penstock, &series).unwrap_or(0.0)
}

#[test]
fn responses_that_are_no_results_go_elsewhere() {
    let responses: [Respond; 8] = [
        |_, _| REDIRECT.to_vec(),
        |_, _| whole(200, "text/html", "<html>Log in</html>"),
        |_, _| chunked("text/html", "<html>Log in</html>"),
        |_, _| whole(200, "text/plain", r#"{"error":{"message":"it broke"}}"#),
        |_, _| whole(200, JSON, r#"{"detail":"Not authenticated"}"#),
        |_, _| whole(200, JSON, r#"{"success":false,"message":"no route"}"#),
        |_, _| whole(200, JSON, "{}"),
        |_, _| whole(200, JSON, "null"),
    ];
    for (number, respond) in responses.into_iter().enumerate() {
        let (bad, penstock) = beside_a_good_one(respond, "");
        for stream in [false, true] {
            let met = served_elsewhere(&bad, &penstock, stream);
            assert!(met < 8 && (stream || met > 0), "{number}, {stream}: {met} of 8");
        }
        let faults = "penstock_attempts_total{backend=\"bad\",outcome=\"fault\"";
        assert!(find_metric(&penstock, faults).unwrap() >= 1.0, "{number}");
    }
}

#[test]
fn client_is_not_redirected_to_an_address_of_the_operator() {
    let (_engine, penstock) = alone(|_, _| REDIRECT.to_vec(), CHATS);
    let response = penstock.chat("m");
    assert_eq!((response.status, response.header("location")), (502, None));
    assert!(response.text().contains("is not that of an engine"), "{}", response.text());
}

#[test]
fn stream_is_complete_with_its_last_event() {
    let open: [Respond; 2] = [
        // The connection stays open.
        |_, _| {
            let mut response = chunked(EVENTS, HELLO_EVENTS);
            response.truncate(response.len() - 5);
            response
        },
        // It is closed before the last chunk.
        |_, _| {
            let mut response = chunked(EVENTS, HELLO_EVENTS);
            response.truncate(response.len() - 5);
            let head = "HTTP/1.1 200 OK\r\n";
            [head.as_bytes(), b"connection: close\r\n", &response[head.len()..]].concat()
        },
    ];
    for respond in open {
        let (engine, penstock) = alone(respond, CHATS);
        for _ in 0..2 {
            let response = penstock.post(CHAT, &streaming_chat("m", "hi"));
            assert!(response.is_whole, "{}", response.text());
            assert_eq!(response.text(), HELLO_EVENTS);
        }
        assert_eq!((attempts(&penstock, "ok"), attempts(&penstock, "fault")), (2.0, 0.0));
        assert_eq!(engine.take_requests().len(), 2);
    }
}

#[test]
fn stream_without_an_ending_ends_with_an_error() {
    let (_engine, penstock) = alone(
        |_, _| {
            let (first, _) = HELLO_EVENTS.split_once("\n\n").unwrap();
            chunked(EVENTS, &format!("{first}\n\n"))
        },
        CHATS,
    );
    let text = penstock.post(CHAT, &streaming_chat("m", "hi")).text();
    let last: Value =
        serde_json::from_str(text.trim_end().rsplit_once("data: ").unwrap().1).unwrap();
    assert!(last["error"]["message"].is_string(), "{text}");
    assert_eq!((attempts(&penstock, "ok"), attempts(&penstock, "fault")), (0.0, 1.0));
}

#[test]
fn speech_without_its_last_event_ends_with_an_error() {
    let engine = "engine: openai, models: [{ id: m, operations: [speech] }]";
    let (_engine, penstock) = alone(
        |_, body| {
            let delta = "data: {\"type\":\"speech.audio.delta\",\"audio\":\"AAAA\"}\n\n";
            let end = match body {
                _ if body.contains("typed") => "data: {\"type\":\"speech.audio.done\"}\n\n",
                _ if body.contains("done") => "data: [DONE]\n\n",
                _ if body.contains("half") => "data: {\"type\":\"speech.aud",
                _ => "",
            };
            match body.contains("other") {
                true => chunked(EVENTS, "data: {\"audio\":\"AAAA\"}\n\n"),
                false => chunked(EVENTS, &format!("{delta}{end}")),
            }
        },
        engine,
    );
    for (input, is_good) in
        [("typed", true), ("done", true), ("other", true), ("half", false), ("none", false)]
    {
        let body = json!({"model": "m", "voice": "x", "input": input, "stream_format": "sse"});
        let text = penstock.post("/v1/audio/speech", &body).text();
        assert_eq!(!text.contains("\"error\""), is_good, "{input}: {text}");
    }
    assert_eq!((attempts(&penstock, "ok"), attempts(&penstock, "fault")), (3.0, 2.0));
}

#[test]
fn cut_within_the_last_event_is_visible() {
    let engine = "engine: vllm, models: [{ id: m, operations: [responses] }]";
    let (_engine, penstock) = alone(
        |_, _| {
            let event = "event: response.completed\ndata: {\"type\":\"response.completed\",\"x\":1";
            let length = event.len();
            format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {EVENTS}\r\n\
                 transfer-encoding: chunked\r\n\r\n{length:x}\r\n{event}\r\n"
            )
            .into_bytes()
        },
        engine,
    );
    let body = json!({"model": "m", "stream": true, "input": "hi"});
    let text = penstock.post("/v1/responses", &body).text();
    assert!(text.contains("response.failed"), "{text}");
    assert_eq!((attempts(&penstock, "ok"), attempts(&penstock, "fault")), (0.0, 1.0));
}

#[test]
fn what_is_not_read_is_passed_on() {
    const NUMBERS: &[u8] = &[60, 0, 128, 63, 0, 0, 0, 64];
    let binary: Respond = |_, _| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 8\r\n\r\n";
        [head.as_bytes(), NUMBERS].concat()
    };
    let engine = "engine: vllm, models: [{ id: m, operations: [embeddings] }]";
    let (_engine, penstock) = alone(binary, engine);
    let body = json!({"model": "m", "input": "hi", "encoding_format": "bytes"});
    assert_eq!(penstock.post("/v1/embeddings", &body).body, NUMBERS);
    let encoded: Respond = |_, _| {
        let response = String::from_utf8(chunked(EVENTS, "gzip")).unwrap();
        response.replacen("\r\n", "\r\ncontent-encoding: gzip\r\n", 1).into_bytes()
    };
    let (_engine, passing) = alone(encoded, CHATS);
    assert_eq!(passing.post(CHAT, &streaming_chat("m", "hi")).text(), "gzip");
    assert_eq!((attempts(&penstock, "fault"), attempts(&passing, "fault")), (0.0, 0.0));
}

#[test]
fn json_that_its_connection_cuts_is_visibly_broken() {
    let (_engine, penstock) = alone(|_, _| until_close(JSON, &HELLO[..HELLO.len() / 2]), CHATS);
    let response = penstock.post(CHAT, &chat("m", "hi"));
    assert!(!response.is_whole, "{}", response.text());
    let (_engine, sound) = alone(|_, _| until_close(JSON, HELLO), CHATS);
    let response = sound.post(CHAT, &chat("m", "hi"));
    assert_eq!((response.text().as_str(), response.is_whole), (HELLO, true));
    assert_eq!((attempts(&penstock, "fault"), attempts(&sound, "ok")), (1.0, 1.0));
}

#[test]
fn last_line_of_a_stream_may_lack_its_line_end() {
    let engine = "engine: ollama, models: [{ id: m, operations: [ollama_chat] }]";
    let respond: [Respond; 2] = [|_, _| chunked(LINES, OLLAMA), |_, _| until_close(LINES, OLLAMA)];
    for respond in respond {
        let (_engine, penstock) = alone(respond, engine);
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        assert_eq!(penstock.post("/api/chat", &body).text(), OLLAMA);
        assert_eq!((attempts(&penstock, "ok"), attempts(&penstock, "fault")), (1.0, 0.0));
        let tokens = "penstock_tokens_total{model=\"m\",backend=\"only\",type=\"output\"}";
        eventually("the last line is counted", SOON, || {
            find_metric(&penstock, tokens) == Some(3.0)
        });
    }
}

const OLLAMA: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},\"done\":false}\n{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"prompt_eval_count\":5,\"eval_count\":3}";

#[test]
fn failed_generation_is_a_fault() {
    let respond: [Respond; 2] = [
        |_, _| whole(200, JSON, &HELLO.replace("\"stop\"", "\"error\"")),
        |_, _| chunked(EVENTS, &HELLO_EVENTS.replace("\"stop\"", "\"abort\"")),
    ];
    for (respond, body) in respond.into_iter().zip([chat("m", "hi"), streaming_chat("m", "hi")]) {
        let (_engine, penstock) = alone(respond, CHATS);
        assert_eq!(penstock.post(CHAT, &body).status, 200);
        assert_eq!((attempts(&penstock, "ok"), attempts(&penstock, "fault")), (0.0, 1.0));
    }
}

/// Starts an engine that sends an interim response before each of its pages. Returns its address,
/// and the number of pages.
fn hinting_engine() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pages);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // A small request comes in one read.
            if stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                counted.fetch_add(1, Ordering::Relaxed);
                let page = whole(200, JSON, r#"{"object":"list","data":[{"id":"m"}]}"#);
                let hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
                _ = stream.write_all(&[hints, &page[..]].concat());
            }
        }
    });
    (address, pages)
}

#[test]
fn interim_responses_stop_no_checks() {
    let (address, pages) = hinting_engine();
    let every = "interval: 50ms, fast_interval: 50ms";
    let penstock = Penstock::start(&format!(
        "backends:\n  - {{ name: only, url: \"http://{address}\", engine: vllm, health: {{ {every} }} }}\n"
    ));
    eventually("it is checked again and again", SOON, || pages.load(Ordering::Relaxed) > 20);
    assert_eq!(penstock.backend("only")["models"][0]["id"], "m");
    assert!(!penstock.log().contains("panicked"), "{}", penstock.log());
    assert_eq!(find_metric(&penstock, "penstock_backend_up{backend=\"only\"}"), Some(1.0));
}
