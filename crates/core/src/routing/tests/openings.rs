//! The times at which refused requests find room, without predictions.

use std::time::Duration;

use penstock_api::units::Timestamp;

use super::{Fleet, NOW, TestRequest, backend, input_of};
use crate::fleet::{
    BreakerState, CheckOutcome, CheckResult, CooldownCause, ExpectedResponse, Health,
    InflightGuard, PermitRequest, Serving,
};

/// Two backends of `m` and one of its fallback `n`.
fn fleet(rest: &str) -> Fleet {
    let one = |name, port, model| {
        backend(name, port, &format!("max_in_flight: 2, models: [{model}]{rest}"))
    };
    let backends = [one("a", 1, "m"), one("b", 2, "m"), one("n", 3, "n")].concat();
    Fleet::of(&format!(
        "routing: {{ strategy: round_robin, fallbacks: {{ m: [n] }} }}\nbackends:\n{backends}"
    ))
}

fn at(seconds: f64) -> Timestamp {
    NOW.after(Duration::from_secs_f64(seconds))
}

fn row(fleet: &Fleet, backend: &str) -> Serving {
    let topology = fleet.live.topology();
    let mut rows = topology.models().iter().flat_map(|model| &model.serving);
    rows.find(|row| &*row.state.name == backend).unwrap().clone()
}

fn occupy(fleet: &Fleet, backend: &str, seconds: f64) -> InflightGuard {
    let now = at(seconds);
    let mut permit =
        row(fleet, backend).try_reserve(&PermitRequest { now, ..PermitRequest::default() });
    permit.as_mut().unwrap().estimate_drain(ExpectedResponse::default(), now);
    permit.unwrap()
}

fn fill(fleet: &Fleet, backend: &str) -> [InflightGuard; 2] {
    [occupy(fleet, backend, 0.0), occupy(fleet, backend, 0.0)]
}

/// The numbers of openings that are there after 1, 2, 3 … seconds from `seconds` after [`NOW`].
fn openings(fleet: &Fleet, in_chain: bool, seconds: f64) -> Vec<u32> {
    let topology = fleet.live.topology();
    let (ask, tried) = (TestRequest::of("m"), Default::default());
    let profile = ask.profile();
    let mut input = input_of(&profile, ask, &fleet.router, &tried, &topology);
    input.now = at(seconds);
    let openings = fleet.router.openings(&input, in_chain).unwrap();
    openings.after_seconds().map(|(_, count)| count).collect()
}

/// The second of each of the first four openings.
fn seconds(openings: &[u32]) -> Vec<u64> {
    let second = |number: u32| (1..).zip(openings).find(|(_, count)| **count >= number);
    (1..=4).filter_map(|number| second(number).map(|(second, _)| second)).collect()
}

fn learn(fleet: &Fleet, backend: &str, took: u64) {
    (0..30).for_each(|_| row(fleet, backend).latency.durations.learn(Duration::from_secs(took)));
}

#[test]
fn full_backends_have_room_when_their_requests_usually_end() {
    let fleet = fleet("");
    let _held = (fill(&fleet, "a"), fill(&fleet, "b"));
    assert_eq!(seconds(&openings(&fleet, false, 0.0)), [10; 4], "nothing has ended yet");
    learn(&fleet, "a", 4);
    assert_eq!(seconds(&openings(&fleet, false, 0.0)), [5; 4], "one says what both need");
    learn(&fleet, "b", 8);
    assert_eq!(seconds(&openings(&fleet, false, 0.0)), [5, 5, 9, 9]);
    assert_eq!(seconds(&openings(&fleet, false, 3.0)), [2, 2, 6, 6]);
    assert_eq!(seconds(&openings(&fleet, false, 6.0)), [3, 3, 6, 6], "too long: half done");
}

#[test]
fn limit_of_the_model_counts_its_own_requests() {
    let yaml = "routing: { strategy: smart }\nbackends:\n";
    let rest = "max_in_flight: 9, max_in_flight_per_model: 1, models: [m, o]";
    let fleet = Fleet::of(&format!("{yaml}{}", backend("a", 1, rest)));
    learn(&fleet, "a", 4);
    let topology = fleet.live.topology();
    let other = topology.model(topology.model_id("o").unwrap()).unwrap().serving[0].clone();
    let mut permit = other.try_reserve(&PermitRequest::default()).unwrap();
    permit.estimate_drain(ExpectedResponse::default(), NOW);
    let _held = occupy(&fleet, "a", 3.0);
    assert_eq!(openings(&fleet, false, 3.0)[..6], [0, 0, 0, 0, 1, 1]);
}

#[test]
fn models_that_share_the_slots_of_a_backend_share_a_line() {
    let lines = |rest: &str| {
        let rows = [
            backend("a", 1, &format!("max_in_flight: 4, models: [m, o]{rest}")),
            backend("b", 2, "max_in_flight: 4, models: [n]"),
        ];
        let fleet = Fleet::of(&format!("backends:\n{}", rows.concat()));
        let topology = fleet.live.topology();
        ["m", "o", "n"].map(|model| {
            let (ask, tried) = (TestRequest::of(model), Default::default());
            let profile = ask.profile();
            let input = input_of(&profile, ask, &fleet.router, &tried, &topology);
            format!("{:?}", fleet.router.return_line(&input, false))
        })
    };
    let [m, o, n] = lines("");
    assert!(m == o && m != n, "{m} {o} {n}");
    let [m, o, _] = lines(", max_in_flight_per_model: 2");
    assert!(m != o, "{m} {o}");
}

#[test]
fn requests_of_other_models_end_in_their_own_time() {
    let yaml = "routing: { strategy: smart }\nbackends:\n";
    let fleet =
        Fleet::of(&format!("{yaml}{}", backend("a", 1, "max_in_flight: 1, models: [m, o]")));
    learn(&fleet, "a", 4);
    let topology = fleet.live.topology();
    let other = topology.model(topology.model_id("o").unwrap()).unwrap().serving[0].clone();
    let first = |now| openings(&fleet, false, now).iter().position(|count| *count > 0).unwrap() + 1;
    let hold = || {
        let mut permit = other.try_reserve(&PermitRequest::default()).unwrap();
        permit.estimate_drain(other.latency.expect(true, None), NOW);
        permit
    };
    let unknown = hold();
    assert_eq!(first(0.0), 5, "as the refused model's");
    drop(unknown);
    (0..30).for_each(|_| other.latency.durations.learn(Duration::from_secs(20)));
    let _known = hold();
    assert_eq!(first(3.0), 19);
}

#[test]
fn fallbacks_count_where_the_whole_chain_was_tried() {
    let fleet = fleet("");
    learn(&fleet, "a", 8);
    learn(&fleet, "n", 4);
    let _held = [fill(&fleet, "a"), fill(&fleet, "b"), fill(&fleet, "n")];
    assert_eq!(seconds(&openings(&fleet, false, 0.0)), [9; 4]);
    assert_eq!(seconds(&openings(&fleet, true, 0.0)), [5, 5, 9, 9]);
}

#[test]
fn backend_that_is_down_returns_after_the_checks_that_it_needs() {
    let fleet = fleet(", health: { unhealthy_interval: 10s, jitter: 0, rise: 3 }");
    let check = |backend: &str, seconds, outcome| {
        let topology = fleet.live.topology();
        let config = &topology.backend(backend).unwrap().config.health;
        let check = CheckResult { at: at(seconds), outcome };
        let _verdict = fleet.state(backend).learn_check(check, config);
    };
    let first = |now| openings(&fleet, false, now).iter().position(|count| *count > 0).unwrap() + 1;
    fleet.set_health("a", Health::Unhealthy);
    fleet.set_health("b", Health::Unhealthy);
    assert_eq!(first(0.0), 20, "a first check is under way");
    let passed = CheckOutcome::Passed(Duration::ZERO);
    check("a", 0.0, CheckOutcome::Failed);
    check("b", 0.0, CheckOutcome::Failed);
    assert_eq!((first(0.0), first(3.5)), (30, 27));
    check("a", 10.0, passed);
    assert_eq!(first(10.0), 20, "two more");
    check("a", 20.0, passed);
    check("a", 30.0, passed);
    assert_eq!(first(30.0), 1);
    fleet.state("a").set_draining(true);
    assert_eq!(first(31.0), 5, "the drain may end with a check");
}

#[test]
fn open_breaker_lets_one_request_probe_first() {
    let fleet = fleet("");
    fleet.set_health("b", Health::Unhealthy);
    fleet.state("a").breaker.set(BreakerState::HalfOpen, NOW);
    let found = openings(&fleet, false, 0.0);
    assert!(found[0] >= 1 && found[1] > found[0], "{:?}", &found[..4]);
}

#[test]
fn cooldown_ends_before_a_limited_backend_has_room() {
    let fleet = fleet("");
    learn(&fleet, "a", 4);
    let _held = (fill(&fleet, "a"), occupy(&fleet, "b", 0.0));
    let b = row(&fleet, "b");
    let cause = CooldownCause { status: 429, client: 0 };
    b.state.cooldowns.start(b.cooldown_scope(Default::default()), at(7.5), cause, NOW);
    assert_eq!(seconds(&openings(&fleet, false, 0.0)), [5, 5, 8, 8]);
}
