//! The counts of a shadow, without its thread.

use std::path::Path;
use std::time::Duration;

use penstock_api::Operation;
use penstock_config::{Config, Environment};
use penstock_scan::{ScanOptions, scan};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;

use super::*;
use crate::fleet::{BackendSet, Fleet, Health, InflightGuard, PermitRequest};
use crate::routing::Scratch;
use crate::routing::random::ReplaySource;
use crate::routing::tests::plain_input;

const NOW: Timestamp = Timestamp(1_000_000_000);

/// A shadow without a thread, and the fleet it observes.
struct Trial {
    shadow: Shadow,
    worker: Worker,
    receiver: Receiver<QueuedDecision>,
    router: Router,
    fleet: Fleet,
}

impl Trial {
    /// Two healthy backends, `a` and `b`, that serve `m`.
    fn of(shadow: &str) -> Self {
        Self::within(shadow, Bounds::default())
    }

    fn within(shadow: &str, bounds: Bounds) -> Self {
        let yaml = format!(
            "routing: {{ strategy: round_robin, shadow: {shadow} }}\nbackends:\n\
             - {{ name: a, url: http://10.0.0.1:1, models: [m] }}\n\
             - {{ name: b, url: http://10.0.0.2:1, models: [m] }}\n"
        );
        let config = Config::parse(&yaml, "test", Path::new(""), &Environment::default()).unwrap();
        let fleet = Fleet::new(&config);
        for backend in &fleet.topology().backends {
            backend.state.health.set(Health::Healthy);
        }
        let routing = &config.routing;
        let (shadow, worker, receiver) =
            Shadow::new(routing, routing.shadow.as_ref().unwrap(), bounds, NOW);
        Self { shadow, worker, receiver, router: Router::new(routing), fleet }
    }

    /// A chat that was sent to the backend in this row.
    fn sent(&self, row: u32, text: &str) -> ObservedDecision {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let body = Bytes::from(body.to_string());
        let json = Some("application/json");
        let request = scan(Operation::Chat, json, &body, ScanOptions::default()).unwrap();
        let topology = self.fleet.topology();
        let tried = BackendSet::default();
        let input = plain_input(&request, &topology, &tried);
        let mut trace = Trace::default();
        let mut rng = SmallRng::seed_from_u64(1);
        let mut random = ReplaySource { turn: row.into(), rng: &mut rng };
        let (mut scratch, model) = (Scratch::default(), topology.model_id("m").unwrap());
        // The trace stays empty without a live decision.
        let routed = self.router.route(&input, &mut random, &mut scratch, &mut trace);
        let row = routed.map_or(row, |decision| decision.row);
        let (at, is_next_probe) = (NOW, false);
        ObservedDecision {
            at,
            request,
            body,
            session: None,
            topology,
            model,
            row,
            is_next_probe,
            trace,
        }
    }

    fn compare(&mut self, row: u32, text: &str) -> ShadowCounts {
        let decision = self.sent(row, text);
        self.worker.compare(&decision, Duration::ZERO);
        self.shadow.counts()
    }
}

/// Returns the text of a conversation after `count` turns.
fn turns(name: usize, count: usize) -> String {
    (0..=count).map(|turn| format!("{name}/{turn}: {} ", "word ".repeat(40))).collect()
}

const PREFIXES: &str = "{ strategy: weighted, scorers: \"prefix-affinity:1\" }";

#[test]
fn both_sides_expect_the_same_cache_hits_for_the_same_choices() {
    let home =
        (0..2).find(|row| Trial::of(PREFIXES).compare(*row, &turns(1, 0)).same == 1).unwrap();
    let mut faithful = Trial::of(PREFIXES);
    let mut fickle = Trial::of(PREFIXES);
    for count in 0..6 {
        faithful.compare(home, &turns(1, count));
        fickle.compare(u32::try_from(count % 2).unwrap(), &turns(1, count));
    }
    let found = faithful.shadow.counts();
    assert_eq!((found.same, found.other, found.none), (6, 0, 0));
    assert_eq!(found.live_tokens, found.shadow_tokens, "the same choices, the same expectation");
    assert!(found.live_tokens > found.prompt_tokens / 2, "{found:?}");
    let elsewhere = fickle.shadow.counts();
    assert_eq!((elsewhere.same, elsewhere.other), (3, 3));
    assert_eq!(elsewhere.prompt_tokens, found.prompt_tokens);
    assert_eq!(elsewhere.shadow_tokens, found.shadow_tokens, "it would have stayed");
    assert!(elsewhere.live_tokens < found.live_tokens, "{elsewhere:?}");
    assert!(elsewhere.live_tokens > 0, "two turns later the same backend has what it had");
    let live = fickle.fleet.topology();
    let model = &live.models()[0];
    assert_eq!(model.turn.load(Ordering::Relaxed), 0);
    assert!(model.serving.iter().all(|row| model.prefixes.held(row.slot) == 0));
    assert!(live.backends.iter().all(|one| one.state.dispatched() == 0));
}

#[test]
fn conversations_are_in_the_sample_with_all_their_turns() {
    let mut trial = Trial::of("{ strategy: weighted, sample: 0.5 }");
    let mut whole = 0;
    for name in 0..200 {
        let before = trial.shadow.counts().not_sampled;
        let after = (0..3).map(|count| trial.compare(0, &turns(name, count))).last().unwrap();
        let not_sampled = after.not_sampled - before;
        assert!(not_sampled == 0 || not_sampled == 3, "{not_sampled} turns of conversation {name}");
        whole += u32::from(not_sampled == 0);
    }
    assert!((70..=130).contains(&whole), "{whole} of 200");
    let before = trial.shadow.counts();
    for _ in 0..200 {
        trial.compare(0, "hi");
    }
    let after = trial.shadow.counts();
    let not_sampled = after.not_sampled - before.not_sampled;
    assert!((70..=130).contains(&not_sampled), "{not_sampled} of 200 without a whole block");
    assert_eq!(after.prompt_tokens, before.prompt_tokens);
    let mut none = Trial::of("{ strategy: weighted, sample: 0 }");
    assert_eq!(none.compare(0, &turns(1, 1)).not_sampled, 1);
}

#[test]
fn shadow_decides_by_the_readings_of_the_live_decision() {
    let mut trial = Trial::of("{ strategy: smart }");
    let topology = trial.fleet.topology();
    let state = &topology.backends[0].state;
    let decision = trial.sent(0, "hello");
    let guard = InflightGuard::try_reserve(state, u32::MAX, &PermitRequest::default()).unwrap();
    let lag = Duration::from_millis(2);
    trial.worker.compare(&decision, lag);
    let counts = trial.shadow.counts();
    assert_eq!((counts.same, counts.other), (1, 0), "a request is no load to its own decision");
    let next = trial.sent(0, "hello");
    trial.worker.compare(&next, lag);
    let counts = trial.shadow.counts();
    assert_eq!((counts.same, counts.other), (1, 1), "the first one is in flight on a");
    drop(guard);
    let report = serde_json::to_value(trial.shadow.report(NOW)).unwrap();
    assert_eq!((&report["agreement"], &report["lag_ms"]), (&json!(0.5), &json!(2.0)));
    assert_eq!(
        report["live"],
        json!({"strategy": "round_robin", "expected_tokens": 0, "hit_rate": null})
    );
}

#[test]
fn decision_without_candidates_counts_as_none() {
    let mut trial = Trial::of(PREFIXES);
    let topology = trial.fleet.topology();
    let set = |health| {
        topology.backends.iter().for_each(|one| one.state.health.set(health));
    };
    set(Health::Unhealthy);
    let found = trial.compare(0, &turns(1, 1));
    assert_eq!((found.none, found.same + found.other, found.prompt_tokens), (1, 0, 0));
    set(Health::Healthy);
    let found = trial.compare(0, &turns(1, 1));
    assert!(found.live_tokens > 0 && found.shadow_tokens == 0, "only one was sent it: {found:?}");
}

#[test]
fn full_queue_drops_and_counts_decisions() {
    let trial =
        Trial::within("{ strategy: random }", Bounds { queue: 2, bodies: ByteSize::kib(1) });
    let small = trial.sent(0, "hello");
    (0..5).for_each(|_| trial.shadow.observe(small.clone()));
    assert_eq!(trial.shadow.counts().dropped, 3);
    let queued: Vec<QueuedDecision> = trial.receiver.try_iter().collect();
    assert_eq!(queued.len(), 2);
    let large = trial.sent(0, &"x".repeat(700));
    trial.shadow.observe(large.clone());
    assert_eq!(trial.shadow.counts().dropped, 3);
    drop(queued);
    trial.shadow.observe(large.clone());
    assert_eq!(trial.shadow.counts().dropped, 4, "two large bodies are over the limit");
    drop(trial.receiver.try_recv().unwrap());
    trial.shadow.observe(large);
    assert_eq!(trial.shadow.counts().dropped, 4, "bytes are returned");
}

#[test]
fn shadow_starts_only_where_configured_and_ends_with_its_last_holder() {
    let host = ShadowHost { now: || NOW, spawn: |_, _| Ok(()) };
    let plain =
        Config::parse("backends: [http://a]", "test", Path::new(""), &Environment::default());
    assert!(Shadow::start(&plain.unwrap().routing, host).unwrap().is_none());
    let Trial { shadow, worker, receiver, .. } = Trial::of(PREFIXES);
    drop(shadow);
    worker.run(&receiver, || NOW);
}
