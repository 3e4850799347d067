//! The predictor on requests whose tokens are known: recorded ones, and those of a hosted API.

use std::sync::Arc;

use penstock_api::units::floor_index;

use super::{PredictionTicket, Predictor, ReportedLimits, RequestShape};

/// Two llama.cpp servers with four slots, one of them three times as slow: short prompts and some
/// long ones in bursts, sent by the strategy `balanced` of `tests/e2e/objectives.py`.
const RUN: &str = include_str!("../../../tests/data/llamacpp-run.csv");
/// The number of requests of each engine before predictions count, of 150 to 250.
const LEARNED: usize = 60;

pub(super) struct Request {
    pub(super) sent_at_us: f64,
    pub(super) prompt: f64,
    /// The times of its tokens.
    pub(super) tokens: Vec<f64>,
}

/// The requests of one engine, in microseconds.
fn requests(engine: &str) -> Vec<Request> {
    let of_engine = |line: &&str| line.starts_with(engine);
    let rows = RUN.lines().filter(of_engine).map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |index: usize| fields[index].parse::<f64>().unwrap();
        let sent_at_us = number(1) * 1e3;
        let mut tokens = vec![sent_at_us + number(3) * 1e3];
        for gap in fields[4].split_whitespace() {
            tokens.push(tokens.last().unwrap() + gap.parse::<f64>().unwrap() * 100.0);
        }
        Request { sent_at_us, prompt: number(2), tokens }
    });
    rows.collect()
}

/// An event of a run, in the order of time.
#[derive(Clone, Copy)]
enum Event {
    Sent(usize),
    Token(usize),
    Ended(usize),
    Second,
}

fn events(requests: &[Request]) -> Vec<(f64, Event)> {
    let mut events = Vec::new();
    for (index, one) in requests.iter().enumerate() {
        events.push((one.sent_at_us, Event::Sent(index)));
        events.extend(one.tokens.iter().map(|at| (*at, Event::Token(index))));
        events.push((one.tokens.last().unwrap() + 100.0, Event::Ended(index)));
    }
    let last = events.iter().map(|(at, _)| *at).fold(0.0, f64::max);
    let mut second = 0.0;
    while second < last {
        events.push((second, Event::Second));
        second += 1e6;
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    events
}

/// The results of a run.
pub(super) struct Replayed {
    /// The predicted and the actual time to the first token of each.
    pub(super) found: Vec<(f64, f64)>,
    /// The predicted time per token of each.
    pub(super) per_token: Vec<f64>,
    /// The longest front end that was believed.
    front_end_us: f64,
}

pub(super) fn replay(requests: &[Request], slots: f64) -> Replayed {
    let predictor = Arc::new(Predictor::default());
    let mut tickets: Vec<Option<PredictionTicket>> = requests.iter().map(|_| None).collect();
    let mut found = vec![(0.0, 0.0); requests.len()];
    let mut per_token = vec![0.0; requests.len()];
    let mut front_end_us = 0.0_f64;
    for (now_us, event) in events(requests) {
        match event {
            Event::Sent(index) => {
                let (prompt, max_output_tokens) =
                    (requests[index].prompt, requests[index].tokens.len());
                let max_output_tokens = max_output_tokens as f64;
                let sent = RequestShape {
                    prompt_tokens: prompt,
                    cached_tokens: 0.0,
                    max_output_tokens,
                    is_whole: false,
                };
                let prediction = predictor.estimate(&sent, now_us).prediction;
                found[index] = (prediction.ttft_us, requests[index].tokens[0] - now_us);
                per_token[index] = prediction.tpot_us;
                tickets[index] = Some(predictor.send(sent, prediction, None, now_us));
            }
            Event::Token(index) => tickets[index].as_mut().unwrap().tokens(1, now_us),
            Event::Ended(index) => tickets[index].take().unwrap().complete(None, now_us),
            Event::Second => {
                predictor.refresh(ReportedLimits { slots, ..ReportedLimits::default() }, now_us);
                front_end_us = front_end_us.max(predictor.report(now_us).front_end_us);
            }
        }
    }
    Replayed { found, per_token, front_end_us }
}

/// Long prompts take several steps there, with the short ones of other slots beside them.
#[test]
fn first_tokens_of_llamacpp_are_predicted() {
    for (engine, max) in [("fast", 0.4), ("slow", 0.3)] {
        let requests = requests(engine);
        let found = replay(&requests, 4.0).found;
        let (mut off, mut sum, mut long) = (0.0, 0.0, (0.0, 0.0));
        for ((predicted, actual), one) in found.iter().zip(&requests).skip(LEARNED) {
            off += (predicted - actual).abs();
            sum += actual;
            if one.prompt > 500.0 {
                long = (long.0 + predicted, long.1 + actual);
            }
        }
        assert!(off / sum < max, "{engine}: {} of {}", off / sum, requests.len());
        let ratio = long.0 / long.1;
        assert!((0.6..1.3).contains(&ratio), "{engine}, long prompts: {ratio}");
    }
}

/// Returns a generator of numbers from 0 to 1.
pub(super) fn random() -> impl FnMut() -> f64 {
    let mut state = 1_u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 24)
    }
}

/// Returns a request of `output` tokens: the first comes at `first`, and one every 20 ms after it.
fn streamed(sent_at_us: f64, prompt: f64, first: f64, output: f64) -> Request {
    let count = penstock_api::units::floor_index(output);
    let tokens = (0..count).map(|n| first + n as f64 * 20e3).collect();
    Request { sent_at_us, prompt, tokens }
}

/// Returns requests to a hosted API, whose engines are many and out of sight. Each waits for
/// `wait(tokens, noise)` milliseconds, whatever the others do, and gets 5 tokens and up to `more`
/// further ones.
fn hosted(rate: f64, more: f64, wait: impl Fn(f64, f64) -> f64) -> Vec<Request> {
    let (mut random, mut at) = (random(), 0.0);
    let requests = (0..1_500).map(|_| {
        at -= (1.0 - random()).ln() / rate * 1e6;
        let prompt = 20.0 * (4.0 * random()).exp();
        streamed(at, prompt, at + wait(prompt, random()) * 1e3, 5.0 + more * random())
    });
    requests.collect()
}

/// Returns requests to an engine that computes `slots` of them at one time; the others wait.
fn slotted(slots: usize, rate: f64) -> Vec<Request> {
    let (mut random, mut at) = (random(), 0.0);
    let mut free_at = vec![0.0_f64; slots];
    let requests = (0..600).map(|_| {
        at -= (1.0 - random()).ln() / rate * 1e6;
        let free = free_at.iter_mut().min_by(|one, other| one.total_cmp(other)).unwrap();
        let request = streamed(at, 100.0, free.max(at) + 30e3, 5.0 + 55.0 * random());
        *free = *request.tokens.last().unwrap();
        request
    });
    requests.collect()
}

/// Returns requests to an engine with 16 slots that computes up to 512 tokens in a step of 20 ms,
/// 0.1 ms per prompt token and 1 ms per stream. Tokens of a step come up to 3 ms apart.
fn batched(rate: f64) -> Vec<Request> {
    let (mut random, mut arrival_us) = (random(), 0.0);
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..1500 {
        arrival_us -= (1.0 - random()).ln() / rate * 1e6;
        let prompt = 20.0 * (4.5 * random()).exp();
        requests.push(Request { sent_at_us: arrival_us, prompt, tokens: Vec::new() });
    }
    let lengths: Vec<usize> = requests.iter().map(|_| 20 + floor_index(100.0 * random())).collect();
    // The requests in the batch, each with the tokens of its prompt that are left.
    let (mut now_us, mut next, mut batch) = (0.0_f64, 0, Vec::<(usize, f64)>::new());
    while next < requests.len() || !batch.is_empty() {
        if batch.is_empty() {
            now_us = now_us.max(requests[next].sent_at_us);
        }
        while batch.len() < 16 && requests.get(next).is_some_and(|one| one.sent_at_us <= now_us) {
            batch.push((next, requests[next].prompt));
            next += 1;
        }
        let streams = batch.iter().filter(|(_, left)| *left <= 0.0).count();
        let (mut room, mut computed) = (512.0 - streams as f64, Vec::new());
        for (_, left) in &batch {
            computed.push(left.min(room));
            room -= left.min(room);
        }
        let tokens: f64 = computed.iter().sum();
        now_us += 20e3 + 100.0 * tokens + 1e3 * streams as f64;
        for ((index, left), tokens) in batch.iter_mut().zip(computed) {
            *left -= tokens;
            if *left <= 0.0 {
                requests[*index].tokens.push(now_us + 3e3 * random());
            }
        }
        batch.retain(|(index, _)| requests[*index].tokens.len() < lengths[*index]);
    }
    requests
}

/// First tokens come before or after those of the streams in the same step, and limits end streams.
#[test]
fn waits_in_a_full_batch_are_predicted() {
    for (rate, max) in [(3.0, 0.15), (4.0, 0.15)] {
        let found = replay(&batched(rate), 16.0).found;
        let known = &found[300..];
        let off: f64 = known.iter().map(|(predicted, actual)| (predicted - actual).abs()).sum();
        let sum: f64 = known.iter().map(|(_, actual)| actual).sum();
        assert!(off / sum < max, "{rate} per second: {} of {sum}", off / sum);
    }
}

/// Streams go on while requests wait for a slot, as they do before a hosted API.
#[test]
fn waits_for_a_slot_are_no_front_end() {
    for (slots, rate) in [(1, 1.3), (2, 2.6), (4, 5.4), (8, 11.0), (32, 46.0)] {
        let front_end_us = replay(&slotted(slots, rate), f64::INFINITY).front_end_us;
        assert!(front_end_us < 100e3, "{slots} slots: {front_end_us}");
    }
}

#[test]
fn hosted_apis_are_predicted_at_any_rate() {
    type Wait = fn(f64, f64) -> f64;
    let all: &[f64] = &[0.3, 2.0, 8.0, 40.0];
    for (name, wait, rates, more, max) in [
        ("constant", (|_, _| 400.0) as Wait, all, 55.0, 0.1),
        ("noisy", |_, noise| 300.0 - 100.0 * (1.0 - noise).ln(), all, 55.0, 0.25),
        ("by tokens", |tokens, noise| 200.0 + 0.2 * tokens + 20.0 * noise, all, 55.0, 0.25),
        // No stream runs meanwhile.
        ("short outputs", |_, _| 400.0, all, 0.0, 0.1),
        ("long waits", |_, noise| 2_700.0 + 600.0 * noise, &[0.3, 2.0], 0.0, 0.1),
    ] {
        for rate in rates {
            let found = replay(&hosted(*rate, more, wait), f64::INFINITY).found;
            // Once the first ones have come back.
            let known = &found[1_000..];
            let off: f64 = known.iter().map(|(p, a)| (p / a - 1.0).abs()).sum();
            let off = off / known.len() as f64;
            assert!(off < max, "{name} at {rate} per second: {off}");
        }
    }
}
