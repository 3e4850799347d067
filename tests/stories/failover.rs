//! Failover: requests succeed although backends fail, as long as another backend can take them, and
//! a request that may already have been processed is never processed twice.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use penstock_mock::{Fault, Pace, TrafficCounters};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::support::block_on;
use crate::support::client::{chat, streaming_chat, timed};
use crate::support::fleet::{CHAT, FAULTS_FORGOTTEN, Fleet, SOON, Setup, engine, name, reference};
use crate::support::pace::pause_between_readings;
use crate::support::penstock::Penstock;

#[test]
fn refused_connections_fail_over() {
    let fleet = Fleet::start(2, Setup::default());
    block_on(fleet.a().kill()).unwrap();
    let whole = reference("b", CHAT, &chat("m", "hello"));
    let stream = reference("b", CHAT, &streaming_chat("m", "hello"));
    for _ in 0..10 {
        let response = fleet.chat();
        assert_eq!((response.status, response.text()), (200, whole.text()));
        let response = fleet.stream();
        assert_eq!((response.is_whole, response.text()), (true, stream.text()));
    }
    assert_eq!(fleet.a().counters().requests, 0);
    assert_eq!(fleet.b().counters().complete, 20, "each request ran once");
}

#[test]
fn unread_request_fails_over_byte_for_byte() {
    let fleet = Fleet::start(2, Setup::default());
    // More than sockets hold, so that it cannot have been written whole.
    let mut body = chat("m", "hello");
    body["padding"] = json!("x".repeat(4 << 20));
    fleet.a().script([Fault::CloseUnread]);
    let response = fleet.penstock.post(CHAT, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let received = fleet.b().received().pop().unwrap();
    assert!(received.body.unwrap() == body.to_string().as_bytes(), "the retry has the same bytes");
    assert_eq!(fleet.a().counters().complete, 0);
    assert_eq!(fleet.b().counters().complete, 1);
}

#[test]
fn close_at_accept_never_runs_a_request_twice() {
    for fault in [Fault::CloseOnAccept, Fault::ResetOnAccept] {
        let fleet = Fleet::start(2, Setup::default());
        fleet.a().script(vec![fault.clone(); 10]);
        let mut served = 0;
        for _ in 0..40 {
            let response = fleet.chat();
            // Whether the kernel had acknowledged the request before the end is a matter of luck.
            match response.status {
                200 => served += 1,
                502 => assert_eq!(response.error_code(), "upstream_closed"),
                status => panic!("{fault:?}: {status} {}", response.text()),
            }
        }
        assert!(served >= 30, "{fault:?}: {served} of 40 served, 10 connections failed");
        let complete: usize = fleet.engines.iter().map(|one| one.counters().complete).sum();
        assert_eq!(complete, served, "{fault:?}: each request that was read ran once");
    }
}

/// Serves health checks; of the first request it reads a little, and then resets the connection.
fn engine_with_a_full_window() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 64];
            if stream.read(&mut head).unwrap_or(0) > 0 && head.starts_with(b"GET ") {
                let ok = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(ok).unwrap();
                continue;
            }
            // By then the whole request is written, and most of it waits for room in the window.
            pause_between_readings(Duration::from_millis(300));
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    });
    address
}

#[test]
fn request_stuck_in_the_send_buffer_fails_over() {
    let (address, engine) = (engine_with_a_full_window(), engine("b", Pace::at_once(8)));
    let penstock = Penstock::start(&format!(
        "routing: {{ strategy: priority_only }}\nhealth: {{ interval: 60s, fast_interval: 60s }}\n\
         backends:\n  - {{ name: a, url: 'http://{address}', engine: vllm, priority: 0, models: [m] }}\n  \
         - {{ name: b, url: {}, priority: 1, models: [m] }}\n",
        engine.url()
    ));
    let mut body = chat("m", "hello");
    body["padding"] = json!("x".repeat(600 << 10));
    let response = penstock.post(CHAT, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(engine.counters().complete, 1);
    assert_eq!(penstock.backend("a")["requests_total"], 1);
}

#[test]
fn closed_idle_connection_is_replaced_and_request_runs_once() {
    let fleet = Fleet::start(1, Setup::default());
    let expected = reference("a", CHAT, &chat("m", "hello"));
    for _ in 0..20 {
        fleet.a().script([Fault::CloseAfterResponse]);
        assert_eq!(fleet.chat().text(), expected.text());
        // A request that arrives before the close may have been read.
        let has_closed = |counters: &TrafficCounters| counters.open_connections == 0;
        block_on(fleet.a().wait_for(has_closed)).unwrap();
    }
    block_on(fleet.a().close_connections());
    assert_eq!(fleet.chat().text(), expected.text());
    let connections: HashSet<u64> =
        fleet.a().received().iter().map(|request| request.connection).collect();
    assert_eq!(connections.len(), 21, "each connection closed after one response");
    assert_eq!(fleet.a().counters().complete, 21, "each request ran once");
}

#[test]
fn ambiguous_end_of_a_reused_connection_is_not_retried() {
    for fault in [Fault::CloseUnread, Fault::CloseAfterRequest, Fault::ResetAfterRequest] {
        let routing = "retry_unanswered: never";
        let fleet = Fleet::start(2, Setup { routing, ..Setup::default() });
        assert_eq!(fleet.chat().status, 200);
        fleet.a().script([fault.clone()]);
        let response = fleet.chat();
        assert_eq!(response.status, 502, "{fault:?}: {}", response.text());
        assert_eq!(response.error_code(), "upstream_closed");
        assert_eq!(fleet.requests() - usize::from(!matches!(fault, Fault::CloseUnread)), 1);
        assert_eq!(fleet.chat().status, 200, "{fault:?}: and it goes on");
    }
}

#[test]
fn retry_after_sets_the_cooldown() {
    for status in [429, 503] {
        let fleet = Fleet::start(3, Setup::default());
        fleet.a().always(Some(Fault::status_with_retry(status, "30")));
        let expected = reference("b", CHAT, &chat("m", "hello"));
        for _ in 0..40 {
            let response = fleet.chat();
            assert_eq!((response.status, response.text()), (200, expected.text()));
        }
        assert_eq!(
            fleet.a().counters().requests,
            1,
            "one request only during its {status} cooldown"
        );
        assert!(fleet.requests() <= 50, "{} requests for 40", fleet.requests());
        let left = fleet.fact("a", "cooldown_remaining_s").as_f64().unwrap();
        assert!((20.0..=33.0).contains(&left), "{left}");
        assert_eq!(fleet.fact("a", "cooldown_status"), json!(status));
        assert_eq!(fleet.fact("a", "breaker"), json!("closed"), "a refusal is no fault");
    }
}

#[test]
fn cooldown_stays_within_configured_bounds() {
    let cases: [(&str, &str, f64, f64); 8] = [
        ("retry-after", "7", 4.0, 7.8),
        ("retry-after", "100000", 15.0, 20.0),
        ("retry-after", "0", 1.0, 2.0),
        ("retry-after", "soon", 3.0, 6.7),
        ("retry-after", "Fri, 31 Dec 2100 23:59:59 GMT", 15.0, 20.0),
        ("retry-after-ms", "8500", 5.5, 9.4),
        ("retry-after-ms", "1", 1.0, 2.0),
        ("x-other", "1", 3.0, 6.7),
    ];
    let models = vec!["m"; cases.len() + 1];
    let routing = "max_retries: 9, cooldown: { min: 2s, max: 20s, default: 6s }";
    let fleet = Fleet::of(&models, Setup { routing, ..Setup::default() });
    for ((header, value, ..), engine) in cases.iter().zip(&fleet.engines) {
        engine.script([Fault::Status {
            status: 503,
            retry_after: None,
            body: "{}".to_owned(),
            headers: vec![((*header).to_owned(), (*value).to_owned())],
        }]);
    }
    assert_eq!(fleet.chat().status, 200);
    for ((header, value, least, most), index) in cases.into_iter().zip(0..) {
        let left = fleet.fact(&name(index), "cooldown_remaining_s").as_f64().unwrap();
        assert!((least..=most).contains(&left), "{header}: {value} is {left} s");
    }
}

#[test]
fn response_to_older_request_does_not_end_cooldown() {
    let fleet = Fleet::start(2, Setup::default());
    let gate = penstock_mock::Gate::new();
    fleet.a().script([Fault::Gate(gate.clone()), Fault::status_with_retry(429, "30")]);
    let mut older = fleet.begin(&chat("m", "hello"));
    block_on(gate.reached_by(1));
    assert_eq!(fleet.chat().status, 200, "the refusal is hidden");
    gate.open();
    assert_eq!(older.read_response().unwrap().status, 200);
    fleet.wait_fact("a", "in_flight", &json!(0));
    let left = fleet.fact("a", "cooldown_remaining_s").as_f64();
    assert!(left.is_some_and(|left| left > 15.0), "Retry-After was 30 s, {left:?} are left");
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(fleet.a().counters().requests, 2);
}

#[test]
fn status_500_is_retried_only_with_retry_5xx() {
    let refusal = Fault::Status {
        status: 500,
        retry_after: None,
        body: r#"{"error":{"message":"cuda out of memory","code":500}}"#.to_owned(),
        headers: vec![("x-engine".to_owned(), "kept".to_owned())],
    };
    let fleet = Fleet::start(2, Setup::default());
    fleet.a().script([refusal.clone()]);
    let response = fleet.chat();
    assert_eq!(response.status, 500);
    assert_eq!(response.json()["error"]["message"], "cuda out of memory");
    assert_eq!(response.header("x-engine"), Some("kept"));
    assert_eq!(fleet.requests(), 1, "a generation may have run");

    let allowing = Fleet::start(2, Setup { routing: "retry_5xx: true", ..Setup::default() });
    allowing.a().script([refusal.clone(), refusal.clone()]);
    assert_eq!(allowing.chat().text(), reference("b", CHAT, &chat("m", "hello")).text());
    assert_eq!(allowing.requests(), 2);
    allowing.b().script([refusal]);
    let response = allowing.chat();
    assert_eq!(
        (response.status, allowing.requests()),
        (500, 4),
        "both failed: the last is relayed"
    );
    assert_eq!(response.json()["error"]["message"], "cuda out of memory");
    assert_eq!(response.header("x-engine"), Some("kept"));
}

#[test]
fn lost_connection_is_retried_once() {
    let health = FAULTS_FORGOTTEN;
    let start = |routing| Fleet::start(3, Setup { routing, health, ..Setup::default() });
    let never = start("retry_unanswered: never");
    let lost = start("max_retries: 5");
    let always = start("retry_unanswered: always");
    for fault in [Fault::CloseAfterRequest, Fault::ResetAfterRequest] {
        for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
            let before = never.requests();
            never.a().script([fault.clone()]);
            let response = never.penstock.post(CHAT, &body);
            assert_eq!(response.status, 502, "{fault:?}: {}", response.text());
            assert_eq!(response.error_code(), "upstream_closed");
            assert_eq!(never.requests(), before + 1, "{fault:?}: it may have been processed");

            let before = lost.requests();
            lost.a().script([fault.clone()]);
            let response = lost.penstock.post(CHAT, &body);
            assert_eq!(response.text(), reference("b", CHAT, &body).text());
            assert_eq!(lost.requests(), before + 2, "{fault:?}");

            let before = lost.requests();
            lost.a().script([fault.clone()]);
            lost.b().script([fault.clone()]);
            let response = lost.penstock.post(CHAT, &body);
            assert_eq!((response.status, &*response.error_code()), (502, "upstream_closed"));
            assert_eq!(response.header("x-should-retry"), Some("false"));
            assert_eq!(lost.requests(), before + 2, "{fault:?}: no third engine");

            let before = always.requests();
            always.a().script([fault.clone()]);
            always.b().script([fault.clone()]);
            let response = always.penstock.post(CHAT, &body);
            assert_eq!(response.text(), reference("c", CHAT, &body).text());
            assert_eq!(always.requests(), before + 3, "{fault:?}");
        }
    }
}

#[test]
fn retry_probes_a_backend_in_cooldown_unless_it_was_refused() {
    let fleet = Fleet::start(2, Setup { health: FAULTS_FORGOTTEN, ..Setup::default() });
    let pause_a = || {
        fleet.a().script([Fault::status_with_retry(503, "30")]);
        assert_eq!(fleet.chat().text(), reference("b", CHAT, &chat("m", "hello")).text());
        assert_eq!(fleet.fact("a", "cooldown_status"), json!(503));
    };
    pause_a();
    fleet.b().script([Fault::CloseAfterRequest]);
    let response = fleet.chat();
    assert_eq!(response.text(), reference("a", CHAT, &chat("m", "hello")).text());
    assert_eq!(fleet.fact("a", "cooldown_status"), json!(null), "the probe ended it");

    pause_a();
    let before = fleet.requests();
    fleet.b().script([Fault::status_with_retry(503, "30")]);
    assert_eq!(fleet.chat().status, 503);
    assert_eq!(fleet.requests(), before + 1, "a refusal is no reason to disturb another backend");
}

#[test]
fn stored_response_is_not_repeated_after_a_lost_connection() {
    let fleet = Fleet::start(2, Setup { health: FAULTS_FORGOTTEN, ..Setup::default() });
    let body = |store: Value| json!({"model": "m", "input": "hi", "store": store});
    for (store, status, requests) in
        [(json!(true), 502, 1), (Value::Null, 502, 1), (json!(false), 200, 2)]
    {
        let before = fleet.requests();
        fleet.a().script([Fault::CloseAfterRequest]);
        let response = fleet.penstock.post("/v1/responses", &body(store.clone()));
        assert_eq!(response.status, status, "store {store}: {}", response.text());
        assert_eq!(fleet.requests(), before + requests, "store {store}");
    }
    // Nothing is stored by a backend that gets a chat.
    let backend = "operations: [chat]";
    let fleet = Fleet::start(2, Setup { health: FAULTS_FORGOTTEN, backend, ..Setup::default() });
    for store in [json!(true), Value::Null] {
        let before = fleet.requests();
        fleet.a().script([Fault::CloseAfterRequest]);
        let response = fleet.penstock.post("/v1/responses", &body(store.clone()));
        assert_eq!(response.status, 200, "store {store}: {}", response.text());
        assert_eq!(fleet.requests(), before + 2, "store {store}");
    }
}

#[test]
fn max_retries_bounds_attempts() {
    for (allowed, status) in [(0, 503), (1, 503), (2, 503), (3, 200)] {
        let routing = format!("max_retries: {allowed}");
        let fleet = Fleet::start(4, Setup { routing: &routing, ..Setup::default() });
        for engine in &fleet.engines[..3] {
            engine.script([Fault::status_with_retry(503, "9")]);
        }
        let response = fleet.chat();
        assert_eq!((response.status, fleet.requests()), (status, allowed + 1), "{allowed} retries");
    }
}

#[test]
fn retry_budget_runs_out_and_refills() {
    let routing = "retry_5xx: true, retry_budget: { ratio: 0.0, per_second: 1 }";
    let health = FAULTS_FORGOTTEN;
    let fleet = Fleet::start(2, Setup { routing, health, ..Setup::default() });
    fleet.a().always(Some(Fault::status(500)));
    let (statuses, took) = timed(|| (0..60).map(|_| fleet.chat().status).collect::<Vec<u16>>());
    let retried = statuses.iter().filter(|status| **status == 200).count();
    let most = 11 + usize::try_from(took.as_secs()).unwrap();
    assert!((10..=most).contains(&retried), "{retried} retries in {took:?}: {statuses:?}");
    assert!(statuses.contains(&500), "a refusal is relayed when the budget is spent");
    assert_eq!(fleet.b().counters().requests, retried);
    let refilled = || fleet.chat().status == 200;
    crate::support::eventually("a second earns a retry", SOON, refilled);

    let none = "retry_5xx: true, retry_budget: { ratio: 0.0, per_second: 0 }";
    let fleet = Fleet::start(2, Setup { routing: none, ..Setup::default() });
    fleet.a().script([Fault::status(500)]);
    assert_eq!((fleet.chat().status, fleet.requests()), (500, 1));
}

#[test]
fn retry_budget_by_traffic_share_alone() {
    let routing = "retry_5xx: true, retry_budget: { ratio: 0.5, per_second: 0 }";
    let health = FAULTS_FORGOTTEN;
    let fleet = Fleet::start(2, Setup { routing, health, ..Setup::default() });
    fleet.a().always(Some(Fault::status(500)));
    let retried = (0..40).filter(|_| fleet.chat().status == 200).count();
    assert!((18..=22).contains(&retried), "{retried} of 40 requests were retried");
}

#[test]
fn fallback_model_follows_when_every_candidate_was_tried() {
    let routing = "fallbacks: { m: [other] }, aliases: { other: m2 }";
    let models = ["m", "m", "{ id: m2, capabilities: [] }"];
    let fleet = Fleet::of(&models, Setup { routing, ..Setup::default() });
    let expected = reference("c", CHAT, &chat("m2", "hello"));
    fleet.a().script([Fault::status(503)]);
    fleet.b().script([Fault::status(429)]);
    let response = fleet.chat();
    assert_eq!((response.status, response.text()), (200, expected.text()));
    let received = fleet.c().received().pop().unwrap().body.unwrap();
    assert_eq!(received, chat("m2", "hello").to_string().as_bytes());

    let fleet = Fleet::of(&models, Setup { routing, ..Setup::default() });
    fleet.a().script([Fault::status_with_retry(503, "5")]);
    fleet.b().script([Fault::status_with_retry(503, "6")]);
    let mut body = chat("m", "hello");
    body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let response = fleet.penstock.post(CHAT, &body);
    assert_eq!((response.status, response.header("retry-after")), (503, Some("6")));
    assert_eq!(fleet.c().counters().requests, 0, "what lacks a capability is never tried");

    let routing = format!("{routing}, max_retries: 1");
    let fleet = Fleet::of(&models, Setup { routing: &routing, ..Setup::default() });
    fleet.a().script([Fault::status(503)]);
    fleet.b().script([Fault::status(503)]);
    assert_eq!(fleet.chat().status, 503);
    assert_eq!(fleet.c().counters().requests, 0, "the chain counts towards max_retries");
}
