//! The cost of predictions: a decision that reads 64 backends, and the work that an attempt adds to
//! each of its events.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_predict::{PredictionTicket, Predictor, ReportedLimits, RequestShape};

const BACKENDS: usize = 64;
const SENT: RequestShape = RequestShape {
    prompt_tokens: 900.0,
    cached_tokens: 300.0,
    max_output_tokens: f64::INFINITY,
    is_whole: false,
};

/// A backend with 20 streams, 2 prompts and `slots` slots.
fn busy(slots: f64) -> (Arc<Predictor>, Vec<PredictionTicket>) {
    let predictor = Arc::new(Predictor::default());
    let reported = ReportedLimits { slots, ..ReportedLimits::default() };
    predictor.refresh(reported, 0.0);
    let send = |now| {
        let prediction = predictor.estimate(&SENT, now).prediction;
        predictor.send(SENT, prediction, None, now)
    };
    let mut tickets: Vec<PredictionTicket> = (0..22_u32).map(|n| send(f64::from(n))).collect();
    for ticket in tickets.iter_mut().take(20) {
        (1..100_u32).for_each(|n| ticket.tokens(1, 1e5 + f64::from(n) * 2e4));
    }
    predictor.refresh(reported, 3e6);
    (predictor, tickets)
}

fn predict(criterion: &mut Criterion) {
    for (name, slots) in [("free slots", 64.0), ("full batch", 20.0)] {
        let fleet: Vec<_> = (0..BACKENDS).map(|_| busy(slots)).collect();
        criterion.bench_function(&format!("predict/64 backends, {name}"), |bench| {
            bench.iter(|| {
                let sum: f64 = fleet
                    .iter()
                    .map(|(predictor, _)| predictor.estimate(&SENT, 3.1e6).prediction.ttft_p90_us)
                    .sum();
                black_box(sum)
            });
        });
    }
    let (predictor, mut tickets) = busy(64.0);
    criterion.bench_function("predict/request of 100 tokens, all its events", |bench| {
        let mut now = 4e6;
        bench.iter(|| {
            let prediction = predictor.estimate(&SENT, now).prediction;
            let mut ticket = predictor.send(SENT, prediction, None, now);
            for _ in 0..100 {
                now += 2e4;
                ticket.tokens(1, now);
            }
            ticket.complete(None, now);
        });
    });
    let mut now = 1e9;
    criterion.bench_function("predict/token of a stream", |bench| {
        bench.iter(|| {
            now += 2e4;
            if let Some(ticket) = tickets.first_mut() {
                ticket.tokens(1, now);
            }
        });
    });
}

criterion_group!(benches, predict);
criterion_main!(benches);
