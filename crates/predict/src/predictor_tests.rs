//! The predictor as decisions and attempts share it.

use super::*;

const SENT: RequestShape = RequestShape {
    prompt_tokens: 500.0,
    cached_tokens: 100.0,
    max_output_tokens: f64::INFINITY,
    is_whole: false,
};

fn send(predictor: &Arc<Predictor>, now_us: f64) -> PredictionTicket {
    let estimate = predictor.estimate(&SENT, now_us);
    predictor.send(SENT, estimate.prediction, None, now_us)
}

/// Streams of 100 tokens, one after the other, on an engine with 40 ms to the first token and 5 ms
/// per step.
fn serve_alone(predictor: &Arc<Predictor>, requests: u32) {
    serve_streams(predictor, requests, [40_000.0, 5_000.0], 100);
}

/// Streams, one after the other, on an engine with these microseconds to the first token and per
/// step.
fn serve_streams(predictor: &Arc<Predictor>, requests: u32, [first, step]: [f64; 2], tokens: u32) {
    for request in 0..requests {
        let start = f64::from(request) * 1e7;
        let mut ticket = send(predictor, start);
        let mut now_us = start + first;
        for _ in 0..tokens {
            ticket.tokens(1, now_us);
            now_us += step;
        }
        ticket.complete(None, now_us);
    }
}

#[test]
fn decisions_read_what_was_learned() {
    let predictor = Arc::new(Predictor::default());
    let idle = predictor.estimate(&SENT, 1e6).prediction;
    let first = send(&predictor, 1e6);
    let behind = predictor.estimate(&SENT, 1e6).prediction;
    let step = predictor.report(1e6).coefficients.base_us;
    assert!((behind.backlog_us - idle.work_us - step).abs() < 1e-6, "{behind:?}");
    drop(first);
    assert_eq!(predictor.estimate(&SENT, 1e6).prediction.backlog_us, 0.0);
}

#[test]
fn first_event_may_have_several_tokens() {
    let predictor = Arc::new(Predictor::default());
    serve_alone(&predictor, 30);
    let length = || predictor.estimate(&SENT, 1e9).prediction.output_tokens;
    let before = length();
    for _ in 0..40 {
        let mut ticket = send(&predictor, 1e9);
        ticket.tokens(32, 1e9 + 40_000.0);
        ticket.tokens(1, 1e9 + 45_000.0);
        ticket.complete(None, 1e9 + 50_000.0);
    }
    assert!(before > 90.0 && (33.0..80.0).contains(&length()), "{before} {}", length());
}

#[test]
fn silence_before_a_client_leaves_is_no_time_per_token() {
    let leave = |rest_us: f64| {
        let predictor = Arc::new(Predictor::default());
        serve_alone(&predictor, 30);
        for number in 0..40 {
            let start = 1e9 + f64::from(number) * 1e8;
            let mut ticket = send(&predictor, start);
            for token in 0..40 {
                ticket.tokens(1, start + 40_000.0 + f64::from(token) * 5_000.0);
            }
            ticket.cut(start + 240_000.0 + rest_us);
        }
        predictor.estimate(&SENT, 1e10).prediction.tpot_p90_us
    };
    assert_eq!(leave(0.0), leave(3e7));
}

#[test]
fn cached_tokens_cost_no_prefill() {
    let predictor = Arc::new(Predictor::default());
    let work = |cached| {
        let sent = RequestShape { cached_tokens: cached, ..SENT };
        predictor.estimate(&sent, 1e6).prediction.work_us
    };
    let token = predictor.report(1e6).coefficients.token_us;
    let saved = work(0.0) - work(400.0);
    assert!(saved >= 400.0 * token, "{saved} of {}", work(0.0));
    assert!(work(500.0) < 0.1 * work(0.0), "a prompt that is cached whole costs hardly anything");
}

#[test]
fn tickets_leave_nothing_however_they_end() {
    let predictor = Arc::new(Predictor::default());
    let mut tickets: Vec<PredictionTicket> =
        (0..300).map(|n| send(&predictor, f64::from(n) * 1e4)).collect();
    for (n, ticket) in (0_u32..).zip(&mut tickets) {
        let mut now_us = 3e6 + f64::from(n) * 1e4;
        for token in 0..n % 40 {
            ticket.tokens(1 + token % 2, now_us);
            now_us += 2e4;
        }
        if n % 3 == 0 {
            ticket.complete(Some(n % 40), now_us);
        }
    }
    drop(tickets);
    let report = predictor.report(1e9);
    assert_eq!((report.waiting_count, report.stream_count, report.backlog_us), (0.0, 0.0, 0.0));
}

#[test]
fn gaps_of_a_single_stream_are_learned() {
    let predictor = Arc::new(Predictor::default());
    serve_alone(&predictor, 20);
    let report = predictor.report(1e9);
    let step = report.coefficients.step_us(1.0, 550.0);
    assert!((step / 5_000.0 - 1.0).abs() < 0.05, "{report:?}");
    let found = predictor.estimate(&SENT, 1e9).prediction;
    assert!((found.ttft_us / 40_000.0 - 1.0).abs() < 0.1, "{found:?}");
    assert!(report.is_trusted, "{report:?}");
}

#[test]
fn tightest_objective_of_running_streams_is_seen() {
    let predictor = Arc::new(Predictor::default());
    let prediction = predictor.estimate(&SENT, 0.0).prediction;
    let mut slow = predictor.send(SENT, prediction, Some(80_000.0), 0.0);
    let mut fast = predictor.send(SENT, prediction, Some(50_000.0), 0.0);
    assert_eq!(predictor.estimate(&SENT, 0.0).tightest_tpot_us, f64::INFINITY, "none runs yet");
    slow.tokens(1, 1e5);
    fast.tokens(1, 1e5);
    assert_eq!(predictor.estimate(&SENT, 1e5).tightest_tpot_us, 50_000.0);
    drop(fast);
    assert_eq!(predictor.estimate(&SENT, 1e5).tightest_tpot_us, 80_000.0);
    drop(slow);
    assert_eq!(predictor.estimate(&SENT, 1e5).tightest_tpot_us, f64::INFINITY);
}

#[test]
fn objective_that_is_missed_even_alone_keeps_none_away() {
    let predictor = Arc::new(Predictor::default());
    let prediction = predictor.estimate(&SENT, 0.0).prediction;
    let mut stream = predictor.send(SENT, prediction, Some(100.0), 0.0);
    stream.tokens(1, 1e5);
    assert_eq!(predictor.estimate(&SENT, 1e5).tightest_tpot_us, f64::INFINITY);
}

#[test]
fn request_is_sent_once_the_prompts_before_it_are_short() {
    let predictor = Arc::new(Predictor::default());
    serve_alone(&predictor, 60);
    assert!(predictor.is_trusted());
    let now_us = 1e12;
    let long = RequestShape { prompt_tokens: 50_000.0, ..SENT };
    let _ticket = predictor.send(long, predictor.estimate(&long, now_us).prediction, None, now_us);
    let admitted = |max| predictor.admitted_ttft(&SENT, max, now_us).mean_us;
    let (all, some) = (admitted(f64::INFINITY), admitted(100_000.0));
    let backlog_us = predictor.estimate(&SENT, now_us).prediction.backlog_us;
    assert!(backlog_us > 200_000.0 && all > backlog_us * 0.8, "{backlog_us} {all}");
    assert!((all - some) / (backlog_us - 100_000.0) > 0.8, "{all} {some} {backlog_us}");
}

#[test]
fn long_prompt_waits_for_room_in_the_kv_cache() {
    let predictor = Arc::new(Predictor::default());
    let prediction = predictor.estimate(&SENT, 0.0).prediction;
    let send = || predictor.send(SENT, prediction, None, 0.0);
    let mut streams: Vec<PredictionTicket> = (0..20).map(|_| send()).collect();
    streams.iter_mut().for_each(|stream| stream.tokens(1, 1e5));
    let kv = 25.0 * (SENT.prompt_tokens + 1.0);
    predictor.refresh(ReportedLimits { kv_tokens: kv, ..ReportedLimits::default() }, 1e5);
    let wait = |prompt| {
        predictor
            .estimate(&RequestShape { prompt_tokens: prompt, ..SENT }, 1e5)
            .prediction
            .slot_wait_us
    };
    assert_eq!(wait(SENT.prompt_tokens), 0.0);
    assert!(wait(10.0 * SENT.prompt_tokens) > 0.0);
}

#[test]
fn responses_in_one_piece_show_the_speed_too() {
    let predictor = Arc::new(Predictor::default());
    let whole = RequestShape { is_whole: true, ..SENT };
    for request in 0..200_u32 {
        let now_us = f64::from(request) * 1e7;
        let prediction = predictor.estimate(&whole, now_us).prediction;
        let mut ticket = predictor.send(whole, prediction, None, now_us);
        let output = 50 + request * 37 % 100;
        ticket.complete(Some(output), now_us + 30_000.0 + f64::from(output) * 8_000.0);
    }
    let found = predictor.estimate(&whole, 1e10).prediction;
    assert!((found.ttft_us / 830_000.0 - 1.0).abs() < 0.25, "{found:?}");
    assert!((found.tpot_us / 8_000.0 - 1.0).abs() < 0.3, "{found:?}");
}

#[test]
fn another_process_continues_with_what_was_learned() {
    let old = Arc::new(Predictor::default());
    serve_alone(&old, 60);
    let _running = send(&old, 9e8);
    let text = serde_json::to_string(&old.learned_state()).unwrap();
    assert!(text.len() < 5000, "{} bytes", text.len());
    let learned: LearnedState = serde_json::from_str(&text).unwrap();
    assert!(learned.is_readable() && learned.first_token_count() == 60.0);
    let new = Predictor::default();
    new.restore(learned);
    let (before, after) = (old.report(1e9), new.report(1e9));
    assert_eq!(before.coefficients, after.coefficients);
    assert_eq!(
        (after.waiting_count, after.backlog_us),
        (0.0, 0.0),
        "its requests are not taken over"
    );
    let rest =
        |report: PredictorReport| PredictorReport { waiting_count: 0.0, backlog_us: 0.0, ..report };
    assert_eq!(rest(before), rest(after));
    assert!(after.is_trusted);
    let ttft_us = new.estimate(&SENT, 1e9).prediction.ttft_us;
    assert!((ttft_us / 40_000.0 - 1.0).abs() < 0.1, "{ttft_us}");
}

/// A graceful upgrade passes the state to a process of another version.
#[test]
fn learned_state_keeps_the_names_of_its_fields() {
    let state = serde_json::to_value(Predictor::default().learned_state()).unwrap();
    for (part, names) in [
        (&state, "format steps prefill lengths residual slots kv_tokens step_tokens tokenizer"),
        (&state["steps"], "weights covariance gaps deviation unexplained drift relearning batches"),
        (&state["steps"]["batches"], "ratios steps"),
        (&state["prefill"], "weights covariance samples"),
        (&state["tokenizer"], "samples weight tokens squares times products work"),
        (
            &state["residual"],
            "bias percentile seen since_change usual is_relearning known covered error",
        ),
    ] {
        let mut found: Vec<&str> = part.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = names.split(' ').collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

#[test]
fn another_version_starts_with_what_was_known_and_is_not_trusted() {
    let predictor = Arc::new(Predictor::default());
    serve_alone(&predictor, 60);
    let before = predictor.report(1e9);
    predictor.version_changed();
    let after = predictor.report(1e9);
    assert!(before.is_trusted && !after.is_trusted);
    assert_eq!((after.first_token_count, after.gap_count, after.bias), (0.0, 0.0, 0.0));
    let steps = [before, after].map(|report| report.coefficients.step_us(1.0, 550.0));
    assert!((steps[1] / steps[0] - 1.0).abs() < 1e-6, "{steps:?}");
    predictor.adopt(&Predictor::default().learned_state());
    assert_eq!(
        predictor.report(1e9).coefficients,
        after.coefficients,
        "nothing of another backend"
    );
    serve_alone(&predictor, 60);
    assert!(predictor.report(2e9).is_trusted, "it is learned again");
}

#[test]
fn unknown_backend_starts_like_another_one_of_the_model() {
    let known = Arc::new(Predictor::default());
    serve_alone(&known, 60);
    let new = Arc::new(Predictor::default());
    serve_alone(&new, 1);
    assert!(new.is_little_known() && !known.is_little_known());
    new.adopt(&known.learned_state());
    let ttft_us = new.estimate(&SENT, 1e9).prediction.ttft_us;
    assert!((ttft_us / 40_000.0 - 1.0).abs() < 0.25, "{ttft_us}");
    assert!(!new.report(1e9).is_trusted, "a guess is no knowledge");
    let before = new.report(1e9).coefficients;
    new.adopt(&Predictor::default().learned_state());
    assert_eq!(new.report(1e9).coefficients, before, "it has started already");
}

#[test]
fn predictions_that_are_off_by_as_much_as_the_truth_are_not_trusted() {
    let predictor = Arc::new(Predictor::default());
    for request in 0..200_u32 {
        let start = f64::from(request) * 1e7;
        let mut ticket = send(&predictor, start);
        // First tokens after 2 ms or 400 ms, without a reason that the engine model knows.
        let mut now_us = start + if request % 2 == 0 { 2_000.0 } else { 400_000.0 };
        for _ in 0..20 {
            ticket.tokens(1, now_us);
            now_us += 5_000.0;
        }
        ticket.complete(None, now_us);
    }
    let report = predictor.report(1e10);
    assert!(report.error > 1.0 && !report.is_trusted, "{report:?}");
}

#[test]
fn silence_is_seen_although_some_tokens_are_learned_at_the_end() {
    let predictor = Arc::new(Predictor::default());
    serve_alone(&predictor, 3);
    let mut streams = [send(&predictor, 50e6), send(&predictor, 50e6)];
    for token in 0..6_u32 {
        let now_us = 50_040_000.0 + f64::from(token) * 5_000.0;
        streams.iter_mut().for_each(|stream| stream.tokens(1, now_us));
    }
    let stall = |now_us: f64| predictor.estimate(&SENT, now_us).prediction.stall_us;
    assert!(stall(50.2e6) <= 0.0 && stall(53e6) > 2.5e6, "{}", stall(53e6));
    streams.iter_mut().for_each(|stream| stream.cut(53e6));
    assert!(stall(53e6) > 2.5e6, "{}", stall(53e6));
    assert!(stall(56.5e6) <= 0.0, "{}", stall(56.5e6));
}

#[test]
fn fast_engine_that_starts_like_a_slow_one_is_learned() {
    let slow = Arc::new(Predictor::default());
    serve_streams(&slow, 20, [200_000.0, 20_000.0], 12);
    let predictor = Arc::new(Predictor::default());
    predictor.adopt(&slow.learned_state());
    let estimate = predictor.estimate(&SENT, 1e9);
    assert_eq!((estimate.first_token_count, estimate.since_learned_us), (0.0, f64::INFINITY));
    assert!(estimate.alone_us > 200_000.0, "{estimate:?}");
    serve_streams(&predictor, 20, [10_000.0, 2_000.0], 40);
    let estimate = predictor.estimate(&SENT, 1e9);
    let step_us = predictor.report(1e9).coefficients.base_us;
    assert!((1_500.0..2_500.0).contains(&step_us), "{step_us}");
    assert_eq!(estimate.first_token_count, 20.0);
    assert_eq!(estimate.since_learned_us, 1e9 - 19e7 - 10_000.0);
    let expected_us = 10_000.0 + estimate.prediction.output_tokens * 2_000.0;
    assert!((0.7..1.3).contains(&(estimate.alone_us / expected_us)), "{estimate:?}");
}

/// Serves requests in pairs, the second sent while the first one has no token, with these
/// microseconds to the first token. Returns the prediction for an idle engine after them.
fn serve_pairs(predictor: &Arc<Predictor>, pairs: u32, first: f64, start: f64) -> f64 {
    for pair in 0..pairs {
        let start = start + f64::from(pair) * 1e7;
        let tickets = [0.0, 1_000.0].map(|later| (send(predictor, start + later), start + later));
        for (mut ticket, sent) in tickets {
            (0..20_u32).for_each(|n| ticket.tokens(1, sent + first + 5_000.0 * f64::from(n)));
            ticket.complete(None, sent + first + 100_000.0);
        }
    }
    predictor.estimate(&SENT, start + 1e9).prediction.ttft_us
}

#[test]
fn late_first_tokens_of_an_idle_engine_are_found_soon() {
    let predictor = Arc::new(Predictor::default());
    serve_alone(&predictor, 100);
    let before = predictor.estimate(&SENT, 2e9).prediction.ttft_us;
    assert!((35e3..45e3).contains(&before), "{before}");
    let three = serve_pairs(&predictor, 3, 2e6, 2e9);
    assert!(three < 4.0 * before, "{three}: three may be chance");
    let eight = serve_pairs(&predictor, 5, 2e6, 4e9);
    assert!(eight > 800e3, "{eight}");
    // A backend that seems slow gets few requests: a few show that it has recovered.
    let start = 6e9;
    for n in 0..3 {
        let start = start + f64::from(n) * 1e8;
        let mut ticket = send(&predictor, start);
        ticket.tokens(1, start + 40e3);
        ticket.complete(None, start + 50e3);
    }
    let recovered = predictor.estimate(&SENT, 7e9).prediction.ttft_us;
    assert!(recovered < 0.4 * eight, "{recovered} after {eight}");
}
