//! HTTP/2 clients are served like HTTP/1.1 clients: the same bytes, limits, timeouts and errors,
//! and a failure affects only its own stream.

use std::time::Duration;

use h2::Reason;
use penstock_mock::{Cut, Fault, Pace};
use serde_json::json;

use crate::support::client::{chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, reference};
use crate::support::http2::{End, Http2, head, send_all};
use crate::support::{block_on, eventually, free_address};

/// A fleet with a second listener for cleartext HTTP/2.
pub(crate) fn start(count: usize, setup: Setup<'_>) -> (Fleet, std::net::SocketAddr) {
    let address = free_address();
    let listener = format!("{{ address: \"{address}\", http2: true }}");
    let fleet = Fleet::start(count, Setup { listeners: &[listener], ..setup });
    (fleet, address)
}

/// A chat request that is longer by `size` bytes, with the same tokens.
fn padded(size: usize) -> String {
    let mut body = chat("m", "hello");
    body["metadata"] = json!({"padding": "x".repeat(size)});
    body.to_string()
}

#[test]
fn http1_and_http2_share_a_port() {
    let (fleet, address) = start(1, Setup::default());
    let plain = crate::support::client::post(address, CHAT, &chat("m", "hello"));
    let client = Http2::connect(address);
    let response = client.post(CHAT, &chat("m", "hello"));
    assert_eq!((plain.status, response.status), (200, 200), "{}", response.text());
    assert_eq!(response.json()["choices"], plain.json()["choices"]);
    assert!(response.header("x-request-id").is_some());
    assert_eq!(response.header("transfer-encoding"), None);
    assert_eq!(client.get("/health").json()["status"], "healthy");
    let list = client.send(head("HEAD", "/v1/models", &[]), true).read();
    assert_eq!((list.0.status, list.0.body.len(), list.1), (200, 0, End::Whole));
    assert_eq!(fleet.requests(), 2);
}

#[test]
fn bodies_of_every_size_arrive_unchanged() {
    let (fleet, address) = start(1, Setup::default());
    let client = Http2::connect(address);
    for size in [0, 1, 16_383, 16_384, 65_535, 65_536, 300_000, 1 << 20, 20 << 20] {
        let body = padded(size);
        let length = body.len().to_string();
        for headers in [&[("content-length", &*length)][..], &[]] {
            let (response, end) = client.post_bytes(CHAT, headers, body.as_bytes());
            assert_eq!((response.status, end), (200, End::Whole), "{size}: {}", response.text());
            let received = fleet.a().received().pop().unwrap();
            assert!(received.body.unwrap() == body.as_bytes(), "{size}: other bytes arrived");
            let lengths: Vec<&str> = received
                .headers
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map(|(_, value)| &**value)
                .collect();
            assert_eq!(lengths, [&*length], "{size}: exactly one length is forwarded");
        }
    }
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

#[test]
fn oversized_bodies_are_refused_before_they_are_read() {
    let sections = "limits: { max_body_size: 64KiB, buffered_bodies: 1MiB }";
    let (fleet, address) = start(1, Setup { sections, ..Setup::default() });
    let client = Http2::connect(address);
    let huge = [("content-length", "10737418240")];
    let (response, _end) = client.begin("POST", CHAT, &huge).read();
    assert_eq!((response.status, &*response.error_code()), (413, "body_too_large"));
    let (response, _end) = client.post_bytes(CHAT, &[], &[b'x'; 200_000]);
    assert_eq!((response.status, &*response.error_code()), (413, "body_too_large"));
    let compressed = [("content-encoding", "compress")];
    let (response, _end) = client.begin("POST", CHAT, &compressed).read();
    assert_eq!(response.status, 415, "{}", response.text());
    assert_eq!(client.post(CHAT, &chat("m", "hello")).status, 200, "the connection stays open");
    assert_eq!(fleet.requests(), 1);
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

#[test]
fn slow_upload_times_out_alone() {
    let sections = "limits: { body_read_timeout: 1s }";
    let (fleet, address) = start(1, Setup { sections, ..Setup::default() });
    let client = Http2::connect(address);
    let mut slow = client.begin("POST", CHAT, &[("content-length", "1000")]);
    block_on(send_all(&mut slow.body, b"{\"model\"", false)).unwrap();
    let good = client.post(CHAT, &chat("m", "hello"));
    assert_eq!(good.status, 200, "another stream of the connection is served meanwhile");
    let (response, _end) = slow.read();
    assert_eq!((response.status, &*response.error_code()), (408, "body_timeout"));
    assert_eq!(fleet.requests(), 1);
}

#[test]
fn many_requests_share_a_connection() {
    let pace =
        Pace { first_token: Duration::from_millis(100), per_token: Duration::ZERO, tokens: 8 };
    let (fleet, address) = start(2, Setup { pace, strategy: "round_robin", ..Setup::default() });
    let client = Http2::connect(address);
    let responses: Vec<(usize, _)> = (0..100)
        .map(|number| {
            let body = chat("m", &format!("number {number}")).to_string();
            let mut pending = client.begin("POST", CHAT, &[]);
            block_on(send_all(&mut pending.body, body.as_bytes(), true)).unwrap();
            (number, pending)
        })
        .collect();
    for (number, pending) in responses {
        let (response, end) = pending.read();
        assert_eq!((response.status, end), (200, End::Whole), "{number}: {}", response.text());
    }
    assert_eq!(fleet.requests(), 100);
    fleet.wait_idle();
}

#[test]
fn streamed_responses_pass_unbuffered() {
    let (fleet, address) = start(1, Setup::default());
    fleet.a().script([Fault::HangMidStream { after_events: 3 }]);
    let client = Http2::connect(address);
    let mut stream = client.begin_response(CHAT, &streaming_chat("m", "hello"));
    assert_eq!(stream.response.status, 200);
    assert_eq!(stream.response.header("x-accel-buffering"), Some("no"));
    while stream.response.text().matches("data: ").count() < 3 {
        stream.read_some().unwrap().expect("three events before the engine hangs");
    }
    stream.reset();
    let stream = client.begin_response(CHAT, &streaming_chat("m", "hello"));
    let (response, end) = stream.read();
    assert_eq!(end, End::Whole);
    let whole = reference("a", CHAT, &streaming_chat("m", "hello"));
    let deltas = |text: &str| text.matches("\"content\"").count();
    assert_eq!(deltas(&response.text()), deltas(&whole.text()));
    assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
}

#[test]
fn responses_with_a_length_pass_unbuffered() {
    let (fleet, address) = start(1, Setup::default());
    let whole = reference("a", CHAT, &chat("m", "hello"));
    let half = whole.body.len() / 2;
    fleet.a().script([Fault::HangMidStream { after_events: 1 }]);
    let client = Http2::connect(address);
    let mut started = client.begin_response(CHAT, &chat("m", "hello"));
    assert_eq!(started.response.header("content-length"), whole.header("content-length"));
    while started.response.body.len() < half {
        started.read_some().unwrap().expect("half of the body before the engine hangs");
    }
    assert_eq!(started.response.body, whole.body[..half]);
    started.reset();
    fleet.wait_idle();
}

#[test]
fn cancelled_request_frees_its_backend() {
    let (fleet, address) = start(1, Setup::default());
    let client = Http2::connect(address);
    for (number, body) in
        (1..).zip([chat("m", "hello"), streaming_chat("m", "hello"), streaming_chat("m", "hello")])
    {
        let during_stream = number == 3;
        fleet.a().script([if during_stream {
            Fault::HangMidStream { after_events: 2 }
        } else {
            Fault::HangBeforeHead
        }]);
        let mut pending = client.begin("POST", CHAT, &[]);
        block_on(send_all(&mut pending.body, body.to_string().as_bytes(), true)).unwrap();
        if during_stream {
            let mut stream = pending.read_head().unwrap();
            stream.read_some().unwrap().expect("an event");
            stream.reset();
        } else {
            fleet.wait_fact("a", "in_flight", &json!(1));
            pending.body.send_reset(Reason::CANCEL);
        }
        block_on(fleet.a().wait_for(move |counters| counters.cancelled == number)).unwrap();
        fleet.wait_idle();
    }
    let mut upload = client.begin("POST", CHAT, &[("content-length", "1000")]);
    block_on(send_all(&mut upload.body, b"{", false)).unwrap();
    fleet.wait_metric("penstock_in_flight", 1.0);
    upload.body.send_reset(Reason::CANCEL);
    fleet.wait_metric("penstock_in_flight", 0.0);
    assert_eq!(fleet.requests(), 3, "an incomplete upload reaches no engine");
    assert_eq!(
        client.post(CHAT, &chat("m", "hello")).status,
        200,
        "other streams are not affected"
    );
    fleet.a().script([Fault::HangBeforeHead]);
    let mut pending = client.begin("POST", CHAT, &[]);
    let body = chat("m", "hello").to_string();
    block_on(send_all(&mut pending.body, body.as_bytes(), true)).unwrap();
    fleet.wait_fact("a", "in_flight", &json!(1));
    client.cut();
    block_on(fleet.a().wait_for(|counters| counters.cancelled == 4)).unwrap();
    fleet.wait_idle();
    assert_eq!(
        fleet.fact("a", "breaker"),
        json!("closed"),
        "a disconnect does not count against the backend"
    );
}

#[test]
fn broken_response_never_looks_complete() {
    let (fleet, address) = start(1, Setup::default());
    let client = Http2::connect(address);
    for how in [Cut::Fin, Cut::Reset] {
        fleet.a().script([Fault::CutResponse { how }]);
        let body = chat("m", "hello").to_string();
        let (response, end) = client.post_bytes(CHAT, &[], body.as_bytes());
        assert_eq!(response.status, 200);
        assert!(matches!(end, End::Reset(_)), "{how:?}: {end:?}: {}", response.text());
        fleet.a().script([Fault::CutStream { after_events: 3, how }]);
        let body = streaming_chat("m", "hello").to_string();
        let (response, _end) = client.post_bytes(CHAT, &[], body.as_bytes());
        let text = response.text();
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with("data: {\"error\""), "{how:?}: {text}");
        assert!(!text.contains("[DONE]"), "{how:?}: {text}");
    }
    assert_eq!(client.post(CHAT, &chat("m", "hello")).status, 200, "the connection stays open");
}

#[test]
fn stalled_reader_does_not_block_other_streams() {
    let pace = Pace { first_token: Duration::ZERO, per_token: Duration::ZERO, tokens: 40_000 };
    let sections = "limits: { client_write_timeout: 2s }";
    let (fleet, address) = start(2, Setup { pace, sections, ..Setup::default() });
    // The client reads nothing of the stream, so its window stays closed.
    let client = Http2::connect(address);
    let stalled = client.begin_response(CHAT, &streaming_chat("m", "hello"));
    assert_eq!(stalled.response.status, 200);
    for _ in 0..5 {
        assert_eq!(client.get("/health").status, 200, "its connection serves others");
    }
    fleet.wait_metric("penstock_in_flight", 0.0);
    let (response, end) = stalled.read();
    assert!(matches!(end, End::Reset(_)), "{end:?} after {} bytes", response.body.len());
    let page = fleet.penstock.admin("/metrics").text();
    assert!(page.contains("outcome=\"cancel\""), "{page}");
}

#[test]
fn errors_are_the_same_as_over_http1() {
    let (fleet, address) = start(1, Setup::default());
    let client = Http2::connect(address);
    for (method, path, body) in [
        ("POST", CHAT, "{"),
        ("POST", CHAT, "{\"model\": \"unknown\", \"messages\": []}"),
        ("GET", CHAT, ""),
        ("GET", "/v1/nothing", ""),
        ("POST", "/v1/messages", "{"),
    ] {
        let id = [("x-request-id", "mine")];
        let body = body.as_bytes();
        let plain = crate::support::client::request(fleet.penstock.data, method, path, &id, body);
        let (response, end) = if method == "GET" {
            client.send(head(method, path, &id), true).read()
        } else {
            client.post_bytes(path, &id, body)
        };
        assert_eq!(end, End::Whole, "{method} {path}");
        assert_eq!(response.status, plain.status, "{method} {path}");
        assert_eq!(response.text(), plain.text(), "{method} {path}");
        assert_eq!(response.header("x-should-retry"), plain.header("x-should-retry"));
    }
    let long = "x".repeat(70_000);
    let (response, _end) = client.send(head("GET", "/health", &[("x-long", &long)]), true).read();
    assert_eq!(response.status, 431, "more than 64KiB of header fields");
    let many: Vec<String> = (0..120).map(|number| format!("x-{number}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "1")).collect();
    let (response, _end) = client.send(head("GET", "/health", &many), true).read();
    assert_eq!((response.status, &*response.error_code()), (431, "head_too_large"));
    assert_eq!(client.get("/health").status, 200, "the connection stays open");
}

#[test]
fn shutdown_finishes_streams_and_sends_goaway() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 25 };
    let (mut fleet, address) = start(1, Setup { pace, ..Setup::default() });
    let (busy, idle) = (Http2::connect(address), Http2::connect(address));
    assert_eq!(idle.get("/health").status, 200);
    let mut stream = busy.begin_response(CHAT, &streaming_chat("m", "hello"));
    stream.read_some().unwrap().expect("an event");
    fleet.penstock.signal("TERM");
    eventually("the idle connection is closed", SOON, || idle.is_over());
    let (response, end) = stream.read();
    assert_eq!(end, End::Whole);
    assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
    eventually("and then the busy one", SOON, || busy.is_over());
    assert_eq!(fleet.penstock.wait_end(SOON).code(), Some(0));
    let log = fleet.penstock.log();
    assert!(log.contains("drained, exiting"), "it ended before the timeout cut it: {log}");
}

#[test]
fn idle_connection_is_closed() {
    let setup = Setup { server: "keep_alive: 1s", ..Setup::default() };
    let (fleet, address) = start(1, setup);
    let client = Http2::connect(address);
    assert_eq!(client.get("/health").status, 200);
    eventually("the idle connection is closed", SOON, || client.is_over());
    drop(fleet);
}
