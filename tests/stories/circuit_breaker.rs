//! The circuit breaker of a backend: connections that fail open it, one client's bad requests never
//! do, and one request at a time probes it half-open.

use penstock_mock::{Fault, Gate};
use serde_json::{Value, json};

use crate::support::client::{chat, request, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Leave, SOON, Setup, read_until};
use crate::support::{block_on, eventually};

const BREAKER: &str = "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, \
     breaker: { connect_failures: 3, open: 300ms, max_open: 300ms }";

#[test]
fn connect_failures_open_the_breaker() {
    let fleet = Fleet::start(2, Setup { health: BREAKER, ..Setup::default() });
    block_on(fleet.a().kill()).unwrap();
    let total = |fleet: &Fleet| fleet.fact("a", "requests_total").as_u64().unwrap();
    for count in 1..=2 {
        assert_eq!(fleet.chat().status, 200);
        assert_eq!((total(&fleet), fleet.fact("a", "breaker")), (count, json!("closed")));
    }
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(total(&fleet), 3);
    fleet.wait_fact("a", "breaker", &json!("half_open"));
    // One failed probe opens it again.
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(total(&fleet), 4);
    block_on(fleet.a().resume()).unwrap();
    eventually("it is used again", SOON, || {
        assert_eq!(fleet.chat().status, 200);
        fleet.a().counters().complete > 0
    });
    fleet.wait_fact("a", "breaker", &json!("closed"));
    assert!(fleet.metric("penstock_backend_breaker_open{backend=\"a\"") < 0.1);
}

pub(crate) const KEYS: &str = "auth: { keys: [{ name: k0, key: key-0 }, { name: k1, key: key-1 }, \
     { name: k2, key: key-2 }, { name: k3, key: key-3 }, { name: k4, key: key-4 }] }";

fn chat_with_key(fleet: &Fleet, number: usize) -> u16 {
    let key = format!("Bearer key-{number}");
    let body = chat("m", "hello").to_string();
    let headers = [("authorization", &*key)];
    request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes()).status
}

#[test]
fn faults_of_one_client_keep_the_breaker_closed() {
    let fleet = Fleet::start(1, Setup { health: BREAKER, sections: KEYS, ..Setup::default() });
    fleet.a().always(Some(Fault::status(500)));
    for _ in 0..40 {
        assert_eq!(chat_with_key(&fleet, 0), 500);
    }
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"), "faults of one client only");
    for number in [1, 2, 3, 4] {
        assert_eq!(chat_with_key(&fleet, number), 500);
    }
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"), "there is no other backend");
    fleet.a().always(None);
    assert_eq!(chat_with_key(&fleet, 0), 200, "at once");
}

#[test]
fn client_errors_keep_the_breaker_closed() {
    let fleet = Fleet::start(1, Setup { sections: KEYS, ..Setup::default() });
    assert_eq!(chat_with_key(&fleet, 0), 200, "so that a 404 does not say that there are no chats");
    for status in [400, 401, 404, 422] {
        fleet.a().script(vec![Fault::status(status); 15]);
        for turn in 0..15 {
            assert_eq!(chat_with_key(&fleet, turn % 5), status, "relayed");
        }
    }
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
    assert_eq!(fleet.a().counters().requests, 61, "none was retried");
}

/// Opens the breaker of a fleet's only backend and waits until it lets a probe through.
fn half_open(fleet: &Fleet) {
    block_on(fleet.a().kill()).unwrap();
    eventually("the breaker opens", SOON, || {
        fleet.chat().status != 200 && fleet.fact("a", "breaker") != json!("closed")
    });
    block_on(fleet.a().resume()).unwrap();
    fleet.wait_fact("a", "breaker", &json!("half_open"));
}

const EAGER: &str = "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, \
     breaker: { connect_failures: 1, open: 100ms, max_open: 100ms }";

/// Requests `fault` with a probe, and waits until the backend is used again.
fn probe(fleet: &Fleet, fault: &Fault) {
    half_open(fleet);
    fleet.a().script([fault.clone()]);
    // Once, unless a machine without a moment to spare lets the probe time out on its way.
    eventually(&format!("the probe meets {fault:?}"), SOON, || {
        drop(fleet.stream());
        fleet.a().faults_left() == 0
    });
    let what = format!("after {fault:?} it is used again");
    eventually(&what, SOON, || fleet.chat().status == 200);
    fleet.wait_fact("a", "breaker", &json!("closed"));
}

#[test]
fn half_open_probe_slot_is_freed_by_every_end() {
    let routing = "cooldown: { default: 50ms, min: 50ms }";
    let fleet = Fleet::start(1, Setup { health: EAGER, routing, ..Setup::default() });
    let ends = [
        Fault::Pass,
        Fault::status(400),
        Fault::status(429),
        Fault::status(500),
        Fault::status(503),
        Fault::CloseAfterRequest,
        Fault::Garbage,
        Fault::CutStream { after_events: 3, how: penstock_mock::Cut::Reset },
    ];
    ends.iter().for_each(|fault| probe(&fleet, fault));
    fleet.wait_idle();
}

#[test]
fn half_open_probe_slot_is_freed_by_timeouts() {
    let sections = "timeouts: { first_token: 1s, between_tokens: 1s }";
    let fleet = Fleet::start(1, Setup { health: EAGER, sections, ..Setup::default() });
    let hangs = [Fault::HangBeforeHead, Fault::HangMidStream { after_events: 3 }];
    hangs.iter().for_each(|fault| probe(&fleet, fault));
    fleet.wait_idle();
}

#[test]
fn half_open_probe_slot_is_freed_by_a_client_that_leaves() {
    let fleet = Fleet::start(1, Setup { health: EAGER, ..Setup::default() });
    for (fault, sign) in
        [(Fault::HangBeforeHead, ""), (Fault::HangMidStream { after_events: 3 }, "a serving m:")]
    {
        half_open(&fleet);
        let before = fleet.a().counters();
        fleet.a().script([fault.clone()]);
        let mut client = fleet.begin(&streaming_chat("m", "hello"));
        if sign.is_empty() {
            let arrived = fleet.a().wait_for(|counters| counters.complete > before.complete);
            block_on(arrived).unwrap();
        } else {
            read_until(&mut client, sign);
        }
        let left = Leave::Reset.now(client);
        fleet.wait_fact("a", "in_flight", &json!(0));
        drop(left);
        assert_eq!(
            fleet.fact("a", "breaker"),
            json!("half_open"),
            "{fault:?}: a disconnect counts neither way"
        );
        assert_eq!(fleet.chat().status, 200, "{fault:?}: the next request probes");
    }
    fleet.wait_idle();
}

#[test]
fn half_open_breaker_admits_one_probe() {
    let fleet = Fleet::start(1, Setup { health: EAGER, ..Setup::default() });
    half_open(&fleet);
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut probe = fleet.begin(&chat("m", "hello"));
    block_on(gate.reached_by(1));
    for _ in 0..3 {
        let response = fleet.chat();
        assert_eq!((response.status, response.error_code().as_str()), (503, "no_healthy_backend"));
        assert!(response.header("retry-after").is_some());
    }
    assert_eq!(fleet.a().counters().requests, 1);
    gate.open();
    assert_eq!(probe.read_response().unwrap().status, 200);
    fleet.wait_fact("a", "breaker", &json!("closed"));
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(fleet.fact("a", "cooldown_remaining_s"), Value::Null);
}

/// A generation may take minutes: it keeps the others away only until its first token.
#[test]
fn half_open_breaker_admits_next_probe_after_first_token() {
    let fleet = Fleet::start(1, Setup { health: EAGER, ..Setup::default() });
    half_open(&fleet);
    fleet.a().script([Fault::HangMidStream { after_events: 3 }]);
    let mut generation = fleet.begin(&streaming_chat("m", "hello"));
    read_until(&mut generation, "a serving m:");
    assert_eq!(fleet.chat().status, 200, "the next request probes");
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(fleet.fact("a", "in_flight"), json!(1), "the generation goes on");
    drop(generation);
    fleet.wait_idle();
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
}
