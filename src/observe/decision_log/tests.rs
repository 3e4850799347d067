//! The content of the ring buffer, and the cost of a write.

use std::path::Path;
use std::time::Duration;

use http::HeaderMap;
use penstock_config::{Config, Environment};
use penstock_core::fleet::{BackendSet, Health, Requester, Topology};
use penstock_core::routing::{Generation, NoRecord, Peek, RouteInput, RoutingDecision, Scratch};
use penstock_scan::{RequestProfile, ScanOptions, scan};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;

const BODY: &str = r#"{"model":"gpt","stream":true,"messages":[{"role":"user","content":
    [{"type":"image_url","image_url":{"url":"data:,"}}]}]}"#;

struct Story {
    generation: Generation,
    headers: HeaderMap,
    fleet: std::sync::Arc<Topology>,
    profile: RequestProfile,
    decision: RoutingDecision,
}

impl Story {
    fn new() -> Self {
        let yaml = "routing: { aliases: { gpt: m } }\n\
                    backends: [{ name: eye, url: 'http://127.0.0.1:1', models: [{ id: m }] }]\n";
        let config = Config::parse(yaml, "test.yaml", Path::new("."), &Environment::default());
        let generation = Generation::new(config.unwrap());
        let fleet = generation.fleet.topology();
        fleet.backends[0].state.health.set(Health::Healthy);
        let profile = scan(Operation::Chat, None, BODY.as_bytes(), ScanOptions::default()).unwrap();
        let input = RouteInput {
            split: penstock_core::routing::SplitPoint::default(),
            request: &profile,
            model: "gpt",
            tokens: profile.prompt_tokens,
            fleet: &fleet,
            tried: &BackendSet::default(),
            may_probe: true,
            waited: None,
            now: Timestamp(0),
            prompt: None,
            session: None,
            requester: Requester::default(),
            objectives: penstock_scoring::Objectives::default(),
            policy: penstock_core::routing::PolicyScope::default(),
        };
        let mut random = Peek { topology: &fleet, rng: SmallRng::seed_from_u64(1) };
        let mut scratch = Scratch::default();
        let decision =
            generation.router.route(&input, &mut random, &mut scratch, &mut NoRecord).unwrap();
        Self { generation, headers: HeaderMap::new(), fleet, profile, decision }
    }

    fn routed<'a>(&'a self, request_id: &'a str, requested_model: &'a str) -> Routed<'a> {
        Routed {
            at: Timestamp(1_000_000),
            request_id,
            request: &self.profile,
            headers: &self.headers,
            key: None,
            body: None,
            requested_model,
            decision: &self.decision,
            generation: &self.generation,
            fleet: &self.fleet,
            prompt: None,
            trace: None,
            attempt: 1,
            dropped_messages: None,
            ensemble: None,
            scorer_names: ScorerNames::default(),
            captured: None,
        }
    }
}

#[test]
fn report_contains_the_inputs_of_a_decision() {
    let story = Story::new();
    let log = DecisionLog::default();
    log.routed(&story.routed("req-1", "gpt"));
    let shown = log.latest(10, Timestamp(1_000_000).after(Duration::from_secs(2)));
    let shown = serde_json::to_value(&shown).unwrap();
    let expected = serde_json::json!([{
        "number": 0,
        "seconds_ago": 2.0,
        "request_id": "req-1",
        "operation": "chat",
        "requirements": {
            "model": "gpt",
            "estimated_tokens": story.profile.estimated_tokens.0,
            "prompt_tokens": story.profile.prompt_tokens.0,
            "needs_vision": true,
            "needs_tools": false,
            "needs_json_mode": false,
            "prefers_streaming": true,
        },
        "model": "m",
        "backend": "eye",
        "strategy": "smart",
        "fallback": false,
        "assumed": true,
        "candidates": 1,
        "attempt": 1,
    }]);
    assert_eq!(shown, expected);
}

#[test]
fn newest_first_and_oldest_evicted() {
    let story = Story::new();
    let log = DecisionLog::default();
    for number in 0..DECISIONS_KEPT + 10 {
        log.routed(&story.routed(&number.to_string(), "gpt"));
    }
    let all = log.latest(usize::MAX, Timestamp(0));
    assert_eq!(all.len(), DECISIONS_KEPT);
    let ids: Vec<usize> = all.iter().map(|one| one.request_id.parse().unwrap()).collect();
    assert!(ids.iter().rev().copied().eq(10..DECISIONS_KEPT + 10), "{ids:?}");
    assert_eq!(log.latest(3, Timestamp(0)).len(), 3);
    assert_eq!(log.total(), DECISIONS_KEPT as u64 + 10);
}

#[test]
fn long_names_are_truncated_between_characters() {
    let story = Story::new();
    let log = DecisionLog::default();
    let requested_model = format!("{}\u{e4}\u{1}", "a".repeat(127));
    log.routed(&story.routed(&"\u{1f600}".repeat(40), &requested_model));
    let shown = log.latest(1, Timestamp(0)).remove(0);
    assert_eq!(shown.requirements.model, "a".repeat(127), "half a character is none");
    assert_eq!(shown.request_id, "\u{1f600}".repeat(16));
}

#[test]
fn write_does_not_allocate_or_wait() {
    let story = Story::new();
    let log = DecisionLog::default();
    let held = log.slots[0].lock();
    let event = story.routed("req", "gpt");
    let counted = allocation_counter::measure(|| log.routed(&event));
    drop(held);
    assert_eq!(counted.count_total, 0);
    assert!(log.latest(1, Timestamp(0)).is_empty(), "its slot was being read");
    log.routed(&event);
    assert_eq!(log.latest(9, Timestamp(0)).len(), 1);
}
