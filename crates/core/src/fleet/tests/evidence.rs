//! Tests of the evidence against a model on a backend.

use super::super::BreakerState;
use super::*;

#[test]
fn evidence_survives_a_new_topology() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: [m]}, {name: y, url: \"http://b\", models: [m]}, \
         {name: z, url: \"http://c\"}]",
    );
    let before = fleet.topology();
    let from = source(Timestamp(1), Requester { client: 7, ..Requester::default() });
    let row = &model(&before, "m").serving[0];
    for _ in 0..3 {
        let health = &before.backends[0].config.health;
        row.learn_attempt(Outcome::Fault, from, LatencySample::None, health);
    }
    fleet.learn_models(id_of(&fleet, "z"), &[entry("m")]);
    let after = fleet.topology();
    let state = model(&after, "m").serving[0].evidence_against(from.requester, Timestamp(2));
    assert_eq!(state, BreakerState::Open);
}

#[test]
fn stalled_stream_is_evidence_and_another_cancel_is_none() {
    let backends =
        ["x", "y"].map(|name| format!("{{name: {name}, url: 'http://{name}', models: [m]}}"));
    let fleet = fleet_of(&format!("backends: [{}]", backends.join(", "))).topology();
    let (row, health) = (&model(&fleet, "m").serving[0], &fleet.backends[0].config.health);
    let from = source(Timestamp(1), Requester { client: 7, ..Requester::default() });
    let expected = [BreakerState::Closed, BreakerState::Open];
    for (sample, state) in [LatencySample::None, LatencySample::Stalled].into_iter().zip(expected) {
        (0..3).for_each(|_| drop(row.learn_attempt(Outcome::Cancel, from, sample, health)));
        assert_eq!(row.evidence_against(from.requester, Timestamp(2)), state, "{sample:?}");
    }
    assert!(row.state.breaker.is_closed());
}

#[test]
fn probe_of_a_paused_backend_ends_once_tokens_flow() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: [m]}, {name: y, url: \"http://b\", models: [m]}]",
    );
    let fleet = fleet.topology();
    let (row, health) = (&model(&fleet, "m").serving[0], &fleet.backends[0].config.health);
    let from = source(Timestamp(1), Requester { client: 7, ..Requester::default() });
    (0..3).for_each(|_| drop(row.learn_attempt(Outcome::Fault, from, LatencySample::None, health)));
    let now = Timestamp(9_000_000);
    let probe = Probe::Evidence;
    let request = PermitRequest { probe, client: 7, now, ..PermitRequest::default() };
    let mut held = row.try_reserve(&request).unwrap();
    held.first_token();
    for (millis, is_free) in [(0, false), (700, false), (800, true)] {
        held.note_tokens(1, now.after(Duration::from_millis(millis)));
        assert_eq!(row.try_reserve(&request).is_some(), is_free, "{millis} ms");
    }
}

#[test]
fn empty_responses_are_judged_like_refusals_and_teach_no_latency() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: [m]}, {name: y, url: \"http://b\", models: [m]}]",
    );
    let fleet = fleet.topology();
    let row = &model(&fleet, "m").serving[0];
    let from = source(Timestamp(1), Requester { client: 7, ..Requester::default() });
    let health = &fleet.backends[0].config.health;
    for state in [BreakerState::Closed; 5].into_iter().chain([BreakerState::Open]) {
        row.learn_attempt(Outcome::Empty, from, LatencySample::Whole, health);
        assert_eq!(row.evidence_against(from.requester, Timestamp(2)), state);
    }
    assert_eq!(row.latency.response(), None);
}

#[test]
fn fallback_takes_the_place_of_a_model_with_one_backend() {
    let can_do_without_x = |others: &str, fallbacks: &str| {
        let fleet = fleet_of(&format!(
            "routing: {{ fallbacks: {{{fallbacks}}} }}\nbackends: [{{name: x, url: \"http://a\", models: [m, n]}}, {others}]"
        ));
        let topology = fleet.topology();
        topology.can_do_without(&topology.backend("x").unwrap().state)
    };
    let y = "{name: y, url: \"http://b\", models: [o]}";
    let same = "{name: y, url: \"http://b\", models: [m, n]}";
    let half = "{name: y, url: \"http://b\", models: [m]}";
    assert!(can_do_without_x(same, ""));
    assert!(!can_do_without_x(half, ""), "n is on x alone");
    assert!(!can_do_without_x(y, ""));
    assert!(!can_do_without_x(y, "m: [o]"));
    assert!(can_do_without_x(y, "m: [gone, o], n: [O]"), "a name may be spelled otherwise");
    assert!(!can_do_without_x(y, "m: [n], n: [m]"), "the fallbacks are on x, too");
    assert!(can_do_without_x(y, "M: [o], \"n:latest\": [o]"), "and so may the model");
}
