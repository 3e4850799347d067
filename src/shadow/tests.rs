//! What a shadow makes of decisions that were made, without its thread.

use std::path::Path;

use serde_json::json;

use super::*;
use crate::api::Operation;
use crate::config::{Config, Environment};
use crate::fleet::{Fleet, Health, InflightGuard, Probe};
use crate::scan::{ScanOptions, scan};

const NOW: Timestamp = Timestamp(1_000_000_000);

/// A shadow without a thread, and the fleet it looks at.
struct Trial {
    shadow: Shadow,
    worker: Worker,
    receiver: Receiver<Message>,
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
        Self { shadow, worker, receiver, fleet }
    }

    /// A chat that was sent to the backend in this row.
    fn seen(&self, row: u32, text: &str) -> Sighting {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let body = Bytes::from(body.to_string());
        let json = Some("application/json");
        let request = scan(Operation::Chat, json, &body, ScanOptions::default()).unwrap();
        let fleet = self.fleet.topology();
        let model = fleet.model_id("m").unwrap();
        let backend = fleet.serving(model, row).unwrap().id;
        let taken = Taken::default();
        let session = None;
        Sighting { at: NOW, request, body, session, fleet, place: (model, row), backend, taken }
    }

    fn take(&mut self, row: u32, text: &str) -> ShadowFigures {
        let seen = self.seen(row, text);
        self.worker.take(&seen, false, std::time::Duration::ZERO);
        self.shadow.figures()
    }
}

/// What a conversation has come to after so many turns.
fn turns(name: usize, count: usize) -> String {
    (0..=count).map(|turn| format!("{name}/{turn}: {} ", "word ".repeat(40))).collect()
}

const PREFIXES: &str = "{ strategy: weighted, scorers: \"prefix-affinity\" }";

#[test]
fn both_sides_count_alike_and_nothing_is_acted_on() {
    let home = (0..2).find(|row| Trial::of(PREFIXES).take(*row, &turns(1, 0)).same == 1).unwrap();
    let mut faithful = Trial::of(PREFIXES);
    let mut fickle = Trial::of(PREFIXES);
    for count in 0..6 {
        faithful.take(home, &turns(1, count));
        fickle.take(u32::try_from(count % 2).unwrap(), &turns(1, count));
    }
    let found = faithful.shadow.figures();
    assert_eq!((found.same, found.other, found.none), (6, 0, 0));
    assert_eq!(found.live_tokens, found.shadow_tokens, "the same choices, the same expectation");
    assert!(found.live_tokens > found.prompt_tokens / 2, "{found:?}");
    let elsewhere = fickle.shadow.figures();
    assert_eq!((elsewhere.same, elsewhere.other), (3, 3));
    assert_eq!(elsewhere.prompt_tokens, found.prompt_tokens);
    assert_eq!(elsewhere.shadow_tokens, found.shadow_tokens, "it would have stayed");
    assert!(elsewhere.live_tokens < found.live_tokens, "{elsewhere:?}");
    assert!(elsewhere.live_tokens > 0, "two turns later the same backend has what it had");
    let live = fickle.fleet.topology();
    let model = &live.models()[0];
    assert_eq!(model.turn.load(Ordering::Relaxed), 0);
    assert!(model.serving.iter().all(|row| model.prefixes.held(row.slot) == 0));
    assert!(live.backends.iter().all(|one| one.state.load.total() == 0));
}

#[test]
fn conversations_are_in_the_sample_with_all_their_turns() {
    let mut trial = Trial::of("{ strategy: weighted, sample: 0.5 }");
    let mut whole = 0;
    for name in 0..200 {
        let before = trial.shadow.figures().not_sampled;
        let after = (0..3).map(|count| trial.take(0, &turns(name, count))).last().unwrap();
        let left_out = after.not_sampled - before;
        assert!(left_out == 0 || left_out == 3, "{left_out} turns of conversation {name}");
        whole += u32::from(left_out == 0);
    }
    assert!((70..=130).contains(&whole), "{whole} of 200");
    let before = trial.shadow.figures();
    for _ in 0..200 {
        trial.take(0, "hi");
    }
    let after = trial.shadow.figures();
    let left_out = after.not_sampled - before.not_sampled;
    assert!((70..=130).contains(&left_out), "{left_out} of 200 without a whole block");
    assert_eq!(after.prompt_tokens, before.prompt_tokens);
    let mut none = Trial::of("{ strategy: weighted, sample: 0 }");
    assert_eq!(none.take(0, &turns(1, 1)).not_sampled, 1);
}

#[test]
fn a_request_is_no_load_to_the_decision_about_itself() {
    let mut trial = Trial::of("{ strategy: smart }");
    let fleet = trial.fleet.topology();
    let state = &fleet.backends[0].state;
    let guard = InflightGuard::try_reserve(state, u32::MAX, Probe::None).unwrap();
    let seen = Sighting { taken: guard.taken(), ..trial.seen(0, "hello") };
    let lag = std::time::Duration::from_millis(2);
    trial.worker.take(&seen, true, lag);
    assert_eq!((trial.shadow.figures().same, trial.shadow.figures().other), (1, 0));
    // In flight, and another one's.
    trial.worker.take(&seen, false, lag);
    assert_eq!((trial.shadow.figures().same, trial.shadow.figures().other), (1, 1));
    assert_eq!(state.load.in_flight(), 1);
    let report = serde_json::to_value(trial.shadow.report(NOW)).unwrap();
    assert_eq!((&report["agreement"], &report["lag_ms"]), (&json!(0.5), &json!(2.0)));
    assert_eq!(
        report["live"],
        json!({"strategy": "round_robin", "expected_tokens": 0, "hit_rate": null})
    );
}

#[test]
fn without_a_backend_there_is_nothing_to_compare() {
    let mut trial = Trial::of(PREFIXES);
    let fleet = trial.fleet.topology();
    let set = |health| {
        fleet.backends.iter().for_each(|one| one.state.health.set(health));
    };
    set(Health::Unhealthy);
    let found = trial.take(0, &turns(1, 1));
    assert_eq!((found.none, found.same + found.other, found.prompt_tokens), (1, 0, 0));
    set(Health::Healthy);
    let found = trial.take(0, &turns(1, 1));
    assert!(found.live_tokens > 0 && found.shadow_tokens == 0, "only one was sent it: {found:?}");
}

#[test]
fn who_finds_no_room_is_dropped_and_counted() {
    let trial =
        Trial::within("{ strategy: random }", Bounds { queue: 2, bodies: ByteSize::kib(1) });
    let small = trial.seen(0, "hello");
    let kept: Vec<InFlight> = (0..5).filter_map(|_| trial.shadow.show(small.clone())).collect();
    assert_eq!((kept.len(), trial.shadow.figures().dropped), (2, 3));
    let waiting: Vec<Message> = trial.receiver.try_iter().collect();
    assert!(waiting.iter().all(|message| message.in_flight.strong_count() == 1));
    drop(kept);
    assert!(waiting.iter().all(|message| message.in_flight.strong_count() == 0));
    let large = trial.seen(0, &"x".repeat(700));
    assert!(trial.shadow.show(large.clone()).is_some());
    drop(waiting);
    assert!(trial.shadow.show(large.clone()).is_none(), "there is no room for two of them");
    drop(trial.receiver.try_recv().unwrap());
    assert!(trial.shadow.show(large).is_some(), "room is given back");
    assert_eq!(trial.shadow.figures().dropped, 4);
}

#[test]
fn it_begins_only_where_it_is_asked_for_and_ends_with_its_last_holder() {
    let plain =
        Config::parse("backends: [http://a]", "test", Path::new(""), &Environment::default());
    assert!(Shadow::start(&plain.unwrap().routing, NOW).unwrap().is_none());
    let Trial { shadow, worker, receiver, .. } = Trial::of(PREFIXES);
    drop(shadow);
    worker.run(&receiver);
}
