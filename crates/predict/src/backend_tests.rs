//! The predictor of one backend: what it learns, and that nothing is left behind.

use super::*;
use crate::batch_ratios::BatchRatios;
use crate::coefficients::GapSample;
use crate::ticket::Ticket;

const TRUE: Coefficients = Coefficients {
    base_us: 13_000.0,
    token_us: 40.0,
    decode_us: 42.0,
    context_us: 0.07,
    pair_us: 0.00005,
    batch_ratios: BatchRatios::ON_THE_LINE,
};
const LIMITS: EngineLimits =
    EngineLimits { slots: 128.0, kv_tokens: 400_000.0, step_tokens: 2048.0 };
const SENT: RequestShape = RequestShape {
    prompt_tokens: 500.0,
    cached_tokens: 100.0,
    max_output_tokens: f64::INFINITY,
    is_whole: false,
};

#[test]
fn steps_are_learned_from_a_guess_that_is_far_off() {
    let wrong = Coefficients {
        base_us: 30_000.0,
        token_us: 90.0,
        decode_us: 10.0,
        context_us: 0.01,
        ..TRUE
    };
    let mut predictor = BackendPredictor::new(&wrong, LIMITS);
    for n in 0..4000_u32 {
        let hash = f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 65_536.0;
        let decodes = f64::from(n % 100 + 1);
        let context_tokens = decodes * (500.0 + 1500.0 * f64::from(n % 7) / 7.0);
        let gap_us = TRUE.step_us(decodes, context_tokens) * (0.95 + 0.1 * hash);
        predictor.learn_gap(&GapSample { gap_us, decodes, context_tokens, steps: 1.0 });
    }
    let found = predictor.coefficients();
    let near = |a: f64, b: f64, share: f64| assert!((a / b - 1.0).abs() < share, "{found:?}");
    near(found.base_us, TRUE.base_us, 0.03);
    near(found.step_us(64.0, 64_000.0), TRUE.step_us(64.0, 64_000.0), 0.02);
}

#[test]
fn engine_that_becomes_slower_is_noticed() {
    let mut predictor = BackendPredictor::new(&TRUE, LIMITS);
    let learn = |predictor: &mut BackendPredictor, factor: f64, steps: u32| {
        for n in 0..steps {
            let decodes = f64::from(n % 64 + 1);
            let gap_us = TRUE.step_us(decodes, decodes * 1000.0) * factor;
            let context_tokens = decodes * 1000.0;
            predictor.learn_gap(&GapSample { gap_us, decodes, context_tokens, steps: 1.0 });
        }
    };
    learn(&mut predictor, 1.0, 10_000);
    // Fifteen seconds of steps that take twice as long.
    learn(&mut predictor, 2.0, 400);
    let off = predictor.coefficients().step_us(32.0, 32_000.0) / TRUE.step_us(32.0, 32_000.0);
    assert!((1.6..2.2).contains(&off), "{off}");
}

#[test]
fn ended_requests_leave_no_backlog() {
    let wait_curve = WaitCurve::default();
    let mut predictor = BackendPredictor::new(&TRUE, LIMITS);
    let mut tickets = Vec::new();
    for n in 0..1000_u32 {
        let now_us = f64::from(n) * 1e4;
        let prediction = predictor.predict(&wait_curve, &SENT, now_us);
        assert!(prediction.ttft_us > 0.0 && prediction.ttft_p90_us >= prediction.ttft_us);
        tickets.push(predictor.send(SENT, prediction, Some(5e4), now_us));
    }
    assert!(predictor.predict(&wait_curve, &SENT, 1e7).backlog_us > 1e6);
    for (n, ticket) in (0_u32..).zip(&mut tickets) {
        let now_us = 1e7 + f64::from(n) * 1e4;
        if n % 3 > 0 {
            predictor.first_token(ticket, now_us);
            predictor.progress(ticket, n % 100 + 1, now_us);
        }
        predictor.ended(ticket, None, n % 2 == 0, now_us);
    }
    assert_eq!(predictor.counts(), (0.0, 0.0));
    assert_eq!(predictor.tightest_tpot_us(), f64::INFINITY);
    assert_eq!(predictor.predict(&wait_curve, &SENT, 1e8).backlog_us, 0.0);
}

/// A refused, cancelled or failed prompt was not computed: it slows no other stream.
#[test]
fn prompt_that_ends_without_a_token_leaves_no_work() {
    let wait_curve = WaitCurve::default();
    let mut predictor = BackendPredictor::new(&TRUE, LIMITS);
    let tpot_us = |predictor: &BackendPredictor, now_us| {
        predictor.predict(&wait_curve, &SENT, now_us).tpot_us
    };
    let idle_us = tpot_us(&predictor, 1e6);
    let long = RequestShape { prompt_tokens: 400_000.0, cached_tokens: 0.0, ..SENT };
    let prediction = predictor.predict(&wait_curve, &long, 1e6);
    let mut ticket = predictor.send(long, prediction, None, 1e6);
    assert!(tpot_us(&predictor, 1.002e6) > 2.0 * idle_us, "the prompt is computed");
    predictor.ended(&mut ticket, None, false, 1.002e6);
    let after_us = tpot_us(&predictor, 1.003e6);
    assert!(after_us < 1.01 * idle_us, "{after_us} instead of {idle_us}");
}

/// A stream ahead of its objective lends what it saved; a late one demands no more than its
/// objective.
#[test]
fn stream_that_is_ahead_bears_slower_steps() {
    let mut predictor = BackendPredictor::new(&TRUE, LIMITS);
    let prediction = predictor.predict(&WaitCurve::default(), &SENT, 0.0);
    let mut ticket = predictor.send(SENT, prediction, Some(50_000.0), 0.0);
    predictor.first_token(&mut ticket, 1e5);
    assert_eq!(predictor.tightest_tpot_us(), 50_000.0);
    predictor.progress(&mut ticket, 65, 1e5 + 64.0 * 25_000.0);
    let ahead = predictor.tightest_tpot_us();
    assert!((75_000.0..76_000.0).contains(&ahead), "64 x 25 ms saved: {ahead}");
    predictor.progress(&mut ticket, 100, 1e8);
    assert_eq!(predictor.tightest_tpot_us(), 50_000.0);
}

#[test]
fn prompts_without_a_pause_show_what_a_token_costs() {
    let wait_curve = WaitCurve::default();
    let wrong = Coefficients { token_us: 200.0, ..TRUE };
    let mut predictor = BackendPredictor::new(&wrong, LIMITS);
    let long = RequestShape { prompt_tokens: 2000.0, cached_tokens: 0.0, ..SENT };
    let mut now_us = 0.0;
    for _ in 0..40 {
        let mut tickets: Vec<Ticket> = (0..5)
            .map(|_| {
                let prediction = predictor.predict(&wait_curve, &long, now_us);
                predictor.send(long, prediction, None, now_us)
            })
            .collect();
        for ticket in &mut tickets {
            now_us += TRUE.step_us(predictor.counts().1, 0.0) + TRUE.prefill_us(0.0, 2000.0);
            predictor.first_token(ticket, now_us);
            predictor.ended(ticket, None, true, now_us);
        }
        now_us += 1e6;
    }
    let found = predictor.coefficients().token_us;
    assert!((found / TRUE.token_us - 1.0).abs() < 0.1, "{found}");
}

/// An engine that computes a long prompt in several steps, and a short one beside it in the second.
#[test]
fn short_prompts_do_not_take_the_time_of_long_ones() {
    let wait_curve = WaitCurve::default();
    let wrong = Coefficients { token_us: 500.0, pair_us: 0.0, ..TRUE };
    let mut predictor = BackendPredictor::new(&wrong, EngineLimits { slots: 4.0, ..LIMITS });
    let sent = |prompt: f64| RequestShape { prompt_tokens: prompt, cached_tokens: 0.0, ..SENT };
    let mut now_us = 0.0;
    for _ in 0..20 {
        let mut tickets = [sent(2900.0), sent(60.0)].map(|sent| {
            let prediction = predictor.predict(&wait_curve, &sent, now_us);
            now_us += 1_000.0;
            predictor.send(sent, prediction, None, now_us)
        });
        let [long, short] = &mut tickets;
        predictor.step_ended(now_us + 1e6, 1.0);
        predictor.first_token(short, now_us + 2e6);
        predictor.ended(short, None, true, now_us + 2e6);
        predictor.first_token(long, now_us + 2.96e6);
        predictor.ended(long, None, true, now_us + 2.96e6);
        now_us += 5e6;
    }
    let found = predictor.coefficients();
    let (long, short) = (found.prefill_us(0.0, 2900.0), found.prefill_us(0.0, 60.0));
    assert!((long / 2.9e6 - 1.0).abs() < 0.1 && short < 0.2e6, "{long} {short} {found:?}");
}

#[test]
fn prompts_start_when_there_is_a_slot() {
    let wait_curve = WaitCurve::default();
    let limits = EngineLimits { slots: 1.0, ..LIMITS };
    let mut predictor = BackendPredictor::new(&TRUE, limits);
    let send = |predictor: &mut BackendPredictor, now_us: f64| {
        let prediction = predictor.predict(&wait_curve, &SENT, now_us);
        predictor.send(SENT, prediction, None, now_us)
    };
    let mut first = send(&mut predictor, 0.0);
    predictor.first_token(&mut first, 3e4);
    let _second = send(&mut predictor, 4e4);
    predictor.progress(&mut first, 2, 5e4);
    predictor.step_ended(5e4, 1.0);
    assert_eq!(predictor.prompts().started_before(1e6), 0.0, "its slot is taken");
    predictor.ended(&mut first, None, true, 6e4);
    assert_eq!(predictor.prompts().started_before(1e6), SENT.uncached_tokens());
}

#[test]
fn small_batches_that_lie_on_no_line_are_learned() {
    // A llama.cpp server on one core: four rows take hardly longer than three. Larger batches lie
    // on a line.
    let small = [5_300.0, 10_700.0, 14_500.0, 16_000.0];
    let truth = |decodes: f64| match decodes {
        n if n < 1.5 => small[0],
        n if n < 2.5 => small[1],
        n if n < 3.5 => small[2],
        n if n < 4.5 => small[3],
        n => 3_000.0 + 3_500.0 * n,
    };
    let mut predictor = BackendPredictor::new(&TRUE, LIMITS);
    let mut learn = |speed: f64, steps: u32| {
        for n in 0..steps {
            let hash = f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 65_536.0;
            let decodes = f64::from(n % 12 + 1);
            let gap_us = truth(decodes) * (0.95 + 0.1 * hash) * speed;
            let context_tokens = decodes * (50.0 + 20.0 * f64::from(n % 7));
            predictor.learn_gap(&GapSample { gap_us, decodes, context_tokens, steps: 1.0 });
        }
        *predictor.coefficients()
    };
    for (speed, steps) in [(1.0, 3000), (2.0, 600)] {
        let found = learn(speed, steps);
        for decodes in 1..=12_u8 {
            let decodes = f64::from(decodes);
            let off = found.step_us(decodes, decodes * 110.0) / (truth(decodes) * speed) - 1.0;
            assert!(off.abs() < 0.1, "{decodes} at {speed}: {off} {found:?}");
        }
    }
}

/// Turns of agents, one at a time: 400 new tokens behind a prefix that is cached. The front end
/// takes 2 ms and 3 µs per token of the whole prompt.
#[test]
fn front_end_that_grows_with_the_prompt_is_learned() {
    let wait_curve = WaitCurve::default();
    let mut predictor = BackendPredictor::new(&TRUE, LIMITS);
    let turn = |n: u32| RequestShape {
        prompt_tokens: 1_400.0 + f64::from(n * 7 % 40) * 1_000.0,
        cached_tokens: 1_000.0 + f64::from(n * 7 % 40) * 1_000.0,
        ..SENT
    };
    let mut now_us = 0.0;
    for n in 0..200 {
        let request = turn(n);
        let prediction = predictor.predict(&wait_curve, &request, now_us);
        let mut ticket = predictor.send(request, prediction, None, now_us);
        let computed_us = TRUE.prefill_us(request.cached_tokens, 400.0) + TRUE.step_us(0.0, 0.0);
        let true_us = 2_000.0 + 3.0 * request.prompt_tokens + computed_us;
        if n >= 150 {
            assert!((prediction.raw_ttft_us / true_us - 1.0).abs() < 0.1, "{n}: {prediction:?}");
        }
        predictor.first_token(&mut ticket, now_us + true_us);
        predictor.ended(&mut ticket, Some(1), true, now_us + true_us);
        now_us += 1e6;
    }
    let learned = predictor.learned_state().tokenizer_learner.token_us(TRUE.token_us);
    // Attention to a longer prefix takes the rest.
    assert!((2.0..=3.2).contains(&learned), "{learned}");
}
