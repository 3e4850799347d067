//! The predictor on the recorded runs: each request is predicted when it arrives, by what a balancer knows then.

use super::{RUNS, row, spec};
use crate::predict::{
    Backlog, Coefficients, EngineLimits, EngineView, Lengths, Regime, Residual, Sent, Streams,
    WaitCurve, predict,
};
use crate::sim::engine::StepTime;
use crate::sim::fit::fit_first;
use crate::sim::run::{Run, Timing};

const MICROS: f64 = 1e6;

fn coefficients(time: &StepTime) -> Coefficients {
    let micros = |picos: u64| picos as f64 * 1e-6;
    Coefficients {
        base: micros(time.base),
        token: micros(time.per_token),
        decode: micros(time.per_decode),
        context: micros(time.per_context),
        pair: micros(time.per_pair),
    }
}

/// What is known at `now` of requests that were sent before: streams with their ages, and who waits.
struct Seen<'a> {
    timings: &'a [Timing],
    work: Vec<f64>,
}

impl Seen<'_> {
    fn streams(&self, now: f64, sent: usize) -> Streams {
        let mut streams = Streams::default();
        for one in &self.timings[..sent] {
            if one.first_token <= now && now < one.last_token {
                let share = (now - one.first_token) / (one.last_token - one.first_token);
                let age = crate::sim::workload::rounded_u32(share * f64::from(one.output_tokens));
                streams.add(f64::from(one.input_tokens), age.max(1));
            }
        }
        streams
    }

    /// The backlog, from everything that happened before `now`, in order.
    fn backlog(&self, now: f64, sent: usize) -> Backlog {
        let mut events: Vec<(f64, bool, usize)> = Vec::new();
        for (index, one) in self.timings[..sent].iter().enumerate() {
            events.push((one.arrived, false, index));
            if one.first_token <= now {
                events.push((one.first_token, true, index));
            }
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut backlog = Backlog::default();
        for (at, is_first, index) in events {
            let (tokens, work) = (f64::from(self.timings[index].input_tokens), self.work[index]);
            if is_first {
                backlog.first_token(at * MICROS, tokens, work);
            } else {
                backlog.sent(at * MICROS, tokens, work);
            }
        }
        backlog
    }
}

/// How far predictions of the times to the first token were off.
#[derive(Debug)]
struct Found {
    /// The sum of all errors by the sum of all times.
    weighted: f64,
    /// The share that came within the 90th percentile.
    covered: f64,
}

fn replay(name: &str, text: &str, max_requests: u32, knows_lengths: bool) -> Found {
    let run = Run::parse(text).unwrap();
    let spec = spec(name, max_requests);
    let found = fit_first(60, &run, &spec, &row(name).least_step_time()).unwrap();
    let coefficients = coefficients(&found.step_time);
    let limits = EngineLimits {
        slots: f64::from(max_requests),
        kv_tokens: f64::from(spec.kv_blocks) * 16.0,
        step_tokens: 2048.0,
    };
    let mut lengths = Lengths::default();
    if knows_lengths {
        for _ in 0..5 {
            run.timings().iter().for_each(|one| lengths.learn(f64::from(one.output_tokens)));
        }
    }
    let mut residual = Residual::default();
    let mut seen = Seen { timings: run.timings(), work: Vec::new() };
    let mut learned = vec![false; run.len()];
    let mut ended = vec![false; run.len()];
    let (mut off, mut sum, mut covered) = (0.0, 0.0, 0.0);
    let mut raws: Vec<(f64, Regime)> = Vec::new();
    for (index, one) in run.timings().iter().enumerate() {
        let now = one.arrived;
        for (earlier, flag) in learned.iter_mut().enumerate().take(index) {
            let timing = &seen.timings[earlier];
            if !*flag && timing.first_token <= now {
                *flag = true;
                let (raw, regime) = raws[earlier];
                residual.learn(regime, raw, (timing.first_token - timing.arrived) * MICROS);
            }
            if !knows_lengths && !ended[earlier] && timing.last_token <= now {
                ended[earlier] = true;
                lengths.learn(f64::from(timing.output_tokens));
            }
        }
        let (streams, backlog) = (seen.streams(now, index), seen.backlog(now, index));
        lengths.see_running(streams.ages());
        let waits = WaitCurve::default();
        waits.compute(&lengths, &streams, now * MICROS);
        let view = EngineView {
            coefficients,
            limits,
            backlog: backlog.left_at(now * MICROS),
            waiting: backlog.waiting(),
            waiting_tokens: backlog.mean_tokens(),
            prefill_share: backlog.prefill_share(now * MICROS),
            streams: streams.count(),
            context: streams.context(),
            waits: &waits,
            factors: residual.all_factors(),
            front_end: 0.0,
            output: lengths.mean(),
        };
        let request = Sent {
            prompt: f64::from(one.input_tokens),
            cached: 0.0,
            max_output: f64::INFINITY,
            is_whole: false,
        };
        let prediction = predict(&view, &request, now * MICROS);
        seen.work.push(prediction.work);
        raws.push((prediction.raw, prediction.regime));
        let actual = (one.first_token - one.arrived) * MICROS;
        off += (prediction.ttft - actual).abs();
        sum += actual;
        covered += f64::from(u8::from(actual <= prediction.ttft_p90));
    }
    let count = run.len() as f64;
    Found { weighted: off / sum, covered: covered / count }
}

/// The lengths of outputs are known from earlier traffic.
#[test]
fn first_tokens_of_recorded_runs_are_predicted() {
    for ((name, text, max_requests), most) in RUNS.into_iter().zip([0.09, 0.125, 0.17]) {
        let found = replay(name, text, max_requests, true);
        assert!(found.weighted <= most, "{name}: {found:?}");
        assert!(found.covered >= 0.8, "{name}: {found:?}");
    }
}

/// Nothing is known of them when a run begins, and each ends an overload later than it is needed.
#[test]
fn lengths_are_learned_from_streams_that_still_run() {
    for ((name, text, max_requests), most) in RUNS.into_iter().zip([0.2, 0.42, 0.23]) {
        let found = replay(name, text, max_requests, false);
        assert!(found.weighted <= most, "{name}: {found:?}");
    }
}
