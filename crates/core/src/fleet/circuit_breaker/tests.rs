//! Tests of the transitions of the circuit breaker: open, half-open, closed.

use super::*;
use crate::fleet::{CooldownScope, Requester};

fn config() -> BreakerConfig {
    BreakerConfig {
        connect_failures: 3,
        error_share: 0.5,
        min_responses: 20,
        window: Duration::from_secs(30),
        open: Duration::from_secs(2),
        max_open: Duration::from_secs(30),
    }
}

fn seconds(count: u64) -> Timestamp {
    Timestamp(count * 1_000_000)
}

/// An attempt that started and ended at `at`.
fn by(client: u64, at: Timestamp) -> OutcomeSource {
    OutcomeSource {
        at,
        started: at,
        requester: Requester { client, ..Requester::default() },
        scope: CooldownScope::BACKEND,
        probe: Probe::None,
    }
}

fn learn(breaker: &CircuitBreaker, outcome: Outcome, source: OutcomeSource) {
    breaker.learn(outcome, source, &config());
}

#[test]
fn consecutive_connect_failures_open_the_breaker() {
    let breaker = CircuitBreaker::default();
    learn(&breaker, Outcome::Unreachable, by(1, seconds(1)));
    learn(&breaker, Outcome::Unreachable, by(1, seconds(1)));
    learn(&breaker, Outcome::Ok, by(1, seconds(1)));
    learn(&breaker, Outcome::Unreachable, by(1, seconds(1)));
    learn(&breaker, Outcome::Unreachable, by(1, seconds(1)));
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "a response resets the count");
    learn(&breaker, Outcome::Unreachable, by(1, seconds(1)));
    assert_eq!(breaker.state(seconds(2)), BreakerState::Open);
    assert_eq!(breaker.state(seconds(3)), BreakerState::HalfOpen);
}

fn check(breaker: &CircuitBreaker, outcome: CheckOutcome, at: Timestamp) -> bool {
    let transition = breaker.learn_check(CheckResult { at, outcome }, &config());
    let (reason, pause) = (OpenReason::HealthCheck, Duration::from_secs(2));
    let opened = transition == Some(BreakerTransition::Opened { reason, pause });
    assert_eq!(opened, transition.is_some(), "{transition:?}");
    opened
}

const PASSED: CheckOutcome = CheckOutcome::Passed(Duration::from_millis(1));

#[test]
fn failed_check_confirms_faults_of_two_clients() {
    let breaker = CircuitBreaker::default();
    assert!(!check(&breaker, CheckOutcome::Failed, seconds(1)), "no request failed");
    assert!(!check(&breaker, PASSED, seconds(1)));
    learn(&breaker, Outcome::Fault, by(7, seconds(1)));
    learn(&breaker, Outcome::Fault, by(8, seconds(1)));
    assert!(check(&breaker, CheckOutcome::Failed, seconds(1)));
    assert_eq!(breaker.times_opened(OpenReason::HealthCheck), 1);
}

#[test]
fn faults_of_one_client_need_two_failed_checks_in_a_row() {
    let breaker = CircuitBreaker::default();
    learn(&breaker, Outcome::Fault, by(7, seconds(1)));
    assert!(!check(&breaker, CheckOutcome::Failed, seconds(1)), "the engine may only be busy");
    assert!(!check(&breaker, PASSED, seconds(1)));
    assert!(!check(&breaker, CheckOutcome::Failed, seconds(1)), "not in a row");
    assert!(check(&breaker, CheckOutcome::Failed, seconds(1)));
}

#[test]
fn refused_check_confirms_one_fault_and_any_failed_one_a_failure_to_connect() {
    let breaker = CircuitBreaker::default();
    assert!(!check(&breaker, CheckOutcome::Refused, seconds(1)), "no request failed");
    assert!(!check(&breaker, PASSED, seconds(1)));
    learn(&breaker, Outcome::Fault, by(7, seconds(1)));
    assert!(check(&breaker, CheckOutcome::Refused, seconds(1)));
    let breaker = CircuitBreaker::default();
    learn(&breaker, Outcome::Unreachable, by(7, seconds(1)));
    assert!(check(&breaker, CheckOutcome::Failed, seconds(1)), "no prompt can cause it");
}

#[test]
fn passed_check_half_opens_what_a_check_opened() {
    let breaker = CircuitBreaker::default();
    learn(&breaker, Outcome::Unreachable, by(7, seconds(1)));
    assert!(check(&breaker, CheckOutcome::Refused, seconds(1)));
    assert!(!check(&breaker, PASSED, seconds(2)));
    assert_eq!(breaker.state(seconds(2)), BreakerState::HalfOpen);
    let probe = OutcomeSource { probe: Probe::Breaker, ..by(7, seconds(2)) };
    assert_eq!(breaker.learn(Outcome::Ok, probe, &config()), Some(BreakerTransition::Closed));
    assert_eq!(breaker.times_closed(), 1);
}

#[test]
fn faults_alone_open_nothing() {
    let breaker = CircuitBreaker::default();
    for client in 0..100 {
        learn(&breaker, Outcome::Fault, by(client, seconds(1)));
    }
    assert!(breaker.is_closed(), "they are compared with those of other backends");
}

#[test]
fn probe_closes_the_breaker_or_doubles_its_pause() {
    let breaker = CircuitBreaker::default();
    for _ in 0..3 {
        learn(&breaker, Outcome::Unreachable, by(1, seconds(1)));
    }
    assert_eq!(breaker.state(seconds(3)), BreakerState::HalfOpen);
    assert!(breaker.probe.try_take());
    assert_eq!(breaker.state(seconds(3)), BreakerState::Open, "the slot is taken");
    let probe = OutcomeSource { probe: Probe::Breaker, ..by(1, seconds(3)) };
    learn(&breaker, Outcome::Unreachable, probe);
    breaker.probe.free();
    assert_eq!(breaker.state(seconds(6)), BreakerState::Open, "4 s this time");
    assert_eq!(breaker.state(seconds(7)), BreakerState::HalfOpen);
    assert!(breaker.probe.try_take());
    learn(&breaker, Outcome::Ok, OutcomeSource { probe: Probe::Breaker, ..by(1, seconds(7)) });
    breaker.probe.free();
    assert_eq!(breaker.state(seconds(7)), BreakerState::Closed);
}

#[test]
fn one_probe_decides_and_later_ones_count_as_any_request() {
    let breaker = CircuitBreaker::default();
    let probe = |at| OutcomeSource { probe: Probe::Breaker, ..by(1, seconds(at)) };
    let half_open = |at| {
        breaker.set(BreakerState::Open, seconds(at));
        breaker.set(BreakerState::HalfOpen, seconds(at));
    };
    half_open(3);
    learn(&breaker, Outcome::Ok, probe(3));
    assert!(breaker.is_closed());
    learn(&breaker, Outcome::Fault, probe(4));
    assert!(breaker.is_closed(), "one fault opens no closed breaker");
    learn(&breaker, Outcome::Ok, probe(4));
    assert_eq!(breaker.times_closed(), 1, "it was closed already");
    half_open(5);
    learn(&breaker, Outcome::Fault, probe(5));
    assert_eq!(breaker.state(seconds(5)), BreakerState::Open);
    learn(&breaker, Outcome::Ok, probe(6));
    assert_eq!(breaker.state(seconds(6)), BreakerState::Open, "it was sent before that failure");
}

#[test]
fn busy_and_cancelled_attempts_do_not_open_the_breaker() {
    let breaker = CircuitBreaker::default();
    let busy = Outcome::Busy { cooldown: Duration::from_secs(1), status: 503 };
    for client in 0..100 {
        learn(&breaker, busy, by(client, seconds(1)));
        learn(&breaker, Outcome::Cancel, by(client, seconds(1)));
    }
    assert!(breaker.is_closed());
}
