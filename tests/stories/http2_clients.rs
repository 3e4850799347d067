//! A client that speaks HTTP/2 is served as one over HTTP/1.1 is: every byte, limit, clock and
//! ending is the same, and only its own stream suffers when something goes wrong.

use std::time::{Duration, Instant};

use h2::Reason;
use penstock::mock::{Cut, Fault, Pace};
use serde_json::json;

use crate::support::client::{chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, reference};
use crate::support::http2::{End, Http2, head, send_all};
use crate::support::{block_on, eventually, free_address};

crate::trials![
    http1_and_http2_share_a_port,
    bodies_of_every_size_arrive_as_they_were_sent,
    what_is_too_large_is_refused_before_it_is_read,
    a_slow_upload_ends_with_its_own_stream,
    many_requests_share_a_connection,
    streams_pass_as_they_come,
    a_client_that_gives_up_frees_its_engine,
    a_broken_answer_never_looks_whole,
    a_stalled_reader_holds_nobody_else_up,
    errors_have_the_same_bodies,
    stopping_finishes_streams_and_says_goodbye,
    an_idle_connection_is_closed,
];

/// A fleet with a second listener that speaks HTTP/2 in plain text.
fn start(count: usize, setup: Setup<'_>) -> (Fleet, std::net::SocketAddr) {
    let address = free_address();
    let listener = format!("{{ address: \"{address}\", http2: true }}");
    let fleet = Fleet::start(count, Setup { listeners: &[listener], ..setup });
    (fleet, address)
}

/// A chat request that is longer by so many bytes, and has no more tokens.
fn padded(size: usize) -> String {
    let mut body = chat("m", "hello");
    body["metadata"] = json!({"padding": "x".repeat(size)});
    body.to_string()
}

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

fn bodies_of_every_size_arrive_as_they_were_sent() {
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
            assert_eq!(lengths, [&*length], "{size}: one length goes on");
        }
    }
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

fn what_is_too_large_is_refused_before_it_is_read() {
    let sections = "limits: { max_body_size: 64KiB, buffered_bodies: 1MiB }";
    let (fleet, address) = start(1, Setup { sections, ..Setup::default() });
    let client = Http2::connect(address);
    let huge = [("content-length", "10737418240")];
    let (response, _end) = client.begin("POST", CHAT, &huge).read();
    assert_eq!((response.status, &*response.error_code()), (413, "body_too_large"));
    let (response, _end) = client.post_bytes(CHAT, &[], &[b'x'; 200_000]);
    assert_eq!((response.status, &*response.error_code()), (413, "body_too_large"));
    let compressed = [("content-encoding", "gzip")];
    let (response, _end) = client.begin("POST", CHAT, &compressed).read();
    assert_eq!(response.status, 415, "{}", response.text());
    assert_eq!(client.post(CHAT, &chat("m", "hello")).status, 200, "the connection goes on");
    assert_eq!(fleet.requests(), 1);
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

fn a_slow_upload_ends_with_its_own_stream() {
    let sections = "limits: { body_read_timeout: 1s }";
    let (fleet, address) = start(1, Setup { sections, ..Setup::default() });
    let client = Http2::connect(address);
    let mut slow = client.begin("POST", CHAT, &[("content-length", "1000")]);
    block_on(send_all(&mut slow.body, b"{\"model\"", false)).unwrap();
    let good = client.post(CHAT, &chat("m", "hello"));
    assert_eq!(good.status, 200, "a neighbour on the same connection is served meanwhile");
    let (response, _end) = slow.read();
    assert_eq!((response.status, &*response.error_code()), (408, "body_timeout"));
    assert_eq!(fleet.requests(), 1);
}

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

fn streams_pass_as_they_come() {
    let (fleet, address) = start(1, Setup::default());
    fleet.a().script([Fault::HangMidStream { after_events: 3 }]);
    let client = Http2::connect(address);
    let mut begun = client.begin_response(CHAT, &streaming_chat("m", "hello"));
    assert_eq!(begun.response.status, 200);
    assert_eq!(begun.response.header("x-accel-buffering"), Some("no"));
    while begun.response.text().matches("data: ").count() < 3 {
        begun.read_some().unwrap().expect("three events, and then nothing for long");
    }
    begun.reset();
    let begun = client.begin_response(CHAT, &streaming_chat("m", "hello"));
    let (response, end) = begun.read();
    assert_eq!(end, End::Whole);
    let whole = reference("a", CHAT, &streaming_chat("m", "hello"));
    let deltas = |text: &str| text.matches("\"content\"").count();
    assert_eq!(deltas(&response.text()), deltas(&whole.text()));
    assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
}

fn a_client_that_gives_up_frees_its_engine() {
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
            let mut begun = pending.read_head().unwrap();
            begun.read_some().unwrap().expect("an event");
            begun.reset();
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
    assert_eq!(fleet.requests(), 3, "half an upload reaches no engine");
    assert_eq!(client.post(CHAT, &chat("m", "hello")).status, 200, "the neighbours are untouched");
    fleet.a().script([Fault::HangBeforeHead]);
    let mut pending = client.begin("POST", CHAT, &[]);
    let body = chat("m", "hello").to_string();
    block_on(send_all(&mut pending.body, body.as_bytes(), true)).unwrap();
    fleet.wait_fact("a", "in_flight", &json!(1));
    client.cut();
    block_on(fleet.a().wait_for(|counters| counters.cancelled == 4)).unwrap();
    fleet.wait_idle();
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"), "leaving is nobody's fault");
}

fn a_broken_answer_never_looks_whole() {
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
    assert_eq!(client.post(CHAT, &chat("m", "hello")).status, 200, "the connection goes on");
}

fn a_stalled_reader_holds_nobody_else_up() {
    let pace = Pace { first_token: Duration::ZERO, per_token: Duration::ZERO, tokens: 40_000 };
    let sections = "limits: { client_write_timeout: 2s }";
    let (fleet, address) = start(2, Setup { pace, sections, ..Setup::default() });
    // Nothing of the stream is read, so its window stays shut.
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

fn errors_have_the_same_bodies() {
    let (fleet, address) = start(1, Setup::default());
    let client = Http2::connect(address);
    for (method, path, body) in [
        ("POST", CHAT, "{"),
        ("POST", CHAT, "{\"model\": \"unknown\", \"messages\": []}"),
        ("GET", CHAT, ""),
        ("GET", "/v1/nothing", ""),
        ("POST", "/v1/messages", "{"),
    ] {
        let plain = crate::support::client::request(
            fleet.penstock.data,
            method,
            path,
            &[],
            body.as_bytes(),
        );
        let (response, end) = if method == "GET" {
            client.send(head(method, path, &[]), true).read()
        } else {
            client.post_bytes(path, &[], body.as_bytes())
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
    assert_eq!(client.get("/health").status, 200, "the connection goes on");
}

fn stopping_finishes_streams_and_says_goodbye() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 25 };
    let (mut fleet, address) = start(1, Setup { pace, ..Setup::default() });
    let (busy, idle) = (Http2::connect(address), Http2::connect(address));
    assert_eq!(idle.get("/health").status, 200);
    let mut stream = busy.begin_response(CHAT, &streaming_chat("m", "hello"));
    stream.read_some().unwrap().expect("an event");
    let asked = Instant::now();
    fleet.penstock.signal("TERM");
    eventually("an idle connection is ended", SOON, || idle.is_over());
    let (response, end) = stream.read();
    assert_eq!(end, End::Whole);
    assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
    eventually("and so is a busy one", SOON, || busy.is_over());
    assert_eq!(fleet.penstock.wait_end(SOON).code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
}

fn an_idle_connection_is_closed() {
    let setup = Setup { server: "keep_alive: 1s", ..Setup::default() };
    let (fleet, address) = start(1, setup);
    let client = Http2::connect(address);
    assert_eq!(client.get("/health").status, 200);
    eventually("the idle connection is closed", SOON, || client.is_over());
    drop(fleet);
}
