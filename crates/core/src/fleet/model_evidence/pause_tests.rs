//! Pauses and their probe slots, beside other pauses and longer than their evidence.

use std::time::Duration;

use super::*;

fn seconds(count: u64) -> Timestamp {
    Timestamp(count * 1_000_000)
}

fn sign(client: u64, at: Timestamp) -> Sign {
    Sign { backend: 0, is_fault: true, is_refusal: false, client, started: at, at }
}

#[test]
fn forgotten_pause_lends_its_slot_to_no_other() {
    let (evidence, config) = (ModelEvidence::default(), BreakerConfig::default());
    let learn = |sign: Sign| evidence.learn(&sign, "a", &config, &[0, 1]);
    (0..3).for_each(|_| drop(learn(sign(1, seconds(1)))));
    let later =
        seconds(1).after(config.window).after(config.max_open).after(Duration::from_secs(1));
    assert_eq!(evidence.state(1, 0, later), BreakerState::Closed, "forgotten");
    (0..6).for_each(|_| drop(learn(Sign { is_refusal: true, ..sign(1, later) })));
    let open = later.after(config.open);
    assert_eq!(evidence.state(1, 0, open), BreakerState::HalfOpen);
    assert!(evidence.try_take_probe(1, 0, open).is_some());
    assert_eq!(evidence.state(1, 0, open), BreakerState::Open, "that slot was the one to take");
    assert!(evidence.try_take_probe(1, 0, open).is_none());
}

#[test]
fn pause_lasts_and_ends_by_a_probe_although_its_evidence_is_old() {
    let config = BreakerConfig {
        window: Duration::from_secs(2),
        open: Duration::from_secs(6),
        max_open: Duration::from_secs(6),
        ..BreakerConfig::default()
    };
    let evidence = ModelEvidence::default();
    let learn = |sign: Sign| evidence.learn(&sign, "a", &config, &[0, 1]);
    for client in [1, 2, 3, 1, 2, 3] {
        learn(sign(client, seconds(1)));
    }
    for (at, state) in [(2, BreakerState::Open), (6, BreakerState::Open)] {
        assert_eq!(evidence.state_for_all(0, seconds(at)), state, "at {at} s");
    }
    // Another client's first fault removes the records that are over, and no others.
    learn(Sign { backend: 1, ..sign(9, seconds(6)) });
    assert_eq!(evidence.state(1, 0, seconds(6)), BreakerState::Open);
    assert_eq!(evidence.state_for_all(0, seconds(7)), BreakerState::HalfOpen);
    let good = Sign { is_fault: false, ..sign(4, seconds(7)) };
    assert!(learn(good).is_own_released);
    assert_eq!(evidence.state_for_all(0, seconds(7)), BreakerState::Closed);
}
