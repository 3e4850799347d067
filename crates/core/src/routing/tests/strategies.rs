//! The choice among the candidates.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_api::Capabilities;
use proptest::prelude::*;

use super::{Fleet, TestRequest, alike, backend};
use crate::fleet::Health;

fn counts(fleet: &mut Fleet, ask: TestRequest<'_>, requests: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..requests {
        *counts.entry(fleet.backend_for(ask)).or_default() += 1;
    }
    counts
}

#[derive(Debug, Clone)]
struct Candidate {
    priority: u32,
    in_flight: u32,
    limit: u32,
    latency_ms: u64,
    context: u32,
    can: u8,
    is_healthy: bool,
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (0..130_u32, 0..130_u32, 1..200_u32, 0..1300_u64, 1..40_u32, 0..8_u8, 0..4_u8);
    let one = one.prop_map(|(priority, in_flight, limit, latency_ms, context, can, ill)| {
        Candidate { priority, in_flight, limit, latency_ms, context, can, is_healthy: ill != 0 }
    });
    prop::collection::vec(one, 1..12)
}

fn set_of(bits: u8) -> Capabilities {
    Capabilities::NAMED
        .iter()
        .enumerate()
        .filter(|(index, _)| bits & (1 << index) != 0)
        .fold(Capabilities::NONE, |all, (_, (one, _))| all.union(*one))
}

fn fleet_of(candidates: &[Candidate]) -> Fleet {
    let lines: String = candidates
        .iter()
        .enumerate()
        .map(|(index, one)| {
            let rest = format!(
                "priority: {}, max_in_flight: {}, models: [{{ id: m, context_length: {}, capabilities: {} }}]",
                one.priority, one.limit, one.context, set_of(one.can)
            );
            backend(&format!("b{index}"), 8000 + index, &rest)
        })
        .collect();
    let fleet = Fleet::of(&format!("backends:\n{lines}"));
    for (index, one) in candidates.iter().enumerate() {
        let state = fleet.state(&format!("b{index}"));
        state.load.set_in_flight(one.in_flight);
        state.set_check_latency(Duration::from_millis(one.latency_ms));
        if !one.is_healthy {
            state.health.set(Health::Unhealthy);
        }
    }
    fleet
}

/// Applies the words of the contract one after the other.
fn by_brute_force(candidates: &[Candidate], needs: u8, tokens: u32) -> Option<usize> {
    let may = |one: &&(usize, &Candidate)| {
        let one = one.1;
        one.is_healthy
            && needs & !one.can == 0
            && one.context >= tokens
            && one.in_flight < one.limit
    };
    let score = |one: &Candidate| {
        let load = 100 - one.in_flight.min(100);
        let latency = 100 - u32::try_from(one.latency_ms / 10).unwrap().min(100);
        (100 - one.priority.min(100)) * 50 + load * 30 + latency * 20
    };
    let numbered: Vec<(usize, &Candidate)> = candidates.iter().enumerate().collect();
    let highest = numbered.iter().filter(may).map(|(_, one)| score(one)).max()?;
    numbered.iter().filter(may).find(|(_, one)| score(one) == highest).map(|(index, _)| *index)
}

proptest! {
    #[test]
    fn smart_is_brute_force(candidates in candidates(), needs in 0..8_u8, tokens in 0..45_u32) {
        let mut fleet = fleet_of(&candidates);
        let ask = TestRequest { needs: set_of(needs), tokens, ..TestRequest::of("m") };
        let taken = fleet.taken(ask).ok().map(|(backend, _)| backend);
        let wanted = by_brute_force(&candidates, needs, tokens).map(|index| format!("b{index}"));
        prop_assert_eq!(taken, wanted);
    }

    #[test]
    fn rotation_is_even_beside_other_models(
        backends in 1..9_usize, rounds in 1..12_usize, others in 0..4_usize
    ) {
        let yaml = format!("routing: {{ strategy: round_robin }}\n{}", alike(backends, "m, other"));
        let mut fleet = Fleet::of(&yaml);
        let mut counts = vec![0; backends];
        for _ in 0..backends * rounds {
            let taken = fleet.backend_for(TestRequest::of("m"));
            counts[taken[1..].parse::<usize>().unwrap()] += 1;
            for _ in 0..others {
                fleet.backend_for(TestRequest::of("other"));
            }
        }
        prop_assert!(counts.iter().all(|count| *count == rounds), "{:?}", counts);
    }
}

#[test]
fn equal_scores_go_to_the_first_candidate() {
    let mut fleet = Fleet::of(&alike(4, "m"));
    assert_eq!(
        counts(&mut fleet, TestRequest::of("m"), 20),
        BTreeMap::from([("b0".to_owned(), 20)])
    );
    fleet.state("b0").load.set_in_flight(1);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b1", "the first of those that are left");
}

#[test]
fn fewer_in_flight_and_less_latency_score_higher() {
    let mut fleet = Fleet::of(&alike(2, "m"));
    fleet.state("b0").load.set_in_flight(10);
    fleet.state("b1").load.set_in_flight(2);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b1");
    fleet.state("b0").load.set_in_flight(2);
    fleet.state("b0").set_check_latency(Duration::from_millis(200));
    fleet.state("b1").set_check_latency(Duration::from_millis(50));
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b1");
}

#[test]
fn streams_and_whole_responses_are_scored_by_separate_latencies() {
    let mut fleet = Fleet::of(&alike(2, "m"));
    let topology = &fleet.live.topology();
    let latencies = &topology.models()[0].serving;
    // b0 has a slow first token and a fast end, b1 the reverse.
    latencies[0].latency.learn_first_token(Duration::from_millis(900), fleet.now);
    latencies[0].latency.learn_response(Duration::from_millis(100), fleet.now);
    latencies[1].latency.learn_first_token(Duration::from_millis(100), fleet.now);
    latencies[1].latency.learn_response(Duration::from_millis(900), fleet.now);
    assert_eq!(fleet.backend_for(TestRequest { streaming: true, ..TestRequest::of("m") }), "b1");
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "b0");
}

#[test]
fn weights_decide_what_counts() {
    let yaml = format!(
        "routing: {{ weights: {{ priority: 0, load: 0, latency: 100 }} }}\nbackends:\n{}{}",
        backend("near", 1, "priority: 0, models: [m]"),
        backend("fast", 2, "priority: 99, models: [m]")
    );
    let mut fleet = Fleet::of(&yaml);
    fleet.state("near").set_check_latency(Duration::from_millis(500));
    fleet.state("fast").load.set_in_flight(90);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "fast");
}

#[test]
fn six_requests_rotate_evenly_over_three_backends() {
    let yaml = format!("routing: {{ strategy: round_robin }}\n{}", alike(3, "m"));
    let mut fleet = Fleet::of(&yaml);
    let order: Vec<String> = (0..6).map(|_| fleet.backend_for(TestRequest::of("m"))).collect();
    assert_eq!(order, ["b0", "b1", "b2", "b0", "b1", "b2"]);
}

#[test]
fn two_models_in_alternation_do_not_disturb_each_other() {
    let yaml = format!("routing: {{ strategy: round_robin }}\n{}", alike(2, "m, n"));
    let mut fleet = Fleet::of(&yaml);
    let order: Vec<[String; 2]> = (0..4)
        .map(|_| [fleet.backend_for(TestRequest::of("m")), fleet.backend_for(TestRequest::of("n"))])
        .collect();
    assert_eq!(order.concat(), ["b0", "b0", "b1", "b1", "b0", "b0", "b1", "b1"]);
}

#[test]
fn priority_only_takes_the_lowest_then_the_idlest_then_rotates() {
    let yaml = format!(
        "routing: {{ strategy: priority_only }}\nbackends:\n{}{}{}{}",
        backend("late", 1, "priority: 60, models: [m]"),
        backend("unset", 2, "models: [m]"),
        backend("first", 3, "priority: 10, models: [m]"),
        backend("second", 4, "priority: 10, models: [m]")
    );
    let mut fleet = Fleet::of(&yaml);
    let six = counts(&mut fleet, TestRequest::of("m"), 6);
    assert_eq!(six, BTreeMap::from([("first".to_owned(), 3), ("second".to_owned(), 3)]));
    fleet.state("first").load.set_in_flight(2);
    fleet.state("second").load.set_in_flight(1);
    assert_eq!(
        counts(&mut fleet, TestRequest::of("m"), 4),
        BTreeMap::from([("second".to_owned(), 4)])
    );
    fleet.set_health("first", Health::Unhealthy);
    fleet.set_health("second", Health::Unhealthy);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "unset", "50 unless given, before 60");
    fleet.state("unset").load.set_in_flight(1000);
    assert_eq!(fleet.backend_for(TestRequest::of("m")), "unset", "load never beats priority");
}

#[test]
fn random_picks_are_fair() {
    let yaml = format!("routing: {{ strategy: random }}\n{}", alike(3, "m"));
    let mut fleet = Fleet::of(&yaml);
    let counts = counts(&mut fleet, TestRequest::of("m"), 3000);
    assert_eq!(counts.len(), 3);
    // Within five standard deviations of 1000.
    assert!(counts.values().all(|count| (870..=1130).contains(count)), "{counts:?}");
}

#[test]
fn a_backend_that_comes_back_gets_its_share_little_by_little() {
    for strategy in ["round_robin", "random", "smart"] {
        let yaml = format!("routing: {{ strategy: {strategy} }}\n{}", alike(2, "m"));
        let mut fleet = Fleet::of(&yaml);
        let start = fleet.now;
        // By `smart` the first one would get everything.
        fleet.state("b0").begin_slow_start(start, Duration::from_secs(10));
        let mut share = |seconds: u64| {
            fleet.now = start.after(Duration::from_secs(seconds));
            let mut taken = 0;
            for _ in 0..2000 {
                // The time of the decision determines whether it is skipped.
                fleet.now = fleet.now.after(Duration::from_micros(7));
                taken += usize::from(fleet.backend_for(TestRequest::of("m")) == "b0");
            }
            taken
        };
        let whole = if strategy == "smart" { 2000 } else { 1000 };
        let (first, half) = (share(0), share(5));
        assert!((whole / 20..=whole / 4).contains(&first), "{strategy}: {first} at the start");
        assert!((whole / 3..=whole * 3 / 4).contains(&half), "{strategy}: {half} half way");
        let all = share(10);
        assert!(all > whole * 9 / 10, "{strategy}: {all} at the end");
    }
    let mut fleet = Fleet::of(&alike(2, "m"));
    let now = fleet.now;
    fleet.set_health("b1", Health::Unhealthy);
    fleet.state("b0").begin_slow_start(now, Duration::from_secs(10));
    assert_eq!(
        counts(&mut fleet, TestRequest::of("m"), 50)["b0"],
        50,
        "no other backend could take them"
    );
}

#[test]
fn panic_mode_ignores_health_checks() {
    let yaml = |threshold: &str| {
        format!("routing: {{ strategy: random, {threshold} }}\n{}", alike(4, "m"))
    };
    for (threshold, used) in [("", 1), ("panic_threshold: 0.25", 1), ("panic_threshold: 0.5", 3)] {
        let mut fleet = Fleet::of(&yaml(threshold));
        fleet.set_health("b0", Health::Unhealthy);
        fleet.set_health("b1", Health::Unhealthy);
        fleet.set_health("b2", Health::Unknown);
        let draws = counts(&mut fleet, TestRequest::of("m"), 200);
        assert_eq!(draws.len(), used, "{threshold}: {draws:?}");
        assert!(!draws.contains_key("b2"), "what was never checked may not even be there");
        assert_eq!(fleet.route(TestRequest::of("m")).unwrap().in_panic, used > 1);
    }
    let mut fleet = Fleet::of(&yaml("panic_threshold: 0.5"));
    for name in ["b0", "b1", "b2", "b3"] {
        fleet.set_health(name, Health::Unhealthy);
    }
    assert_eq!(counts(&mut fleet, TestRequest::of("m"), 200).len(), 4, "rather all than none");
}
