//! Timeouts: a backend that falls silent is cut off by a timeout that counts tokens and not bytes,
//! and its connection is closed so that the engine stops.

use std::time::Duration;

use penstock_mock::{Fault, Pace};
use serde_json::{Value, json};

use crate::support::block_on;
use crate::support::client::{Response, chat, streaming_chat, timed};
use crate::support::fleet::{CHAT, Fleet, Setup, reference};

/// The timeouts would otherwise open the breaker.
const PATIENT: &str = "interval: 60s, fast_interval: 60s, breaker: { connect_failures: 1000 }";
const QUICK: &str = "timeouts: { first_token: 400ms, between_tokens: 300ms, response: 350ms }";

fn quick(count: usize) -> Fleet {
    Fleet::start(count, Setup { health: PATIENT, sections: QUICK, ..Setup::default() })
}

/// Asserts that a response took as long as a timeout allows. Its code names the timeout that ended
/// it, and the client waits for 20 s: less than any other value of that timeout here or by default,
/// except for `timeouts.connect`.
fn assert_took(took: Duration, timeout: u64, what: &str) {
    assert!(took >= Duration::from_millis(timeout).mul_f64(0.9), "{what}: {took:?}");
}

fn wait_cancelled(fleet: &Fleet, count: usize) {
    block_on(fleet.a().wait_for(|counters| counters.cancelled >= count)).unwrap();
}

#[test]
fn silence_before_head_is_504_and_cancels_the_engine() {
    let fleet = quick(2);
    fleet.a().script([Fault::HangBeforeHead, Fault::HangBeforeHead]);
    let (response, took) = timed(|| fleet.stream());
    assert_eq!((response.status, response.error_code().as_str()), (504, "first_token_timeout"));
    assert_took(took, 400, "first token");
    let (response, took) = timed(|| fleet.chat());
    assert_eq!((response.status, response.error_code().as_str()), (504, "response_timeout"));
    assert_took(took, 350, "response");
    wait_cancelled(&fleet, 2);
    assert_eq!(fleet.b().counters().requests, 0, "it may have been processed");
    fleet.wait_idle();
}

/// Asserts that a stream started, and ended with an error by that code.
fn assert_ended(response: &Response, code: &str, what: &str) {
    let text = response.text();
    assert_eq!(response.status, 200, "{what}: {text}");
    let last = text.trim_end().rsplit_once("data: ").map(|(_, last)| last).unwrap_or_default();
    let event: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{what}: {text}"));
    assert_eq!(event["error"]["code"], code, "{what}: {text}");
    assert!(!text.contains("[DONE]"), "{what}: {text}");
}

#[test]
fn role_deltas_and_pings_are_not_tokens() {
    let fleet = quick(1);
    let every = Duration::from_millis(40);
    let faults = [
        Fault::HangAfterHead,
        Fault::RoleOnlyThenHang,
        Fault::PingsOnly { every, after_events: 0 },
        Fault::PingsOnly { every, after_events: 1 },
    ];
    for (fault, count) in faults.into_iter().zip(1..) {
        fleet.a().script([fault.clone()]);
        let (response, took) = timed(|| fleet.stream());
        assert_ended(&response, "first_token_timeout", &format!("{fault:?}"));
        assert_took(took, 400, &format!("{fault:?}"));
        wait_cancelled(&fleet, count);
    }
}

#[test]
fn between_tokens_timeout_ends_stream_in_its_dialect() {
    let fleet = quick(1);
    let every = Duration::from_millis(40);
    for fault in
        [Fault::HangMidStream { after_events: 4 }, Fault::PingsOnly { every, after_events: 4 }]
    {
        fleet.a().script([fault.clone()]);
        let (response, took) = timed(|| fleet.stream());
        assert_ended(&response, "between_tokens_timeout", &format!("{fault:?}"));
        assert_took(took, 300, &format!("{fault:?}"));
    }
    let mut messages = streaming_chat("m", "hello");
    messages["max_tokens"] = json!(50);
    fleet.a().script([Fault::PingsOnly { every, after_events: 5 }]);
    let text = fleet.penstock.post("/v1/messages", &messages).text();
    assert!(text.contains("event: ping\n"), "pings pass: {text}");
    let (_, error) = text.rsplit_once("event: error\ndata: ").unwrap();
    let error: Value = serde_json::from_str(error.trim_end()).unwrap();
    assert_eq!(error["error"]["type"], "timeout_error", "{error}");
    fleet.a().script([Fault::PingsOnly { every, after_events: 6 }]);
    let input = json!({"model": "m", "stream": true, "input": "hello"});
    let text = fleet.penstock.post("/v1/responses", &input).text();
    let (_, failed) = text.rsplit_once("event: response.failed\ndata: ").unwrap();
    let failed: Value = serde_json::from_str(failed.trim_end()).unwrap();
    assert_eq!(failed["response"]["error"]["code"], "between_tokens_timeout", "{failed}");
    wait_cancelled(&fleet, 4);
}

#[test]
fn response_timeout_breaks_response_visibly() {
    let fleet = quick(1);
    fleet.a().script([Fault::HangMidStream { after_events: 1 }]);
    let (response, took) = timed(|| fleet.chat());
    assert_eq!((response.status, response.is_whole), (200, false));
    assert_took(took, 350, "half a response");
    wait_cancelled(&fleet, 1);
}

#[test]
fn slow_steady_stream_is_not_cut() {
    let step = Duration::from_millis(120);
    let pace = Pace { first_token: step, per_token: step, tokens: 8 };
    let fleet =
        Fleet::start(1, Setup { health: PATIENT, sections: QUICK, pace, ..Setup::default() });
    let (response, took) = timed(|| fleet.stream());
    let expected = reference("a", CHAT, &streaming_chat("m", "hello"));
    assert!(took > Duration::from_millis(900), "longer than any one timeout: {took:?}");
    assert_eq!((response.is_whole, response.text()), (true, expected.text()));
}

#[test]
fn timeouts_per_backend_and_model() {
    let sections = "timeouts: { first_token: 30s, response: 30s }\n\
         models: { m2: { timeouts: { first_token: 300ms } }, m3: { timeouts: { first_token: 30s } } }";
    let models = ["m, m2", "m3"];
    let setup = Setup { health: PATIENT, sections, ..Setup::default() };
    let fleet = Fleet::of(&models, setup);
    fleet.a().script([Fault::HangBeforeHead]);
    let (response, took) = timed(|| fleet.penstock.post(CHAT, &streaming_chat("m2", "hello")));
    assert_eq!(response.error_code(), "first_token_timeout");
    assert_took(took, 300, "the model's own timeout");
    // The other model keeps the global timeout: it outlives the short one.
    fleet.a().script([Fault::SlowHead(Duration::from_millis(700))]);
    assert_eq!(fleet.penstock.post(CHAT, &streaming_chat("m", "hello")).status, 200);
    drop(fleet);

    let backend = "timeouts: { first_token: 300ms }";
    let fleet = Fleet::of(&["m3"], Setup { backend, ..setup });
    fleet.a().script([Fault::HangBeforeHead]);
    let (response, took) = timed(|| fleet.penstock.post(CHAT, &streaming_chat("m3", "hello")));
    assert_eq!(response.error_code(), "first_token_timeout");
    assert_took(took, 300, "the backend's own timeout wins over the model's");
}

#[test]
fn total_timeout_ends_any_response() {
    let step = Duration::from_millis(50);
    let pace = Pace { first_token: step, per_token: step, tokens: 1000 };
    let sections = "timeouts: { total: 700ms }";
    let fleet = Fleet::start(1, Setup { health: PATIENT, sections, pace, ..Setup::default() });
    let (response, took) = timed(|| fleet.stream());
    assert_ended(&response, "total_timeout", "a steady stream");
    assert!(response.text().contains(" finds"), "{}", response.text());
    assert_took(took, 700, "a steady stream");
    let (response, took) = timed(|| fleet.chat());
    assert_eq!((response.status, response.error_code().as_str()), (504, "total_timeout"));
    assert_took(took, 700, "a plain response");
    wait_cancelled(&fleet, 2);

    // Retries do not restart it: it would leave time for the second attempt's response.
    let sections = "timeouts: { connect: 900ms, total: 1s }";
    let mut fleet = Fleet::start(2, Setup { health: PATIENT, sections, ..Setup::default() });
    let hole = fleet.turn_into_black_hole(0);
    fleet.a().script([Fault::SlowHead(Duration::from_millis(900))]);
    let response = fleet.chat();
    assert_eq!((response.status, response.error_code().as_str()), (504, "total_timeout"));
    drop(hole);
}

#[test]
fn connect_timeout_fails_over() {
    let sections = "timeouts: { connect: 300ms, first_token: 20s, response: 20s }";
    let setup = Setup { health: PATIENT, sections, ..Setup::default() };
    let mut fleet = Fleet::start(2, setup);
    let hole = fleet.turn_into_black_hole(0);
    let expected = reference("b", CHAT, &chat("m", "hello")).text();
    let (response, took) = timed(|| fleet.chat());
    assert_eq!((response.status, response.text()), (200, expected));
    assert_took(took, 300, "the other backend after the connect timeout");
    assert_eq!(fleet.stream().status, 200);
    drop((hole, fleet));

    let mut alone = Fleet::start(1, setup);
    let hole = alone.turn_into_black_hole(0);
    let (response, took) = timed(|| alone.chat());
    assert_eq!((response.status, response.error_code().as_str()), (504, "connect_timeout"));
    assert_took(took, 300, "the connect timeout");
    drop(hole);
}
