//! The predictor on the recorded runs: each request is predicted at its arrival, from what a
//! balancer knows then.

use penstock_predict::{
    BackendPredictor, Coefficients, EngineLimits, ReportedLimits, RequestShape, Ticket, WaitCurve,
};

use super::{RUNS, row, spec};
use crate::engine::StepTime;
use crate::fit::fit_first;
use crate::run::RecordedRun;

const MICROS: f64 = 1e6;

fn coefficients(time: &StepTime) -> Coefficients {
    let micros = |picos: u64| picos as f64 * 1e-6;
    Coefficients {
        base_us: micros(time.base),
        token_us: micros(time.per_token),
        decode_us: micros(time.per_decode),
        context_us: micros(time.per_context),
        pair_us: micros(time.per_pair),
        ..Coefficients::default()
    }
}

/// The accuracy of TTFT predictions.
#[derive(Debug)]
struct Found {
    /// The sum of errors over the sum of times (WAPE).
    weighted: f64,
    /// The share of first tokens within the 90th percentile.
    covered: f64,
}

/// Returns first tokens and ends in order: the time, the request, and whether it is a first token.
fn events_of(run: &RecordedRun) -> Vec<(f64, usize, bool)> {
    let mut events = Vec::new();
    for (index, one) in run.timings().iter().enumerate() {
        events.push((one.first_token, index, true));
        events.push((one.last_token, index, false));
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    events
}

fn replay(name: &str, text: &str, max_requests: u32, knows_lengths: bool) -> Found {
    let run = RecordedRun::parse(text).unwrap();
    let spec = spec(name, max_requests);
    let found = fit_first(60, &run, &spec, &StepTime::least_of(&row(name))).unwrap();
    let coefficients = coefficients(&found.step_time);
    let limits = EngineLimits {
        slots: f64::from(max_requests),
        kv_tokens: f64::from(spec.kv_blocks) * 16.0,
        step_tokens: 2048.0,
    };
    let mut predictor = BackendPredictor::new(&coefficients, limits);
    let waits = WaitCurve::default();
    if knows_lengths {
        for _ in 0..5 {
            run.timings().iter().for_each(|one| predictor.learn_length(one.output_tokens.into()));
        }
    }
    let mut events = events_of(&run).into_iter().peekable();
    let mut tickets: Vec<Option<Ticket>> = Vec::new();
    let (mut off, mut sum, mut covered, mut refreshed) = (0.0, 0.0, 0.0, f64::NEG_INFINITY);
    for one in run.timings() {
        let now = one.arrived;
        while let Some((at, index, is_first)) = events.next_if(|(at, ..)| *at <= now) {
            let Some(ticket) = &mut tickets[index] else { continue };
            if is_first {
                predictor.first_token(ticket, at * MICROS);
            } else {
                let tokens = run.timings()[index].output_tokens;
                predictor.ended(ticket, Some(tokens), true, at * MICROS);
                tickets[index] = None;
            }
        }
        for (ticket, one) in tickets.iter_mut().zip(run.timings()) {
            if let Some(ticket) = ticket.as_mut().filter(|ticket| ticket.emitted_tokens() > 0) {
                let share = (now - one.first_token) / (one.last_token - one.first_token);
                let age = crate::workload::rounded_u32(share * f64::from(one.output_tokens));
                predictor.progress(ticket, age.max(1), now * MICROS);
            }
        }
        if now > refreshed + 1.0 {
            refreshed = now;
            predictor.refresh(&waits, ReportedLimits::default(), now * MICROS);
        }
        let request = RequestShape {
            prompt_tokens: f64::from(one.input_tokens),
            cached_tokens: 0.0,
            max_output_tokens: f64::INFINITY,
            is_whole: false,
        };
        let prediction = predictor.predict(&waits, &request, now * MICROS);
        tickets.push(Some(predictor.send(request, prediction, None, now * MICROS)));
        let actual = (one.first_token - one.arrived) * MICROS;
        off += (prediction.ttft_us - actual).abs();
        sum += actual;
        covered += f64::from(u8::from(actual <= prediction.ttft_p90_us));
    }
    let count = run.len() as f64;
    Found { weighted: off / sum, covered: covered / count }
}

/// The output lengths are known from earlier traffic.
#[test]
fn first_tokens_of_recorded_runs_are_predicted() {
    for ((name, text, max_requests), most) in RUNS.into_iter().zip([0.08, 0.10, 0.16]) {
        let found = replay(name, text, max_requests, true);
        assert!(found.weighted <= most, "{name}: {found:?}");
        assert!(found.covered >= 0.8, "{name}: {found:?}");
    }
}

/// Output lengths are unknown at the start of a run; in an overload, streams end too late to learn
/// from their ends alone.
#[test]
fn lengths_are_learned_from_streams_that_still_run() {
    for ((name, text, max_requests), most) in RUNS.into_iter().zip([0.22, 0.41, 0.37]) {
        let found = replay(name, text, max_requests, false);
        assert!(found.weighted <= most, "{name}: {found:?}");
    }
}
