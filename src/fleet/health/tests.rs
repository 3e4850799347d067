use super::*;

fn config() -> BreakerConfig {
    BreakerConfig {
        connect_failures: 3,
        error_share: 0.5,
        min_answers: 20,
        window: Duration::from_secs(30),
        open: Duration::from_secs(2),
        max_open: Duration::from_secs(30),
    }
}

fn seconds(count: u64) -> Timestamp {
    Timestamp(count * 1_000_000)
}

fn by(client: u64, at: Timestamp) -> Source {
    Source { at, client, probe: false }
}

#[test]
fn the_first_check_decides_and_later_ones_need_a_streak() {
    let tracker = HealthTracker::default();
    assert_eq!(tracker.learn(false, 2, 3), Some(Health::Unhealthy));
    assert_eq!(tracker.learn(true, 2, 3), None, "one pass of two");
    assert_eq!(tracker.learn(false, 2, 3), None, "the streak starts over");
    assert_eq!(tracker.learn(true, 2, 3), None);
    assert_eq!(tracker.learn(true, 2, 3), Some(Health::Healthy));
    assert_eq!(tracker.learn(false, 2, 3), None);
    assert_eq!(tracker.learn(false, 2, 3), None);
    assert_eq!(tracker.learn(false, 2, 3), Some(Health::Unhealthy));
}

#[test]
fn consecutive_failures_to_connect_open_the_breaker() {
    let breaker = Breaker::default();
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Ok, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "an answer starts the count over");
    breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    assert_eq!(breaker.state(seconds(2)), BreakerState::Open);
    assert_eq!(breaker.state(seconds(3)), BreakerState::HalfOpen);
}

#[test]
fn one_client_alone_opens_no_breaker_by_faults() {
    let breaker = Breaker::default();
    for _ in 0..100 {
        breaker.learn(Outcome::Fault, by(7, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed);
    breaker.learn(Outcome::Fault, by(8, seconds(1)), &config());
    assert_eq!(breaker.state(seconds(1)), BreakerState::Open, "a second client saw it too");
}

#[test]
fn few_answers_or_a_small_share_open_no_breaker() {
    let breaker = Breaker::default();
    for client in 0..19 {
        breaker.learn(Outcome::Fault, by(client, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "19 of at least 20");
    let breaker = Breaker::default();
    for client in 0..60 {
        let outcome = if client % 3 == 0 { Outcome::Fault } else { Outcome::Ok };
        breaker.learn(outcome, by(client, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(1)), BreakerState::Closed, "a third, not half");
}

#[test]
fn old_faults_are_forgotten() {
    let breaker = Breaker::default();
    for client in 0..15 {
        breaker.learn(Outcome::Fault, by(client, seconds(1)), &config());
    }
    for client in 0..15 {
        breaker.learn(Outcome::Fault, by(client, seconds(40)), &config());
    }
    assert_eq!(breaker.state(seconds(40)), BreakerState::Closed, "15 within 30 s, not 30");
}

#[test]
fn a_probe_closes_the_breaker_or_opens_it_for_longer() {
    let breaker = Breaker::default();
    for _ in 0..3 {
        breaker.learn(Outcome::Unreachable, by(1, seconds(1)), &config());
    }
    assert_eq!(breaker.state(seconds(3)), BreakerState::HalfOpen);
    assert!(breaker.try_take_probe());
    assert_eq!(breaker.state(seconds(3)), BreakerState::Open, "the slot is taken");
    let probe = Source { probe: true, ..by(1, seconds(3)) };
    breaker.learn(Outcome::Unreachable, probe, &config());
    breaker.free_probe();
    assert_eq!(breaker.state(seconds(6)), BreakerState::Open, "4 s this time");
    assert_eq!(breaker.state(seconds(7)), BreakerState::HalfOpen);
    assert!(breaker.try_take_probe());
    breaker.learn(Outcome::Ok, Source { probe: true, ..by(1, seconds(7)) }, &config());
    breaker.free_probe();
    assert_eq!(breaker.state(seconds(7)), BreakerState::Closed);
}

#[test]
fn busy_and_cancelled_attempts_leave_the_breaker_alone() {
    let breaker = Breaker::default();
    let busy = Outcome::Busy { rest: Duration::from_secs(1), status: 503 };
    for client in 0..100 {
        breaker.learn(busy, by(client, seconds(1)), &config());
        breaker.learn(Outcome::Cancel, by(client, seconds(1)), &config());
    }
    assert!(breaker.is_closed());
}
