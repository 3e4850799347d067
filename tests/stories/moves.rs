//! Streams that wait for their first token: if less than half of the wait is predicted elsewhere,
//! they are sent there, once, and only if the operator allows it.

use std::time::Duration;

use penstock_mock::{Fault, Pace};
use serde_json::{Value, json};

use crate::support::client::streaming_chat;
use crate::support::eventually;
use crate::support::fleet::{Fleet, SOON, Setup, name};

const MOVES: &str = "predict: true, move_waiting: true";
/// The number of requests that both engines need until their predictions are trusted.
const LEARNED: usize = 60;

fn setup(routing: &str) -> Setup<'_> {
    let millis = Duration::from_millis;
    let pace = Pace { first_token: millis(20), per_token: millis(3), tokens: 12 };
    let sections = "timeouts: { first_token: 3s, response: 3s }";
    Setup { strategy: "round_robin", routing, sections, pace, ..Setup::default() }
}

fn prediction(fleet: &Fleet, backend: &str) -> Value {
    fleet.penstock.backend(backend)["models"][0]["prediction"].clone()
}

/// Two engines, in turn, whose predictions are trusted.
fn learned(routing: &str) -> Fleet {
    let fleet = Fleet::start(2, setup(routing));
    let is_trusted =
        || (0..2).all(|index| prediction(&fleet, &name(index))["trusted"] == json!(true));
    // A pause of this machine looks like a change of the engine: more has to be seen then.
    for sent in 0.. {
        if sent >= LEARNED && is_trusted() {
            break;
        }
        assert!(sent < 10 * LEARNED, "predictions are not trusted");
        assert_eq!(fleet.stream().status, 200);
    }
    fleet
}

/// Nothing is in flight, waits or runs, neither at penstock nor at the engines.
fn nothing_is_left(fleet: &Fleet) {
    fleet.wait_idle();
    for (index, engine) in fleet.engines.iter().enumerate() {
        let found = prediction(fleet, &name(index));
        if !found.is_null() {
            let counts = (&found["waiting"], &found["streams"], &found["backlog_ms"]);
            assert_eq!(counts, (&json!(0.0), &json!(0.0), &json!(0.0)), "{found}");
        }
        eventually("the engine is free", SOON, || engine.counters().open_requests == 0);
    }
}

fn moves(fleet: &Fleet, backend: &str) -> f64 {
    fleet.metric(&format!("penstock_moves_total{{backend=\"{backend}\"}}"))
}

#[test]
fn stalled_stream_moves_to_a_backend_that_is_faster() {
    let fleet = learned(MOVES);
    for (done, fault) in [(0.0, Fault::HangBeforeHead), (1.0, Fault::HangAfterHead)] {
        fleet.a().script([fault]);
        let before = fleet.b().counters().requests;
        // In turn: one of them is the one that `a` holds.
        for response in [fleet.stream(), fleet.stream()] {
            assert_eq!(response.status, 200, "{}", response.text());
            assert!(response.text().contains("[DONE]"), "{}", response.text());
        }
        assert_eq!(moves(&fleet, "a"), done + 1.0);
        assert_eq!(fleet.b().counters().requests, before + 2);
        nothing_is_left(&fleet);
    }
    assert_eq!(moves(&fleet, "b"), 0.0);
    let cancelled = "penstock_attempts_total{backend=\"a\",outcome=\"cancel\",code=\"none\"}";
    assert_eq!(fleet.metric(cancelled), 2.0);
    assert_eq!(fleet.fact("a", "health"), json!("healthy"), "a move is no failure");
}

#[test]
fn stream_moves_once() {
    let fleet = learned(MOVES);
    fleet.engines.iter().for_each(|engine| engine.script([Fault::HangBeforeHead]));
    let before = fleet.requests();
    let response = fleet.stream();
    assert_eq!(response.status, 504, "{}", response.text());
    assert_eq!(response.error_code(), "first_token_timeout");
    assert_eq!(fleet.requests(), before + 2);
    assert_eq!(moves(&fleet, "a") + moves(&fleet, "b"), 1.0);
    nothing_is_left(&fleet);
}

#[test]
fn streams_stay_where_moves_are_not_allowed() {
    let fleet = learned("predict: true");
    fleet.a().script([Fault::HangBeforeHead]);
    let mut statuses = [fleet.stream().status, fleet.stream().status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 504]);
    assert_eq!(moves(&fleet, "a"), 0.0);
    nothing_is_left(&fleet);
}

#[test]
fn streams_stay_where_nothing_is_known_of_the_others() {
    let setup = Setup { strategy: "priority_only", ..setup(MOVES) };
    let fleet = Fleet::start(2, setup);
    for _ in 0..LEARNED {
        assert_eq!(fleet.stream().status, 200);
    }
    assert_eq!(fleet.b().counters().requests, 0);
    fleet.a().script([Fault::HangBeforeHead]);
    assert_eq!(fleet.stream().status, 504);
    assert_eq!(fleet.b().counters().requests, 0);
    nothing_is_left(&fleet);
}

#[test]
fn whole_responses_stay() {
    let fleet = learned(MOVES);
    fleet.engines.iter().for_each(|engine| engine.script([Fault::HangBeforeHead]));
    let before = fleet.requests();
    assert_eq!(fleet.chat().status, 504);
    assert_eq!(fleet.requests(), before + 1);
    nothing_is_left(&fleet);
    assert_eq!(moves(&fleet, "a") + moves(&fleet, "b"), 0.0);
}

#[test]
fn disconnect_cancels_stream_before_and_after_its_move() {
    let fleet = learned(MOVES);
    fleet.engines.iter().for_each(|engine| engine.always(Some(Fault::HangAfterHead)));
    let all_moves = || moves(&fleet, "a") + moves(&fleet, "b");
    let before = fleet.requests();
    let stream = fleet.begin(&streaming_chat("m", "hello"));
    eventually("an engine has the stream", SOON, || fleet.requests() > before);
    drop(stream);
    nothing_is_left(&fleet);

    let (before, moved) = (fleet.requests(), all_moves());
    let stream = fleet.begin(&streaming_chat("m", "hello"));
    eventually("the stream is moved", SOON, || all_moves() == moved + 1.0);
    eventually("both engines have had it", SOON, || fleet.requests() == before + 2);
    let open = fleet.engines.iter().map(|engine| engine.open_requests()).sum::<usize>();
    assert!(open >= 1, "the stream waits where it was moved");
    drop(stream);
    nothing_is_left(&fleet);
}
