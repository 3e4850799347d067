//! Tests of cooldowns.

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);
const LATER: Timestamp = Timestamp(5_000_000);

fn scope(model: u64, credential: u64) -> CooldownScope {
    CooldownScope { model, credential }
}

#[test]
fn cooldown_covers_its_model_and_credential_only() {
    let cooldowns = Cooldowns::default();
    cooldowns.start(scope(1, 7), LATER, CooldownCause::of_status(429), NOW);
    let covers = |model, credential| {
        let found = cooldowns.covering(scope(model, credential), NOW);
        found.map(|one| (one.ends_at(), one.status()))
    };
    assert_eq!(covers(1, 7), Some((LATER, 429)));
    assert_eq!((covers(2, 7), covers(1, 8)), (None, None), "another model, another key");
    assert_eq!(cooldowns.covering(scope(1, 7), LATER).map(|one| one.ends_at()), None);
}

#[test]
fn two_models_in_cooldown_pause_the_backend_for_that_credential() {
    let cooldowns = Cooldowns::default();
    cooldowns.start(scope(1, 7), LATER, CooldownCause::of_status(429), NOW);
    cooldowns.start(scope(2, 8), LATER, CooldownCause::of_status(429), NOW);
    assert!(cooldowns.covering(scope(3, 7), NOW).is_none(), "two clients, one model each");
    cooldowns.start(scope(2, 7), LATER, CooldownCause::of_status(503), NOW);
    assert!(cooldowns.covering(scope(3, 7), NOW).is_some());
    assert!(cooldowns.covering(scope(3, 8), NOW).is_none());
    cooldowns.clear(scope(3, 7));
    assert!(cooldowns.covering(scope(3, 7), NOW).is_none(), "a response ends what covered it");
    assert!(cooldowns.covering(scope(2, 7), NOW).is_some(), "and nothing else");
    cooldowns.clear(scope(1, 7));
    cooldowns.clear(scope(2, 7));
    cooldowns.clear(scope(2, 8));
    assert!(!cooldowns.is_active(NOW));
}

#[test]
fn refused_probe_moves_the_end_if_it_differs_by_more_than_a_second() {
    let cooldowns = Cooldowns::default();
    let refuse = |at: u64, wait: u64| {
        let (now, until) = (Timestamp(at * 1000), Timestamp((at + wait) * 1000));
        cooldowns.start(scope(1, 0), until, CooldownCause::of_status(429), now);
        cooldowns.covering(scope(1, 0), now).map(|one| one.ends_at().0 / 1000)
    };
    assert_eq!(refuse(1000, 10_000), Some(11_000));
    assert_eq!(refuse(1500, 10_000), Some(11_000), "9.5 s, in whole seconds");
    assert_eq!(refuse(3000, 10_000), Some(13_000));
    assert_eq!(refuse(4000, 3000), Some(7000));
    assert_eq!(refuse(6900, 1000), Some(7900), "the default");
}

#[test]
fn client_with_many_credentials_pushes_out_only_its_own_cooldowns() {
    let cooldowns = Cooldowns::default();
    let of = |client| CooldownCause { status: 429, client };
    for other in 1..=8 {
        cooldowns.start(scope(1, other), LATER, of(other), NOW);
    }
    for credential in 1000..1200 {
        cooldowns.start(scope(1, credential), Timestamp(LATER.0 + 1), of(99), NOW);
    }
    assert_eq!(cooldowns.count_of_credentials(NOW), MAX_COOLDOWNS);
    let others = (1..=8).filter(|other| cooldowns.covering(scope(1, *other), NOW).is_some());
    assert_eq!(others.count(), 8, "theirs end first, and stay");
    cooldowns.start(scope(1, 9), LATER, of(9), NOW);
    assert!(cooldowns.covering(scope(1, 9), NOW).is_some(), "a newcomer gets room");
    assert_eq!(cooldowns.count_of_credentials(NOW), MAX_COOLDOWNS);
}

#[test]
fn pauses_double_up_to_ten_minutes_and_are_short_after_a_rest() {
    let cooldowns = Cooldowns::default();
    let mut now = NOW;
    for seconds in [60, 120, 240, 480, 600, 600] {
        cooldowns.pause(scope(1, 0), CooldownCause::of_status(404), now, now);
        let found = cooldowns.covering(scope(1, 7), now).unwrap();
        assert_eq!(found.ends_at().since(now), Duration::from_secs(seconds));
        assert!(cooldowns.covering(scope(2, 7), now).is_none(), "other models go on");
        let soon = now.after(Duration::from_secs(1));
        let sent = now.before(Duration::from_secs(1));
        cooldowns.pause(scope(1, 0), CooldownCause::of_status(404), sent, soon);
        assert_eq!(found.ends_at().since(now), Duration::from_secs(seconds), "was in flight");
        now = found.ends_at();
    }
    let later = now.after(Duration::from_secs(601));
    cooldowns.pause(scope(1, 0), CooldownCause::of_status(404), later, later);
    let found = cooldowns.covering(scope(1, 0), later).unwrap();
    assert_eq!(found.ends_at().since(later), Duration::from_secs(60));
}

#[test]
fn number_of_cooldowns_is_bounded() {
    let cooldowns = Cooldowns::default();
    for credential in 1..=100 {
        let until = Timestamp(LATER.0 + credential);
        cooldowns.start(scope(1, credential), until, CooldownCause::of_status(429), NOW);
    }
    assert_eq!(cooldowns.count_of_credentials(NOW), MAX_COOLDOWNS);
    assert!(cooldowns.covering(scope(1, 1), NOW).is_none(), "the first to end made room");
    assert!(cooldowns.covering(scope(1, 100), NOW).is_some());
}
