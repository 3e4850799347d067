//! Captures: observing a decision does not change it, and replay decides the same.

mod any_fleet;

use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_api::Capabilities;
use penstock_api::units::Timestamp;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use any_fleet::{One, fleet_of, hashes, one, routings};

use super::{Fleet, NOW, TestRequest, backend, plain_input};
use crate::fleet::{EngineSample, Probe, Requester};
use crate::prefix::Chain;
use crate::routing::{
    CandidateReport, Capture, CaptureError, CapturedAttempt, Live, NoRecord, RouteInput, Router,
    RoutingDecision, Scratch, Trace,
};

/// Returns the decision without and with a recorder, and its capture.
fn decide(
    fleet: &Fleet,
    ask: TestRequest<'_>,
    (seed, turn): (u64, u64),
) -> Option<(RoutingDecision, RoutingDecision, Capture)> {
    let snapshot = fleet.live.topology();
    let topology = &*snapshot;
    let profile = ask.profile();
    let chain = Chain::of(hashes(8), 16);
    let input = RouteInput {
        split: crate::routing::SplitPoint::default(),
        request: &profile,
        model: ask.model,
        tokens: fleet.router.tokens_to_fit(&profile),
        fleet: &snapshot,
        tried: &fleet.tried,
        may_probe: true,
        waited: None,
        now: NOW,
        prompt: Some(&chain),
        session: Some(crate::routing::RoutedSession { id: seed, home: None }),
        requester: Requester::default(),
        objectives: penstock_scoring::Objectives::default(),
        policy: crate::routing::PolicyScope::default(),
    };
    let model = &topology.models()[0];
    let mut scratch = Scratch::default();
    model.turn.store(turn, Ordering::Relaxed);
    let mut rng = SmallRng::seed_from_u64(seed);
    let live = fleet.router.route(
        &input,
        &mut Live { topology, rng: &mut rng },
        &mut scratch,
        &mut NoRecord,
    );
    let moved = model.turn.swap(turn, Ordering::Relaxed);
    let mut trace = Trace::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut random = Live { topology, rng: &mut rng };
    let traced = fleet.router.route(&input, &mut random, &mut scratch, &mut trace);
    assert_eq!(live, traced);
    assert_eq!(model.turn.load(Ordering::Relaxed), moved, "the turn moves on as it does without");
    let traced = traced.ok()?;
    let of = CapturedAttempt { request_id: "req-1", attempt: 2, seed };
    let capture = fleet.router.capture(of, &input, &traced, &trace);
    Some((live.ok()?, traced, capture))
}

/// Returns the capture as read back from a file, and the router that it describes.
fn read_back(capture: &Capture) -> (Capture, Router) {
    let text = serde_json::to_string(capture).unwrap();
    let back = Capture::read_all(text.as_bytes()).unwrap().remove(0);
    assert_eq!(&back, capture, "{text}");
    let router = Router::new(&back.routing().unwrap());
    (back, router)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn captures_do_not_change_decisions_and_replay_identically(
        routing in prop::sample::select(routings()),
        all in prop::collection::vec(one(), 1..7),
        (seed, turn) in (any::<u64>(), 0..1000_u64),
        (streaming, needs) in (any::<bool>(), any::<bool>()),
    ) {
        let fleet = fleet_of(&routing, &all);
        let snapshot = fleet.live.topology();
        let model = &snapshot.models()[0];
        for (row, one) in model.serving.iter().zip(&all) {
            let kept = crate::prefix::CacheState { capacity: 1000, block_tokens: 16, epoch: 0 };
            model.prefixes.record(row.slot, &hashes(one.knows.min(8)), kept);
        }
        let needs = if needs { Capabilities::TOOLS } else { Capabilities::NONE };
        for model in ["m", "ghost"] {
            let ask = TestRequest { needs, streaming, ..TestRequest::of(model) };
            let Some((live, traced, capture)) = decide(&fleet, ask, (seed, turn)) else { continue };
            prop_assert_eq!(live, traced);
            let (back, router) = read_back(&capture);
            let again = router.replay(&back, 0);
            prop_assert!(again.is_identical(&back), "{} {:?} {:?}", routing, again, back);
            prop_assert_eq!(all.len(), back.rows(), "every backend is in the capture");
            if live.probe != Probe::Cooldown {
                let left = again.candidates.iter().filter(|one| one.excluded.is_none());
                prop_assert_eq!(live.candidates as usize, left.count());
            }
        }
    }
}

fn plain(routing: &str) -> (Fleet, Capture) {
    let healthy = |in_flight| One {
        priority: 1,
        in_flight,
        limit: 100,
        latency_ms: 5,
        first_token_ms: 20,
        can: 0,
        health: 1,
        is_in_slow_start: false,
        sample: Some((0.3, 1.7, 0.123_456_79, 40, false)),
        knows: 0,
        cooldown_ms: 0,
        model: (3, 0, 9),
    };
    let fleet = fleet_of(routing, &[healthy(9), healthy(2), healthy(5)]);
    let (_, _, capture) = decide(&fleet, TestRequest::of("m"), (7, 3)).unwrap();
    (fleet, capture)
}

#[test]
fn changed_reading_changes_the_replay() {
    let (_, capture) = plain("strategy: weighted, scorers: \"load-balance:1\"");
    assert_eq!(capture.decision.backend, "b1");
    let text = serde_json::to_string(&capture).unwrap();
    let changed = text.replace("\"load\":3.0", "\"load\":30.0");
    assert_ne!(changed, text);
    let changed = Capture::read_all(changed.as_bytes()).unwrap().remove(0);
    let router = Router::new(&changed.routing().unwrap());
    let again = router.replay(&changed, 0);
    assert!(!again.is_identical(&changed) && !again.goes_there(&changed));
    assert_eq!(again.backend.as_deref(), Some("b2"));
}

#[test]
fn failing_telemetry_excludes_a_backend_in_decision_explanation_and_replay() {
    let (fleet, _) = plain("strategy: weighted, scorers: \"load-balance:1\"");
    let failing = fleet.state("b1");
    failing.telemetry.publish(EngineSample {
        waiting: Some(0.0),
        running: Some(0.0),
        kv_utilization: None,
        in_flight: 0,
        sent_at: NOW.before(Duration::from_secs(4)),
        interval: Duration::from_millis(500),
    });
    failing.telemetry.fail();
    let (_, decision, capture) = decide(&fleet, TestRequest::of("m"), (7, 3)).unwrap();
    assert_eq!((capture.decision.backend.as_str(), decision.candidates), ("b2", 2));
    assert_eq!(capture.rejected().count(), 0, "the strategy excludes it, not a filter");
    let snapshot = fleet.live.topology();
    let topology = &*snapshot;
    let profile = TestRequest::of("m").profile();
    let input = plain_input(&profile, &snapshot, &fleet.tried);
    let mut rng = SmallRng::seed_from_u64(7);
    let explained = fleet.router.explain(&input, &mut Live { topology, rng: &mut rng });
    let excluded: Vec<_> = explained.candidates.iter().map(|one| one.excluded.as_deref()).collect();
    assert_eq!(excluded, [None, Some("telemetry"), None]);
    let again = fleet.router.replay(&capture, 0);
    let excluded: Vec<_> = again.candidates.iter().map(|one| one.excluded.as_deref()).collect();
    assert_eq!(excluded, [None, Some("telemetry"), None]);
    let totals =
        |all: &[CandidateReport]| all.iter().filter_map(|one| one.total).collect::<Vec<_>>();
    assert_eq!(totals(&explained.candidates), totals(&again.candidates));
}

#[test]
fn replay_with_another_strategy_is_a_what_if() {
    let (_, capture) = plain("strategy: smart");
    assert_eq!(capture.decision.backend, "b1");
    let fleet = Fleet::of(&format!(
        "routing: {{ strategy: weighted, preset: always-busiest }}\n{}",
        super::alike(1, "m")
    ));
    let again = fleet.router.replay(&capture, 0);
    assert_eq!(again.backend.as_deref(), Some("b0"));
    let scores = again.candidates[1].scores.as_ref().unwrap();
    assert!(scores["busiest"] < 1.0, "{scores:?}");
    let round =
        Fleet::of(&format!("routing: {{ strategy: round_robin }}\n{}", super::alike(1, "m")));
    let turns = [0, 1, 2, 3].map(|turn| round.router.replay(&capture, turn).backend.unwrap());
    assert_eq!(turns, ["b0", "b1", "b2", "b0"], "without a captured turn the given one counts");
}

#[test]
fn capture_files_are_read_in_every_form_and_others_refused() {
    let (_, capture) = plain("strategy: weighted, preset: llm-d");
    let one = serde_json::to_string(&capture).unwrap();
    let pretty = serde_json::to_string_pretty(&capture).unwrap();
    let read = |text: &str| Capture::read_all(text.as_bytes());
    for (text, count) in [
        (one.clone(), 1),
        (pretty, 1),
        (format!("{one}\n{one}\n\n{one}"), 3),
        (format!("{one},\n{one},\n"), 2),
        (format!("{{\"captured\": 2, \"decisions\": [{one}, {one}]}}"), 2),
    ] {
        assert_eq!(read(&text).unwrap(), vec![capture.clone(); count]);
    }
    for (text, reason) in [
        ("", "holds no decision"),
        ("{\"decisions\": []}", "holds no decision"),
        ("{\"decisions\": [{\"number\": 1}]}", "was not captured, only listed"),
        ("{\"backends\": []}", "was not captured"),
        ("not JSON", "not JSON"),
        ("[1, 2]", "not JSON"),
        (&one.replace("\"version\":2", "\"version\":1"), "version 1"),
        (&one.replacen("\"load\"", "\"lode\"", 1), "unknown reading 'lode'"),
        (&one.replace("\"turn\"", "\"tern\"").replace("\"seed\"", "\"sead\""), "sead"),
        (&one[..one.len() / 2], "not JSON"),
        (&format!("{one},\n{one},\n{{,"), "line 3 column 2"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    for (from, to, reason) in [
        ("\"weighted\"", "\"best\"", "no strategy 'best'"),
        ("queue-depth", "queue-width", "queue-width"),
        ("max-score", "min-score", "min-score"),
        ("\"weight\":3.0", "\"weight\":-3.0", "above 0"),
    ] {
        let text = one.replacen(from, to, 1);
        assert_ne!(text, one, "{from}");
        let error: CaptureError = read(&text).unwrap()[0].routing().unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn lease_expires() {
    let lease = crate::routing::Lease::default();
    assert!(!lease.lasts(|| panic!("the clock is not read")));
    lease.extend(Timestamp(10));
    assert!(lease.lasts(|| Timestamp(9)) && !lease.lasts(|| Timestamp(10)));
    lease.end();
    assert!(!lease.lasts(|| Timestamp(1)));
}
