//! `latency`: prefers backends with a low time to first token (peak EWMA).

use super::{Needs, Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "latency",
    formula: "least is best of TTFT x (in flight + 1), where TTFT is an average that follows rises at once and falls to 1/e in 10 s",
    source: "peak EWMA of Finagle's load balancers, with TTFT as the response time",
    unknown: "the TTFT of the fastest backend: a backend without requests has none",
    params: &[],
    build: |_| Ok(Box::new(Latency)),
};

#[derive(Debug)]
struct Latency;

impl Scorer for Latency {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let known = candidates.iter().filter_map(|one| one.first_token_ms);
        let fastest = known.fold(f64::INFINITY, f64::min);
        let fastest = if fastest.is_finite() { fastest } else { 1.0 };
        least_is_best(candidates, scores, |one| {
            // An unknown count of requests in flight (NaN) counts as none here.
            Some(one.first_token_ms.unwrap_or(fastest) * (one.in_flight.max(0.0) + 1.0))
        });
    }

    fn needs(&self) -> Needs {
        Needs::LATENCIES
    }
}
