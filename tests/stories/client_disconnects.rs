//! A disconnected client costs nothing: in every phase of a request its backend connection is
//! closed at once, no further attempt starts, and other clients are not affected.

use std::time::Duration;

use penstock_clock::now;
use penstock_mock::{Fault, Gate, Pace};
use serde_json::{Value, json};

use crate::support::block_on;
use crate::support::client::{Client, chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Leave, Setup, read_until, reference};
use crate::support::pace::best_of;

#[test]
fn disconnect_during_upload_reaches_no_backend() {
    let fleet = Fleet::start(1, Setup::default());
    let body = chat("m", &"x".repeat(100_000)).to_string();
    let half = &body.as_bytes()[..50_000];
    let sized =
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", body.len());
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
        half.len()
    );
    for (head, how) in
        [&sized, &chunked].into_iter().flat_map(|head| Leave::BOTH.map(|how| (head, how)))
    {
        for sent in [0, half.len()] {
            let mut client = Client::connect(fleet.penstock.data);
            client.send_bytes(head.as_bytes());
            client.send_bytes(&half[..sent]);
            fleet.wait_metric("penstock_in_flight", 1.0);
            let left = how.now(client);
            fleet.wait_metric("penstock_in_flight", 0.0);
            drop(left);
        }
    }
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
    assert_eq!(fleet.a().counters().requests, 0, "an incomplete request reached an engine");
    assert_eq!(fleet.chat().status, 200);
}

#[test]
fn disconnect_while_connecting_starts_no_attempt() {
    let sections = "timeouts: { connect: 30s }";
    let mut fleet = Fleet::start(2, Setup { sections, ..Setup::default() });
    let hole = fleet.turn_into_black_hole(0);
    for (how, body) in
        Leave::BOTH.into_iter().zip([chat("m", "hello"), streaming_chat("m", "hello")])
    {
        let client = fleet.begin(&body);
        fleet.wait_fact("a", "in_flight", &json!(1));
        let left = how.now(client);
        fleet.wait_fact("a", "in_flight", &json!(0));
        drop(left);
    }
    fleet.wait_metric("penstock_in_flight", 0.0);
    assert_eq!(fleet.requests(), 0, "an attempt started for a disconnected client");
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
    drop(hole);
}

#[test]
fn disconnect_between_attempts_starts_no_attempt() {
    let sections = "timeouts: { connect: 30s }";
    let mut fleet = Fleet::start(3, Setup { sections, ..Setup::default() });
    let hole = fleet.turn_into_black_hole(1);
    for how in Leave::BOTH {
        fleet.a().script([Fault::status_with_retry(503, "1")]);
        let client = fleet.begin(&chat("m", "hello"));
        fleet.wait_fact("b", "in_flight", &json!(1));
        let left = how.now(client);
        fleet.wait_fact("b", "in_flight", &json!(0));
        drop(left);
        // The cooldown is over before the next round.
        fleet.wait_fact("a", "cooldown_remaining_s", &Value::Null);
    }
    fleet.wait_metric("penstock_in_flight", 0.0);
    assert_eq!(fleet.requests(), 2, "one each to the engine that refused");
    drop(hole);
}

/// A phase of a request: the fault that keeps the engine in it, and what the client has read by
/// then.
fn phases() -> [(Fault, Value, &'static str); 8] {
    let (plain, stream) = (chat("m", "hello"), streaming_chat("m", "hello"));
    [
        (Fault::HangBeforeHead, plain.clone(), ""),
        (Fault::SlowHead(Duration::from_secs(60)), plain.clone(), ""),
        (Fault::HangMidStream { after_events: 1 }, plain, ""),
        (Fault::HangBeforeHead, stream.clone(), ""),
        (Fault::HangAfterHead, stream.clone(), "event-stream"),
        (Fault::RoleOnlyThenHang, stream.clone(), "assistant"),
        (Fault::HangMidStream { after_events: 3 }, stream.clone(), "a serving m:"),
        (Fault::PingsOnly { every: Duration::from_millis(20), after_events: 3 }, stream, ": ping"),
    ]
}

/// The limit, in the long run, of the 99th percentile of the time until the engine sees that its
/// client has left.
const MOST: Duration = Duration::from_millis(100);
/// Rounds of the long run, of which one must keep it.
const ROUNDS: usize = 3;

#[test]
fn disconnect_closes_the_upstream_in_every_phase() {
    best_of(ROUNDS, MOST, leave_in_every_phase);
}

/// Leaves in every phase, and returns the 99th percentile of the times it takes.
fn leave_in_every_phase() -> Duration {
    let fleet = Fleet::start(2, Setup::default());
    let mut took = Vec::new();
    let rounds = Leave::BOTH.into_iter().cycle().take(8);
    for (how, (fault, body, sign)) in rounds.flat_map(|how| phases().map(|phase| (how, phase))) {
        let before = took.len();
        fleet.a().script([fault]);
        let mut client = fleet.begin(&body);
        if sign.is_empty() {
            block_on(fleet.a().wait_for(|counters| counters.complete > before)).unwrap();
        } else {
            read_until(&mut client, sign);
        }
        let at = now();
        let left = how.now(client);
        block_on(fleet.a().wait_for(|counters| counters.cancelled > before)).unwrap();
        took.push(fleet.a().cancelled().last().unwrap().at.since(at));
        drop(left);
    }
    fleet.wait_idle();
    took.sort();
    assert_eq!(took.len(), 64);
    assert_eq!(fleet.b().counters().requests, 0, "an attempt for a disconnected client");
    assert_eq!(fleet.a().counters().requests, 64);
    took[took.len() * 99 / 100 - 1]
}

#[test]
fn disconnects_do_not_affect_other_clients() {
    let step = Duration::from_millis(25);
    let pace = Pace { first_token: step, per_token: step, tokens: 24 };
    let fleet = Fleet::start(1, Setup { pace, ..Setup::default() });
    let body = streaming_chat("m", "hello");
    let whole = crate::support::client::post(fleet.a().addr(), CHAT, &body).text();
    let mut leavers = Vec::new();
    let mut stayers = Vec::new();
    for _ in 0..8 {
        leavers.push(fleet.begin(&body));
        stayers.push(fleet.begin(&body));
    }
    for leaver in &mut leavers {
        read_until(leaver, "a serving m:");
    }
    let hows = Leave::BOTH.into_iter().cycle();
    let left: Vec<_> = leavers.into_iter().zip(hows).map(|(leaver, how)| how.now(leaver)).collect();
    for mut stayer in stayers {
        let response = stayer.read_response().unwrap();
        assert_eq!((response.is_whole, response.text()), (true, whole.clone()));
    }
    assert_eq!(fleet.a().counters().cancelled, 8);
    drop(left);
    fleet.wait_idle();
}

#[test]
fn disconnects_do_not_count_against_the_backend() {
    let health = "interval: 60s, fast_interval: 60s, breaker: { connect_failures: 1, min_responses: 1, error_share: 0.01 }";
    let fleet = Fleet::start(2, Setup { health, ..Setup::default() });
    for (fault, body, sign) in phases() {
        for how in Leave::BOTH {
            let before = fleet.a().counters();
            fleet.a().script([fault.clone()]);
            let mut client = fleet.begin(&body);
            if !sign.is_empty() {
                read_until(&mut client, sign);
            }
            let arrived = fleet.a().wait_for(|counters| counters.complete > before.complete);
            block_on(arrived).unwrap();
            let left = how.now(client);
            let cancelled = fleet.a().wait_for(|counters| counters.cancelled > before.cancelled);
            block_on(cancelled).unwrap();
            drop(left);
        }
    }
    fleet.wait_idle();
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
    assert_eq!(fleet.fact("a", "health"), json!("healthy"));
    assert_eq!(fleet.fact("a", "cooldown_remaining_s"), Value::Null);
    let served = fleet.a().counters().responded;
    assert_eq!(fleet.chat().text(), reference("a", CHAT, &chat("m", "hello")).text());
    block_on(fleet.a().wait_for(|counters| counters.responded > served)).unwrap();
    assert_eq!(fleet.b().counters().requests, 0);
}

#[test]
fn disconnect_after_pipelined_requests_is_noticed() {
    let fleet = Fleet::start(1, Setup::default());
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut client = fleet.begin(&chat("m", "hello"));
    for _ in 0..3 {
        client.send("POST", CHAT, &[], chat("m", "never").to_string().as_bytes());
    }
    block_on(gate.reached_by(1));
    let left = Leave::Reset.now(client);
    block_on(fleet.a().wait_for(|counters| counters.cancelled == 1)).unwrap();
    drop(left);
    fleet.wait_idle();
    let cancelled = "penstock_attempts_total{backend=\"a\",outcome=\"cancel\",code=\"none\"}";
    fleet.wait_metric(cancelled, 1.0);
    assert_eq!(fleet.requests(), 1, "requests of a disconnected client were started");
}
