//! When the circuit breaker opens, half-opens and closes.

use super::*;

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

fn by(client: u64, at: Timestamp) -> OutcomeSource {
    OutcomeSource { at, client, probe: false }
}

#[test]
fn consecutive_connect_failures_open_the_breaker() {
    let breaker = CircuitBreaker::default();
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Ok, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "a response resets the count");
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    assert_eq!(breaker.state(seconds(2)), BreakerState::Open);
    assert_eq!(breaker.state(seconds(3)), BreakerState::HalfOpen);
}

#[test]
fn faults_seen_by_one_client_do_not_open_the_breaker() {
    let breaker = CircuitBreaker::default();
    for _ in 0..100 {
        breaker.learn(Outcome::Fault, by(7, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed);
    breaker.learn(Outcome::Fault, by(8, seconds(1)), &config());
    assert_eq!(breaker.state(seconds(1)), BreakerState::Open, "two clients saw faults");
}

#[test]
fn few_responses_or_a_low_fault_share_keep_the_breaker_closed() {
    let breaker = CircuitBreaker::default();
    for client in 0..19 {
        breaker.learn(Outcome::Fault, by(client, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "19 of at least 20");
    let breaker = CircuitBreaker::default();
    for client in 0..60 {
        let outcome = if client % 3 == 0 { Outcome::Fault } else { Outcome::Ok };
        breaker.learn(outcome, by(client, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "a third, not half");
}

#[test]
fn faults_outside_the_window_do_not_count() {
    let breaker = CircuitBreaker::default();
    for client in 0..15 {
        breaker.learn(Outcome::Fault, by(client, seconds(1)), &config());
    }
    for client in 0..15 {
        breaker.learn(Outcome::Fault, by(client, seconds(40)), &config());
    }
    assert_eq!(breaker.state(seconds(40)), BreakerState::Closed, "15 within 30 s, not 30");
}

#[test]
fn probe_closes_the_breaker_or_doubles_its_pause() {
    let breaker = CircuitBreaker::default();
    for _ in 0..3 {
        breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(3)), BreakerState::HalfOpen);
    assert!(breaker.try_take_probe());
    assert_eq!(breaker.state(seconds(3)), BreakerState::Open, "the slot is taken");
    let probe = OutcomeSource { probe: true, ..by(1, seconds(3)) };
    breaker.learn(Outcome::Unreachable, probe, &config());
    breaker.free_probe();
    assert_eq!(breaker.state(seconds(6)), BreakerState::Open, "4 s this time");
    assert_eq!(breaker.state(seconds(7)), BreakerState::HalfOpen);
    assert!(breaker.try_take_probe());
    breaker.learn(Outcome::Ok, OutcomeSource { probe: true, ..by(1, seconds(7)) }, &config());
    breaker.free_probe();
    assert_eq!(breaker.state(seconds(7)), BreakerState::Closed);
}

#[test]
fn busy_and_cancelled_attempts_do_not_open_the_breaker() {
    let breaker = CircuitBreaker::default();
    let busy = Outcome::Busy { cooldown: Duration::from_secs(1), status: 503 };
    for client in 0..100 {
        breaker.learn(busy, by(client, seconds(1)), &config());
        breaker.learn(Outcome::Cancel, by(client, seconds(1)), &config());
    }
    assert!(breaker.is_closed());
}
