//! Decisions on many threads while the fleet changes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use penstock_config::{MAX_BACKENDS, ModelEntry};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{Fleet, TestRequest, backend, plain_input};
use crate::fleet::{BackendSet, Fleet as LiveFleet, InflightGuard, PermitRequest, Topology};
use crate::routing::{Live, NoRecord, RouteError, RouteInput, Router, RoutingDecision, Scratch};

const MODELS: [&str; 3] = ["m0", "m1", "m2"];

/// The decisions of one thread, with their inputs.
struct Decider<'a> {
    router: &'a Router,
    rng: SmallRng,
    scratch: Scratch,
}

impl<'a> Decider<'a> {
    fn new(router: &'a Router, seed: u64) -> Self {
        Self { router, rng: SmallRng::seed_from_u64(seed), scratch: Scratch::default() }
    }

    fn decide(&mut self, fleet: &Topology, model: &str) -> Result<RoutingDecision, RouteError> {
        let request = TestRequest::of(model).profile();
        let tried = BackendSet::default();
        let tokens = request.prompt_tokens;
        let input = RouteInput { model, tokens, ..plain_input(&request, fleet, &tried) };
        let mut random = Live { topology: fleet, rng: &mut self.rng };
        self.router.route(&input, &mut random, &mut self.scratch, &mut NoRecord)
    }
}

fn entries(names: &[&str]) -> Vec<ModelEntry> {
    names.iter().map(|id| ModelEntry { id: (*id).to_owned(), ..ModelEntry::default() }).collect()
}

/// Publishes changed lists of models repeatedly.
fn publish(fleet: &LiveFleet, rounds: usize) {
    let ids: Vec<_> = fleet.topology().backends.iter().map(|backend| backend.state.id).collect();
    for round in 0..rounds {
        for (index, id) in ids.iter().enumerate() {
            let known = &MODELS[(round + index) % 3..];
            fleet.learn_models(*id, &entries(known));
        }
    }
}

fn check(fleet: &Topology, model: &str, decided: Result<RoutingDecision, RouteError>) {
    let lists = |index: usize| {
        let models = fleet.backends[index].models.as_ref();
        models.is_some_and(|models| models.iter().any(|entry| entry.id == model))
    };
    match decided {
        Ok(decision) => {
            let row = decision.serving(fleet).expect("the decision's row is in its snapshot");
            assert_eq!(row.id, decision.backend);
            assert_eq!(&*fleet.model(decision.model).unwrap().name, model);
            assert!(lists(usize::from(row.backend)), "a candidate of its snapshot");
        }
        Err(RouteError::ModelNotFound { .. } | RouteError::DiscoveryPending { .. }) => {
            assert!(!(0..fleet.backends.len()).any(lists), "no backend in the snapshot serves it");
        }
        Err(other) => panic!("every backend is healthy and idle: {other}"),
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn every_decision_is_a_candidate_of_its_snapshot() {
    for strategy in ["smart", "round_robin", "priority_only", "random", "deployment"] {
        let backends: String =
            (0..6).map(|n| backend(&format!("b{n}"), 8000 + n, "priority: 5")).collect();
        let fleet =
            Fleet::of(&format!("routing: {{ strategy: {strategy} }}\nbackends:\n{backends}"));
        let (fleet, router) = (&fleet.live, &fleet.router);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 0..3 {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut decider = Decider::new(router, seed);
                    while !is_over.load(Ordering::Relaxed) {
                        for model in MODELS {
                            let snapshot = fleet.topology();
                            let decided = decider.decide(&snapshot, model);
                            check(&snapshot, model, decided);
                        }
                    }
                });
            }
            publish(fleet, 20);
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn parallel_picks_never_exceed_a_limit() {
    let limits = [1_u32, 2, 3, 7, 11];
    let backends: String = limits
        .iter()
        .enumerate()
        .map(|(n, limit)| {
            backend(&format!("b{n}"), 8000 + n, &format!("max_in_flight: {limit}, models: [m]"))
        })
        .collect();
    for strategy in ["smart", "round_robin", "priority_only", "random", "deployment"] {
        let fleet =
            Fleet::of(&format!("routing: {{ strategy: {strategy} }}\nbackends:\n{backends}"));
        let (fleet, router) = (&fleet.live, &fleet.router);
        let taken = AtomicUsize::new(0);
        thread::scope(|scope| {
            for seed in 0..8 {
                let taken = &taken;
                scope.spawn(move || {
                    let snapshot = fleet.topology();
                    let mut decider = Decider::new(router, seed);
                    let mut held = Vec::new();
                    for _ in 0..1250 {
                        let Ok(decision) = decider.decide(&snapshot, "m") else {
                            held.clear();
                            continue;
                        };
                        let row = decision.serving(&snapshot).unwrap();
                        let limit = row.max_in_flight;
                        if let Some(place) =
                            InflightGuard::try_reserve(&row.state, limit, &PermitRequest::default())
                        {
                            taken.fetch_add(1, Ordering::Relaxed);
                            held.push(place);
                        }
                        assert!(row.state.load.in_flight() <= limit, "more than {limit}");
                    }
                });
            }
        });
        let topology = &fleet.topology();
        assert!(topology.backends.iter().all(|one| one.state.load.in_flight() == 0), "all settled");
        assert!(taken.load(Ordering::Relaxed) > 1000, "most picks find a place");
    }
}

#[test]
fn the_sets_of_backends_hold_as_many_as_a_configuration_may() {
    let mut set = BackendSet::default();
    let last = crate::fleet::BackendId(u16::try_from(MAX_BACKENDS - 1).unwrap());
    assert!(!set.contains(last));
    set.insert(last);
    assert!(set.contains(last));
    assert!(!set.contains(crate::fleet::BackendId(0)));
    set.insert(crate::fleet::BackendId(u16::MAX));
    assert!(!set.contains(crate::fleet::BackendId(u16::MAX)), "beyond the set: never in it");
}
