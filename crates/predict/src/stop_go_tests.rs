//! The predictor before an engine that stands still for a part of the time, as with a CPU quota.

use super::replay_tests::{Replayed, Request, random, replay};

/// The requests that an engine computes at one time, and the prompt tokens of a step.
const SLOTS: usize = 8;
const CHUNK: f64 = 1024.0;
/// The time before the first step of a request.
const FRONT_END_US: f64 = 6_000.0;

/// A request at the engine.
struct Running {
    index: usize,
    prompt_left: f64,
    output: usize,
}

/// Returns the end of work of `work_us` that starts at `at_us`, on an engine that stands still
/// for `stopped_us` and then runs for `running_us`.
fn end_of(mut at_us: f64, mut work_us: f64, stopped_us: f64, running_us: f64) -> f64 {
    while work_us > 0.0 {
        let phase_us = at_us % (stopped_us + running_us);
        at_us += (stopped_us - phase_us).max(0.0);
        let done_us = (running_us - (phase_us - stopped_us).max(0.0)).min(work_us);
        (at_us, work_us) = (at_us + done_us, work_us - done_us);
    }
    at_us
}

/// Returns `count` requests to such an engine: a step takes 4 ms, 0.5 ms for each stream and 30 µs
/// for each token of a prompt.
fn requests(count: usize, rate: f64, stopped_us: f64, running_us: f64) -> Vec<Request> {
    let (mut random, mut at_us) = (random(), 0.0);
    let mut all: Vec<Request> = Vec::new();
    let mut outputs = Vec::new();
    for _ in 0..count {
        at_us -= (1.0 - random()).ln() / rate * 1e6;
        all.push(Request { sent_at_us: at_us, prompt: 40.0 + 360.0 * random(), tokens: vec![] });
        outputs.push(penstock_api::units::floor_index(8.0 + 24.0 * random()));
    }
    let (mut next, mut now_us, mut running) = (0, 0.0_f64, Vec::<Running>::new());
    while next < count || !running.is_empty() {
        if running.is_empty() {
            now_us = now_us.max(all[next].sent_at_us + FRONT_END_US);
        }
        while next < count && all[next].sent_at_us + FRONT_END_US <= now_us && running.len() < SLOTS
        {
            running.push(Running {
                index: next,
                prompt_left: all[next].prompt,
                output: outputs[next],
            });
            next += 1;
        }
        let (mut room, mut step_us) = (CHUNK, 4_000.0);
        for one in &mut running {
            let chunk = one.prompt_left.min(room);
            (room, one.prompt_left) = (room - chunk, one.prompt_left - chunk);
            step_us += if chunk > 0.0 { 30.0 * chunk } else { 500.0 };
        }
        now_us = end_of(now_us, step_us, stopped_us, running_us);
        running.retain(|one| {
            if one.prompt_left <= 0.0 {
                all[one.index].tokens.push(now_us);
            }
            all[one.index].tokens.len() < one.output
        });
    }
    all
}

/// Returns the error of predicted times to the first token by all waiting time, what is missing
/// of them on average, and the same of the times per token.
fn errors(requests: &[Request]) -> [f64; 3] {
    let Replayed { found, per_token, .. } = replay(requests, SLOTS as f64);
    let (mut off, mut first, mut token) = (0.0, [0.0; 2], [0.0; 2]);
    for ((found, per_token), one) in found.iter().zip(&per_token).zip(requests).skip(60) {
        let (predicted, actual) = found;
        off += (predicted - actual).abs();
        first = [first[0] + predicted, first[1] + actual];
        let span = one.tokens.last().unwrap() - one.tokens[0];
        token = [token[0] + per_token, token[1] + span / (one.tokens.len() - 1) as f64];
    }
    [off / first[1], 1.0 - first[0] / first[1], 1.0 - token[0] / token[1]]
}

#[test]
fn pauses_are_part_of_predictions() {
    for (stopped_us, running_us, rate, max) in
        [(0.0, 1.0, 9.0, 0.1), (60e3, 60e3, 5.0, 0.6), (100e3, 50e3, 3.0, 0.65)]
    {
        let [error, missing, missing_per_token] =
            errors(&requests(400, rate, stopped_us, running_us));
        let shown = format!("{stopped_us}: {error:.2} {missing:.2} {missing_per_token:.2}");
        assert!(error < max, "{shown}");
        assert!(missing.abs() < 0.25 && missing_per_token.abs() < 0.25, "{shown}");
    }
}
