//! Broken responses: a response that breaks off ends with an error that the client library
//! understands; a part of a response never looks like a whole one, and no foreign bytes get into a
//! response.

use std::time::Duration;

use penstock_mock::{Cut, Fault};
use serde_json::{Value, json};

use crate::support::block_on;
use crate::support::client::{Client, chat, streaming_chat};
use crate::support::fleet::{
    CHAT, FAULTS_FORGOTTEN, Fleet, Leave, Setup, begin, read_until, reference,
};
use crate::support::pace::pause_between_requests;

/// One dialect's streams.
struct Stream {
    path: &'static str,
    body: Value,
    /// The start of the error event.
    error: &'static str,
    /// The JSON pointer to the error's message.
    message: &'static str,
    /// The text that only a whole stream has.
    last: &'static str,
}

fn streams() -> [Stream; 4] {
    let stream = |path, body, [error, message, last]: [&'static str; 3]| Stream {
        path,
        body,
        error,
        message,
        last,
    };
    let prompt = json!({"model": "m", "stream": true, "prompt": "hello"});
    let input = json!({"model": "m", "stream": true, "input": "hello"});
    let mut messages = streaming_chat("m", "hello");
    messages["max_tokens"] = json!(100);
    let plain = ["data: {", "/error/message", "[DONE]"];
    [
        stream(CHAT, streaming_chat("m", "hello"), plain),
        stream("/v1/completions", prompt, plain),
        stream(
            "/v1/responses",
            input,
            ["event: response.failed\ndata: {", "/response/error/message", "response.completed"],
        ),
        stream(
            "/v1/messages",
            messages,
            ["event: error\ndata: {", "/error/message", "message_stop"],
        ),
    ]
}

const CUTS: [Cut; 4] = [Cut::Fin, Cut::Reset, Cut::BadChunk, Cut::ShortLength];

#[test]
fn broken_stream_ends_with_error_in_its_dialect() {
    let fleet = Fleet::start(1, Setup::default());
    for stream in streams() {
        let whole = reference("a", stream.path, &stream.body).text();
        assert!(whole.contains(stream.last), "{whole}");
        for (how, after_events) in CUTS.into_iter().flat_map(|how| [(how, 0), (how, 4)]) {
            let case = format!("{} {how:?} after {after_events}", stream.path);
            fleet.a().script([Fault::CutStream { after_events, how }]);
            let response = fleet.penstock.post(stream.path, &stream.body);
            let text = response.text();
            assert_eq!(response.status, 200, "{case}: {text}");
            assert!(!text.contains(stream.last), "{case} ends as if it were whole: {text}");
            let (started, error) = text.rsplit_once(stream.error).unwrap_or_else(|| {
                panic!("{case}: no error event: {text}");
            });
            assert!(whole.starts_with(started), "{case}: {text}");
            assert_eq!(started.matches("data: ").count(), after_events as usize, "{case}: {text}");
            let error: Value = serde_json::from_str(&format!("{{{}", error.trim_end())).unwrap();
            let message = error.pointer(stream.message).and_then(Value::as_str).unwrap_or_default();
            assert!(message.contains("backend"), "{case}: {error}");
            let is_failed = error["type"] == "response.failed";
            assert_eq!(is_failed, stream.path == "/v1/responses", "{case}: {error}");
        }
        // After all that, all is well.
        assert_eq!(fleet.penstock.post(stream.path, &stream.body).text(), whole);
    }
    fleet.wait_idle();
}

#[test]
fn broken_response_is_visibly_broken() {
    let fleet = Fleet::start(2, Setup { health: FAULTS_FORGOTTEN, ..Setup::default() });
    let whole = reference("a", CHAT, &chat("m", "hello")).text();
    for how in CUTS {
        fleet.a().script([Fault::CutResponse { how }]);
        let response = fleet.chat();
        assert_eq!(response.status, 200, "{how:?}: {}", response.text());
        assert!(!response.is_whole, "{how:?}: the framing ended as if all was there");
        assert!(whole.starts_with(&response.text()), "{how:?}: {}", response.text());
        assert!(response.text().len() < whole.len(), "{how:?}");
    }
    assert_eq!(fleet.b().counters().requests, 0);
    assert_eq!(fleet.chat().text(), whole);
}

#[test]
fn started_response_is_never_retried() {
    let routing = "retry_unanswered: true, retry_5xx: true";
    let fleet = Fleet::start(2, Setup { routing, health: FAULTS_FORGOTTEN, ..Setup::default() });
    let mut sent = 0;
    for how in CUTS {
        for after_events in [0, 1, 5] {
            fleet.a().script([Fault::CutStream { after_events, how }]);
            assert_eq!(fleet.stream().status, 200);
            sent += 1;
        }
        fleet.a().script([Fault::CutResponse { how }]);
        assert_eq!(fleet.chat().status, 200);
        sent += 1;
    }
    assert_eq!(fleet.a().counters().requests, sent);
    assert_eq!(fleet.b().counters().requests, 0);
}

#[test]
fn engine_error_is_relayed_unchanged() {
    let fleet = Fleet::start(2, Setup { health: FAULTS_FORGOTTEN, ..Setup::default() });
    for stream in streams() {
        fleet.a().script(vec![Fault::ErrorEventMidStream { after_events: 3 }; 2]);
        let through = fleet.penstock.post(stream.path, &stream.body);
        let direct = crate::support::client::post(fleet.a().addr(), stream.path, &stream.body);
        assert!(through.is_whole, "{}", stream.path);
        assert_eq!(through.text(), direct.text());
        assert!(through.text().contains("The engine failed."));
    }
    assert_eq!(fleet.b().counters().requests, 0);
}

#[test]
fn invalid_response_is_502() {
    let fleet = Fleet::start(2, Setup { health: FAULTS_FORGOTTEN, ..Setup::default() });
    for fault in [Fault::Garbage, Fault::Http09, Fault::Switching101, Fault::TwoLengths] {
        for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
            assert_eq!(fleet.chat().status, 200, "a warm connection");
            fleet.a().script([fault.clone()]);
            let response = fleet.penstock.post(CHAT, &body);
            assert_eq!(response.status, 502, "{fault:?}: {}", response.text());
            assert_eq!(response.error_code(), "bad_upstream_response", "{fault:?}");
            let used = fleet.a().received().pop().unwrap().connection;
            assert_eq!(fleet.chat().status, 200);
            let next = fleet.a().received().pop().unwrap().connection;
            assert_ne!(used, next, "{fault:?}: its connection is used again");
        }
    }
    assert_eq!(fleet.b().counters().requests, 0, "it may have been processed");
}

#[test]
fn unsolicited_response_is_discarded() {
    let fleet = Fleet::start(1, Setup::default());
    let whole = reference("a", CHAT, &chat("m", "hello")).text();
    let stream = reference("a", CHAT, &streaming_chat("m", "hello")).text();
    for _ in 0..3 {
        fleet.a().script(vec![Fault::QueuedSecondResponse; 2]);
        assert_eq!(fleet.chat().text(), whole);
        assert_eq!(fleet.stream().text(), stream);
        for _ in 0..4 {
            assert_eq!(fleet.chat().text(), whole, "another request got the queued response");
        }
    }
    let received = fleet.a().received();
    let next = |pair: &[penstock_mock::Received]| pair[0].connection != pair[1].connection;
    assert!(received[..3].windows(2).all(next), "a poisoned connection was used again");
}

#[test]
fn early_response_is_relayed_and_its_connection_closed() {
    let fleet = Fleet::start(2, Setup::default());
    for length in [0, 100 << 10, 24 << 20] {
        fleet.a().script([Fault::Pass, Fault::EarlyStatus(413)]);
        assert_eq!(fleet.chat().status, 200, "a warm connection");
        let mut body = chat("m", "hello");
        body["padding"] = json!("x".repeat(length));
        let response = fleet.penstock.post(CHAT, &body);
        assert_eq!(response.status, 413, "{length}: {}", response.text());
        assert!(response.text().contains("before the body was read"), "{}", response.text());
        let used = fleet.a().received().pop().unwrap().connection;
        assert_eq!(fleet.chat().status, 200);
        assert_ne!(fleet.a().received().pop().unwrap().connection, used, "used again");
    }
    assert_eq!((fleet.a().malformed().len(), fleet.b().counters().requests), (0, 0));
}

#[test]
fn unusual_but_legal_responses_pass() {
    let fleet = Fleet::start(1, Setup::default());
    let whole = reference("a", CHAT, &chat("m", "hello")).text();
    let stream = reference("a", CHAT, &streaming_chat("m", "hello")).text();
    for fault in [
        Fault::Informational { count: 1 },
        Fault::Informational { count: 20 },
        Fault::Informational { count: 500 },
        Fault::BigHead { bytes: 4096 },
        Fault::BigHead { bytes: 48 << 10 },
        Fault::BigHead { bytes: 60 << 10 },
        Fault::CloseDelimited,
        Fault::CloseAfterResponse,
    ] {
        fleet.a().script([fault.clone(), fault.clone()]);
        let response = fleet.chat();
        assert_eq!((response.status, response.text()), (200, whole.clone()), "{fault:?}");
        assert!(response.is_whole, "{fault:?}");
        if let Fault::BigHead { bytes } = fault {
            let names = response.headers.iter().filter(|(name, _)| name.starts_with("x-padding"));
            let kept: usize = names.map(|(_, value)| value.len()).sum();
            assert_eq!(kept, bytes, "padding of the head");
        }
        // A request that crosses the close of its connection gets a 502: the engine may have read
        // it.
        pause_between_requests(Duration::from_millis(50));
        let response = fleet.stream();
        assert_eq!((response.is_whole, response.text()), (true, stream.clone()), "{fault:?}");
        pause_between_requests(Duration::from_millis(50));
    }
    fleet.a().script([Fault::BigHead { bytes: 80 << 10 }]);
    let response = fleet.chat();
    assert_eq!((response.status, response.error_code().as_str()), (502, "bad_upstream_response"));
}

#[test]
fn streams_are_relayed_unbuffered() {
    let fleet = Fleet::start(1, Setup::default());
    fleet.a().script([Fault::HangMidStream { after_events: 4 }]);
    let mut first = fleet.begin(&streaming_chat("m", "hello"));
    let whole = reference("a", CHAT, &streaming_chat("m", "hello")).text();
    // The client has what was sent of a stream before the rest comes.
    let started = read_until(&mut first, " finds");
    assert!(started.contains("a serving m:"), "{started}");
    assert_eq!(fleet.stream().text(), whole);
    let kept = Leave::Fin.now(first);
    block_on(fleet.a().wait_for(|counters| counters.cancelled == 1)).unwrap();
    drop(kept);

    // A client of HTTP/1.0 cannot read chunks: its stream ends with the connection.
    let body = streaming_chat("m", "hello").to_string();
    let mut old = Client::connect(fleet.penstock.data);
    let head = format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    old.send_bytes(head.as_bytes());
    let response = old.read_response().unwrap();
    assert_eq!(response.text(), whole);
    assert_eq!(response.header("connection"), Some("close"), "where it ends must be said");

    // Two requests on one connection, sent at once, get their responses in order.
    let mut eager = begin(fleet.penstock.data, CHAT, &streaming_chat("m", "hello"));
    eager.send("POST", CHAT, &[], chat("m", "hello").to_string().as_bytes());
    assert_eq!(eager.read_response().unwrap().text(), whole);
    let second = eager.read_response().unwrap().text();
    assert_eq!(second, reference("a", CHAT, &chat("m", "hello")).text());
}

#[test]
fn responses_with_a_length_are_relayed_unbuffered() {
    let fleet = Fleet::start(1, Setup::default());
    let whole = reference("a", CHAT, &chat("m", "hello"));
    let length = whole.header("content-length").unwrap().to_owned();
    // The head alone, and the head with half of the body, before the engine falls silent.
    for (fault, part) in [
        (Fault::HangAfterHead, 0),
        (Fault::HangMidStream { after_events: 1 }, whole.body.len() / 2),
    ] {
        fleet.a().script([fault]);
        let mut client = fleet.begin(&chat("m", "hello"));
        let (status, headers) = client.read_head().unwrap();
        assert_eq!(status, 200);
        assert!(headers.contains(&("content-length".to_owned(), length.clone())), "{headers:?}");
        let mut read = Vec::new();
        while read.len() < part {
            read.extend(client.read_raw().unwrap());
        }
        assert_eq!(read, whole.body[..part]);
        let kept = Leave::Fin.now(client);
        fleet.wait_idle();
        drop(kept);
    }
    assert_eq!(fleet.chat().body, whole.body);
}
