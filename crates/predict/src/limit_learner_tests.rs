//! Waits and reports that show the limits of an engine, and those that do not.

use super::*;

/// A wait beside 31 streams that ends at `now_us`.
fn wait(sent_at_us: f64, now_us: f64) -> Wait {
    let (regime, raw_ttft_us, step_us) = (Regime::Prefill, 50_000.0, 10_000.0);
    Wait {
        regime,
        raw_ttft_us,
        sent_at_us,
        first_token_at_us: now_us,
        step_us,
        stream_count_before: 30.0,
        stream_count: 31.0,
        context_tokens: now_us,
    }
}

fn learn(limits: &mut LimitLearner, wait: Wait) -> bool {
    limits.learn(&wait, false)
}

#[test]
fn three_overloads_show_the_slots_and_more_streams_disprove_them() {
    let mut limits = LimitLearner::default();
    assert!(!learn(&mut limits, wait(0.0, 9e5)) && !learn(&mut limits, wait(1e6, 2e6)));
    assert!(!learn(&mut limits, wait(2.5e6, 2.56e6)), "not in a row");
    assert!(!learn(&mut limits, wait(3e6, 4e6)) && !learn(&mut limits, wait(4e6, 5e6)));
    assert!(!learn(&mut limits, wait(4.5e6, 5.5e6)), "the same overload");
    assert!(learn(&mut limits, wait(5e6, 6e6)));
    assert_eq!((limits.slots(), limits.kv_tokens()), (32.0, f64::INFINITY));
    assert!(!limits.observe_streams(32.0) && limits.observe_streams(33.0));
    assert_eq!(limits.slots(), 33.0);
    assert!(limits.observe_streams(40.0));
    assert_eq!(limits.slots(), f64::INFINITY);
}

#[test]
fn limit_is_the_steadier_of_slots_and_kv_tokens() {
    let mut limits = LimitLearner::default();
    let shown = [(1e6, 29.0, 39_000.0), (3e6, 31.0, 40_000.0), (5e6, 28.0, 39_500.0)];
    for (at, stream_count, context_tokens) in shown {
        let wait = Wait {
            stream_count_before: stream_count,
            stream_count,
            context_tokens,
            ..wait(at, at + 1e6)
        };
        let is_news = learn(&mut limits, wait);
        assert_eq!(is_news, at == 5e6);
        let at_once = Wait { context_tokens: 38_000.0, ..self::wait(at + 1.1e6, at + 1.11e6) };
        assert!(!learn(&mut limits, at_once), "a cache with room");
    }
    assert_eq!((limits.slots(), limits.kv_tokens()), (f64::INFINITY, 39_500.0));
    let start = |context_tokens| Wait { context_tokens, ..wait(7e6, 7.01e6) };
    assert!(!learn(&mut limits, start(39_000.0)) && learn(&mut limits, start(41_000.0)));
    assert_eq!(limits.kv_tokens(), 41_000.0, "a little more");
    let late = Wait { context_tokens: 60_000.0, ..wait(7e6, 8e6) };
    assert!(!learn(&mut limits, late), "it has waited: there was no room for so much");
    assert!(learn(&mut limits, start(60_000.0)) && limits.kv_tokens().is_infinite());
    let mut reported = LimitLearner::default();
    for (at, stream_count, context_tokens) in shown {
        let wait = Wait {
            stream_count_before: stream_count,
            stream_count,
            context_tokens,
            ..wait(at, at + 1e6)
        };
        reported.learn(&wait, true);
    }
    assert_eq!((reported.slots(), reported.kv_tokens()), (32.0, f64::INFINITY));
}

#[test]
fn short_waits_show_nothing() {
    let mut limits = LimitLearner::default();
    for n in 0..10 {
        let (at, raw_ttft_us, step_us) = (f64::from(n) * 1e6, 300.0, 10.0);
        assert!(!learn(&mut limits, Wait { raw_ttft_us, step_us, ..wait(at, at + 20_000.0) }));
    }
}

#[test]
fn limit_without_evidence_expires() {
    let mut limits = LimitLearner::default();
    (0..3_u32).for_each(|n| {
        learn(&mut limits, wait(f64::from(n) * 1e6, f64::from(n) * 1e6 + 9e5));
    });
    assert!(!limits.expire(500e6) && limits.slots() == 32.0);
    assert!(limits.expire(700e6) && limits.slots() == f64::INFINITY);
    let mut restored = LimitLearner::default();
    restored.restore(Some(8.0), None);
    assert!(!restored.expire(1e6) && restored.expire(650e6), "a new process starts at 0");
    limits.restore(Some(8.0), None);
    assert!(!limits.expire(5000e6) && !limits.expire(5500e6) && limits.slots() == 8.0);
    assert!(limits.expire(5700e6));
}

#[test]
fn engine_that_reports_waiting_requests_twice_shows_its_slots() {
    let mut limits = LimitLearner::default();
    let mut report = |running, has_overdue, at| {
        let is_news = limits.learn_reported(running, true, has_overdue, at);
        (is_news, limits.slots())
    };
    let unknown = (false, f64::INFINITY);
    assert_eq!((report(16.0, true, 1e6), report(14.0, true, 2e6)), (unknown, unknown));
    assert_eq!(report(16.0, false, 3e6), unknown, "a long prompt may be the reason");
    assert_eq!(report(16.0, false, 4e6), unknown);
    assert!(!limits.learn_reported(16.0, false, true, 5e6), "none waits");
    assert!(!limits.learn_reported(16.0, true, true, 6e6));
    assert!(limits.learn_reported(16.0, true, true, 7e6) && limits.slots() == 16.0);
    assert!(!limits.learn_reported(16.0, true, false, 500e6), "no news");
    assert!(!limits.expire(900e6) && limits.slots() == 16.0, "but a confirmation");
}

#[test]
fn largest_number_that_is_reported_three_times_is_the_batch() {
    let mut limits = LimitLearner::default();
    let mut report = |running: u32, at| {
        let is_news = limits.learn_reported(running.into(), true, true, at);
        (is_news, limits.slots())
    };
    for (running, at) in [(9, 1e6), (12, 2e6), (9, 3e6), (16, 4e6), (12, 5e6), (16, 6e6)] {
        assert_eq!(report(running, at), (false, f64::INFINITY));
    }
    report(12, 7e6);
    assert_eq!(report(16, 8e6), (true, 16.0));
}

/// Beside long prompts requests wait for the cache, and few run.
#[test]
fn engine_that_has_run_more_a_short_while_ago_shows_no_slots() {
    let mut limits = LimitLearner::default();
    let mut report = |running: u32, is_queued, at| {
        limits.learn_reported(running.into(), is_queued, true, at);
        limits.slots()
    };
    report(37, false, 1e6);
    for second in 2..20 {
        assert_eq!(report(14, true, f64::from(second) * 1e6), f64::INFINITY);
    }
    report(14, true, 700e6);
    assert_eq!(report(14, true, 701e6), 14.0, "that was long ago");
}

#[test]
fn waits_for_a_slot_confirm_the_slots() {
    let mut limits = LimitLearner::default();
    limits.restore(Some(32.0), None);
    let slot = |at| Wait { regime: Regime::Slot, ..wait(at, at + 1e6) };
    for n in 1..4 {
        assert!(!learn(&mut limits, slot(f64::from(n) * 500e6)));
        assert!(!limits.expire(f64::from(n) * 500e6 + 400e6));
    }
    assert!(!learn(&mut limits, Wait { stream_count: 20.0, ..slot(2000e6) }), "there was room");
    assert!(limits.expire(2200e6));
}

#[test]
fn waits_while_the_batch_grows_show_nothing() {
    let mut limits = LimitLearner::default();
    for n in 0..10 {
        let at = f64::from(n) * 1e6;
        assert!(!learn(&mut limits, Wait { stream_count_before: 20.0, ..wait(at, at + 9e5) }));
    }
}

#[test]
fn lent_slots_hold_until_the_engine_shows_its_own_or_more() {
    let mut limits = LimitLearner::default();
    assert!(limits.lend(16.0, 3.0) && !limits.lend(16.0, 3.0));
    assert_eq!((limits.slots(), limits.shown_slots()), (16.0, f64::INFINITY));
    assert!(!limits.observe_streams(17.0), "an end that comes late");
    assert!(limits.observe_streams(18.0));
    assert!(!limits.lend(16.0, 3.0), "it has more");
    assert!(limits.lend(32.0, 3.0));
    assert!(!limits.learn_reported(32.0, true, false, 1e6));
    limits.learn_reported(32.0, true, false, 2e6);
    assert_eq!(limits.shown_slots(), 32.0);
    assert!(!limits.lend(f64::INFINITY, 3.0) && limits.slots() == 32.0);
}

/// A limit that keeps requests away would otherwise never be disproved; the caller keeps two of the
/// 16 slots free.
#[test]
fn lent_slots_end_when_a_nearly_full_engine_shows_no_limit() {
    let mut limits = LimitLearner::default();
    limits.lend(16.0, 14.0);
    let kept = (0..30).take_while(|_| !limits.lend(16.0, 14.0)).count();
    assert_eq!((kept, limits.slots()), (20, f64::INFINITY));
    assert!(!limits.lend(16.0, 14.0), "it is not believed again");
}
