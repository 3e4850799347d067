//! A scorer by measured latency.

use super::{Scorer, ScorerRow, least_is_best};
use crate::scoring::candidate::{Ask, Candidate};

pub(super) const LATENCY: ScorerRow = ScorerRow {
    name: "latency",
    formula: "least is best of TTFT x (in flight + 1), where TTFT is an average that follows rises at once and falls to 1/e in 10 s",
    source: "peak EWMA of Finagle's load balancers, with TTFT as the time of an answer",
    unknown: "the TTFT of the fastest stands in: only who gets requests has one",
    params: &[],
    build: |_| Ok(Box::new(Latency)),
};

#[derive(Debug)]
struct Latency;

impl Scorer for Latency {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let known = candidates.iter().filter_map(|one| one.latency_ms);
        let fastest = known.fold(f64::INFINITY, f64::min);
        let fastest = if fastest.is_finite() { fastest } else { 1.0 };
        least_is_best(candidates, scores, |one| {
            // In flight there may be none; that is not what is asked here.
            Some(one.latency_ms.unwrap_or(fastest) * (one.in_flight.max(0.0) + 1.0))
        });
    }

    fn reads_latencies(&self) -> bool {
        true
    }
}
