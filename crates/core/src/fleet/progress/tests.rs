//! Tests of the rule of frozen backends.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: f64) -> Timestamp {
    Timestamp(0).after(SECOND.mul_f64(seconds + 1.0))
}

fn wait(uncached_tokens: u64) -> ExpectedWait {
    ExpectedWait {
        uncached_tokens,
        generation: Some(Duration::ZERO),
        longest: Duration::ZERO,
        first_token: None,
    }
}

fn is_frozen(progress: &ResponseProgress, seconds: f64) -> bool {
    progress.judge(2, &HealthConfig::default(), at(seconds));
    progress.is_frozen()
}

#[test]
fn two_short_prompts_without_a_byte_for_ten_seconds_are_a_freeze() {
    let progress = ResponseProgress::default();
    progress.note_sent(wait(10), 0, at(0.0));
    assert!(!is_frozen(&progress, 30.0), "one request may be anything");
    let progress = ResponseProgress::default();
    progress.note_sent(wait(10), 0, at(0.0));
    progress.note_sent(wait(10), 0, at(1.0));
    assert!(!is_frozen(&progress, 9.9));
    assert!(is_frozen(&progress, 10.0));
    assert_eq!(progress.state(at(11.9)), BreakerState::Open);
    assert_eq!(progress.state(at(12.0)), BreakerState::HalfOpen);
    assert!(progress.try_take_probe(at(12.0)).is_some());
    progress.free_probe();
    assert_eq!(progress.state(at(15.9)), BreakerState::Open, "4 s after the last probe");
    assert!(progress.note(at(16.0)), "the first byte ends it");
    assert_eq!(progress.state(at(16.0)), BreakerState::Closed);
    assert!(!is_frozen(&progress, 40.0), "nothing was sent since");
}

#[test]
fn long_prompts_whole_responses_and_loads_take_their_time() {
    let progress = ResponseProgress::default();
    progress.note_sent(wait(500), 0, at(0.0));
    progress.note_sent(wait(10), 0, at(0.0));
    assert!(!is_frozen(&progress, 15.2), "510 tokens at 100 tokens/s take 5.1 s");
    assert!(is_frozen(&progress, 15.4), "a third of the silence");
    let progress = ResponseProgress::default();
    progress.learn_rate(1000, SECOND);
    progress.note_sent(wait(500), 0, at(0.0));
    progress.note_sent(wait(10), 0, at(0.0));
    assert!(is_frozen(&progress, 10.0), "at 1000 tokens/s");
    let progress = ResponseProgress::default();
    let whole = ExpectedWait { generation: Some(SECOND * 20), ..wait(10) };
    progress.note_sent(whole, 0, at(0.0));
    progress.note_sent(whole, 0, at(0.0));
    assert!(!is_frozen(&progress, 120.0), "whole responses that take 20 s");
    let progress = ResponseProgress::default();
    progress.begin_load();
    progress.note_sent(wait(10), 0, at(0.0));
    progress.note_sent(wait(10), 0, at(0.0));
    assert!(!is_frozen(&progress, 60.0), "the model is loaded");
    progress.end_load();
    assert!(is_frozen(&progress, 60.0));
}

#[test]
fn progress_and_the_engines_own_counter_are_life() {
    let progress = ResponseProgress::default();
    progress.note_sent(wait(10), 0, at(0.0));
    progress.note_sent(wait(10), 0, at(0.0));
    progress.note(at(4.0));
    assert!(!is_frozen(&progress, 30.0), "the requests before it got it, or may have");
    progress.note_sent(wait(10), 0, at(30.0));
    progress.note_sent(wait(10), 0, at(30.0));
    progress.note_work(7.0, at(35.0));
    assert!(!is_frozen(&progress, 40.0), "the counter moved");
    progress.note_work(7.0, at(44.0));
    assert!(is_frozen(&progress, 45.0), "it stands still");
}

#[test]
fn bytes_without_tokens_are_life_and_no_progress() {
    let progress = ResponseProgress::default();
    progress.note(at(0.0));
    progress.note_sent(wait(10), 0, at(1.0));
    progress.note_sent(wait(10), 0, at(1.0));
    progress.note_bytes(at(20.0));
    assert_eq!(progress.last(), at(0.0));
    assert!(!is_frozen(&progress, 60.0), "the requests before it got it, or may have");
    progress.note_sent(wait(10), 0, at(60.0));
    progress.note_sent(wait(10), 0, at(60.0));
    assert!(is_frozen(&progress, 70.0));
    assert!(progress.note_bytes(at(71.0)), "the next comment ends it");
}

#[test]
fn silent_streams_are_a_freeze_where_a_second_one_or_the_counter_confirms_it() {
    let progress = ResponseProgress::default();
    progress.note(at(0.0));
    progress.begin_stream();
    assert!(!is_frozen(&progress, 30.0), "one stream");
    progress.begin_stream();
    assert!(is_frozen(&progress, 30.0));
    progress.note(at(31.0));
    progress.end_stream();
    assert!(!is_frozen(&progress, 45.0));
    progress.note_work(5.0, at(32.0));
    progress.note_work(5.0, at(45.0));
    assert!(is_frozen(&progress, 45.0), "its counter of tokens stands still");
    assert!(
        !ResponseProgress::default().judge(2, &HealthConfig::default(), at(90.0)),
        "nothing is known"
    );
}

/// A stream of ten tokens whose first token usually takes 0.3 s.
fn usual() -> ExpectedWait {
    ExpectedWait { generation: Some(SECOND.mul_f64(0.3)), ..wait(10) }
}

#[test]
fn clients_that_leave_before_the_usual_first_byte_make_no_freeze() {
    for (waited, is_freeze) in [(0.1, false), (0.39, false), (0.41, true), (1.0, true)] {
        let progress = ResponseProgress::default();
        for second in 0..12 {
            let sent = f64::from(second);
            let request = progress.note_sent(usual(), 0, at(sent));
            assert_eq!(progress.note_left(&request, at(sent + waited)), !is_freeze, "{waited}");
        }
        assert_eq!(is_frozen(&progress, 12.0), is_freeze, "{waited}");
    }
    let progress = ResponseProgress::default();
    let unmeasured = |sent, waited| {
        let request = progress.note_sent(wait(10), 0, at(sent));
        progress.note_left(&request, at(sent + waited))
    };
    assert!(unmeasured(0.0, 1.0), "a second at least, and the prompt");
    assert!(!unmeasured(2.0, 1.2));
}

#[test]
fn request_that_waits_counts_among_those_whose_clients_leave() {
    let progress = ResponseProgress::default();
    let early = [0.0, 0.01].map(|sent| progress.note_sent(usual(), 0, at(sent)));
    let late = [0.02, 0.03].map(|sent| progress.note_sent(usual(), 0, at(sent)));
    early.iter().for_each(|request| assert!(progress.note_left(request, at(0.1))));
    assert!(!is_frozen(&progress, 20.0), "none is left");
    late.iter().for_each(|request| assert!(!progress.note_left(request, at(20.0))));
    assert!(is_frozen(&progress, 20.0));
    let progress = ResponseProgress::default();
    let first = progress.note_sent(usual(), 0, at(0.0));
    let _second = progress.note_sent(usual(), 0, at(1.0));
    assert!(!progress.note_left(&first, at(1.1)), "it waited long enough");
    assert!(is_frozen(&progress, 10.0));
}

#[test]
fn probe_without_enough_time_does_not_prolong_the_pause() {
    let progress = ResponseProgress::default();
    progress.note_sent(usual(), 0, at(0.0));
    progress.note_sent(usual(), 0, at(0.0));
    assert!(is_frozen(&progress, 10.0));
    for sent in [12.0, 16.0, 20.0] {
        assert_eq!(progress.state(at(sent)), BreakerState::HalfOpen, "{sent}");
        let pause = progress.try_take_probe(at(sent)).unwrap();
        progress.set_probe_pause(pause);
        progress.free_probe();
        assert_eq!(progress.state(at(sent + 3.9)), BreakerState::Open, "{sent}");
    }
}
