//! Requests that a backend refused or failed wait for another turn if a queue is configured: none
//! is refused because it came at the wrong moment, and no backend gets requests that it refused to
//! take.

use std::time::Duration;

use penstock_mock::{Fault, Gate};

use super::queue::{QUEUE, ended, line_up, nothing_is_left, occupy, ok};
use crate::support::block_on;
use crate::support::client::{Response, chat, request, timed};
use crate::support::fleet::{FAULTS_FORGOTTEN, Fleet, Setup, find_metric};

fn refusal(status: u16, retry_after: Option<&str>) -> Fault {
    Fault::Status {
        status,
        retry_after: retry_after.map(str::to_owned),
        body: r#"{"error":{"message":"come back later","code":"busy"}}"#.to_owned(),
        headers: Vec::new(),
    }
}

fn retry_after(response: &Response) -> u64 {
    response.header("retry-after").unwrap().parse().unwrap()
}

/// The number of requests that waited in the queue.
fn waits(fleet: &Fleet) -> f64 {
    let count = "penstock_queue_wait_seconds_count{model=\"m\"}";
    find_metric(&fleet.penstock, count).unwrap_or(0.0)
}

#[test]
fn refused_request_waits_and_is_served() {
    for status in [429, 503] {
        let setup = Setup { sections: QUEUE, routing: "max_retries: 0", ..Setup::default() };
        let fleet = Fleet::start(1, setup);
        fleet.a().script([refusal(status, None)]);
        let (response, took) = timed(|| fleet.chat());
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(took >= Duration::from_secs(1), "{took:?} is shorter than a cooldown");
        assert_eq!(fleet.a().counters().requests, 2);
        assert_eq!((ended(&fleet, "served"), waits(&fleet)), (1.0, 1.0));
        nothing_is_left(&fleet);
    }
}

/// Also without retries, another backend takes the request at once.
#[test]
fn refusals_are_no_retries() {
    let setup = Setup { sections: QUEUE, routing: "max_retries: 0", ..Setup::default() };
    let fleet = Fleet::start(3, setup);
    fleet.a().script([refusal(503, None)]);
    fleet.b().script([refusal(503, None)]);
    let response = fleet.chat();
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(waits(&fleet), 0.0, "a cooldown is not waited for");
    assert_eq!(fleet.c().counters().requests, 1);
}

#[test]
fn rate_limits_are_met_once_per_cooldown() {
    let sections = "queue: { size: 100, timeout: 3500ms }";
    let fleet = Fleet::start(3, Setup { sections, ..Setup::default() });
    let limit = || refusal(429, Some("1"));
    fleet.a().script((0..50).map(|_| limit()));
    fleet.b().script((0..50).map(|_| limit()));
    let (response, took) = timed(|| fleet.chat());
    assert_eq!(response.status, 429, "{}", response.text());
    assert_eq!(response.error_code(), "busy", "the backend's own words");
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(took >= Duration::from_secs(2), "{took:?}: it waited");
    let [a, b] = [fleet.a(), fleet.b()].map(|engine| engine.counters().requests);
    assert!(a + b >= 3, "{a} and {b}: it came back after a cooldown");
    assert!(a <= 4 && b <= 4, "{a} and {b}: no more than one per cooldown of a second");
    assert_eq!(fleet.c().counters().requests, 0, "one other backend meets the limit, no more");
    nothing_is_left(&fleet);
}

/// The body stays the backend's own.
#[test]
fn relayed_refusal_without_a_time_ahead_names_the_end_of_the_cooldown() {
    let past = "Wed, 21 Oct 2015 07:28:00 GMT";
    let cases = [
        (429, None, 3..=4),
        (503, Some("soon"), 3..=4),
        (529, None, 3..=4),
        (429, Some("0"), 1..=2),
        (503, Some(past), 1..=2),
    ];
    for (status, named, expected) in cases {
        let routing = "cooldown: { default: 3s }";
        let fleet = Fleet::start(1, Setup { routing, ..Setup::default() });
        fleet.a().script([refusal(status, named)]);
        let response = fleet.chat();
        assert_eq!((response.status, response.error_code().as_str()), (status, "busy"));
        let wait = retry_after(&response);
        assert!(expected.contains(&wait), "{status} {named:?}: {wait}");
    }
}

#[test]
fn full_backends_spread_refused_requests_over_their_slots() {
    for strategy in ["smart", "weighted"] {
        let setup = Setup { strategy, backend: "max_in_flight: 2", ..Setup::default() };
        let fleet = Fleet::start(1, setup);
        let gate = Gate::new();
        fleet.a().script([Fault::Gate(gate.clone()), Fault::Gate(gate.clone())]);
        let held = [(); 2].map(|()| fleet.begin(&chat("m", "hello")));
        block_on(gate.reached_by(2));
        let waits: Vec<u64> = (0..6).map(|_| retry_after(&fleet.chat())).collect();
        // Ten seconds are assumed before a request has ended.
        assert!(
            waits.iter().zip([10, 10, 20, 20, 30, 30]).all(|(one, at)| one.abs_diff(at) <= 2),
            "{waits:?}"
        );
        gate.open();
        for mut client in held {
            ok(&mut client);
        }
        fleet.wait_idle();
    }
}

#[test]
fn long_cooldown_is_a_refusal_at_once() {
    for status in [429, 503] {
        let fleet = Fleet::start(1, Setup { sections: QUEUE, ..Setup::default() });
        fleet.a().script([refusal(status, Some("40"))]);
        let response = fleet.chat();
        assert_eq!((response.status, retry_after(&response)), (status, 40));
        assert_eq!(response.error_code(), "busy");
        assert_eq!(waits(&fleet), 0.0, "it is refused without a wait");
        fleet.wait_idle();
    }
}

#[test]
fn wait_after_refusals_ends_in_time() {
    let sections = "queue: { size: 100, timeout: 1500ms }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    fleet.a().script((0..50).map(|_| refusal(503, None)));
    let response = fleet.chat();
    // As long as a cooldown may end in time, the request waits for it. After that, the client gets
    // the backend's refusal.
    assert!(matches!(response.status, 503 | 504), "{}", response.text());
    let requests = fleet.a().counters().requests;
    assert!(requests <= 3, "{requests}: one wait for all attempts");
    nothing_is_left(&fleet);
}

#[test]
fn retry_waits_for_a_backend_with_room() {
    let setup = Setup {
        sections: QUEUE,
        backend: "max_in_flight: 1",
        routing: "retry_unanswered: true",
        health: FAULTS_FORGOTTEN,
        ..Setup::default()
    };
    let fleet = Fleet::start(2, setup);
    let admin = |path: &str| request(fleet.penstock.admin, "POST", path, &[], b"").status;
    assert_eq!(admin("/backends/a/drain"), 200);
    let (gate, mut first) = occupy(&fleet, fleet.b(), "m");
    assert_eq!(admin("/backends/a/resume"), 200);
    fleet.a().script([Fault::CloseAfterRequest]);
    let mut retried = line_up(&fleet, "retried", &[]);
    assert_eq!(fleet.b().counters().requests, 1);
    gate.open();
    ok(&mut first);
    ok(&mut retried);
    assert_eq!(fleet.b().counters().requests, 2);
    nothing_is_left(&fleet);
}

#[test]
fn failures_are_retried_no_more_than_configured() {
    let setup = Setup {
        sections: QUEUE,
        routing: "max_retries: 1, retry_unanswered: true",
        health: FAULTS_FORGOTTEN,
        ..Setup::default()
    };
    let fleet = Fleet::start(3, setup);
    fleet.a().script([Fault::CloseAfterRequest]);
    fleet.b().script([Fault::CloseAfterRequest]);
    let response = fleet.chat();
    assert!(response.status >= 500, "{}", response.text());
    assert_eq!(fleet.c().counters().requests, 0);
    // A refusal before the failure does not use up the retry.
    fleet.a().script([refusal(503, None)]);
    fleet.b().script([Fault::CloseAfterRequest]);
    assert_eq!(fleet.chat().status, 200);
    fleet.wait_idle();
}

/// The slot is taken by a request for another model, which may take its time.
#[test]
fn total_timeout_of_a_model_ends_its_wait() {
    let sections = "queue: { size: 5, timeout: 100s }\nmodels: { m: { timeouts: { total: 1s } } }";
    let setup = Setup { sections, backend: "max_in_flight: 1", ..Setup::default() };
    let fleet = Fleet::of(&["m, n"], setup);
    let (gate, mut first) = occupy(&fleet, fleet.a(), "n");
    // The client waits for 20 s, `queue.timeout` is 100 s.
    let response = fleet.chat();
    assert_eq!((response.status, &*response.error_code()), (504, "queue_timeout"));
    assert!(retry_after(&response) > 0);
    assert_eq!(ended(&fleet, "timed_out").round(), 1.0);
    assert_eq!(fleet.a().counters().requests, 1, "its prompt was not sent");
    gate.open();
    let _other = first.read_response().unwrap();
    nothing_is_left(&fleet);
}
