//! `active-requests`: prefers idle backends, then those with few requests in flight.

use super::{Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "active-requests",
    formula: "1 when idle, else (max - in flight) / max x max-busy-score",
    source: "llm-d's active-request scorer",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["max-busy-score"],
    build: |params| Ok(Box::new(ActiveRequests { busy: params.share("max-busy-score", 1.0)? })),
};

#[derive(Debug)]
struct ActiveRequests {
    /// The best score of a backend with requests in flight.
    busy: f64,
}

impl Scorer for ActiveRequests {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let most = candidates.iter().map(|one| one.in_flight_by_weight()).fold(0.0, f64::max);
        each(candidates, scores, |one| {
            let is_idle = one.in_flight_by_weight() <= 0.0;
            Some(if is_idle { 1.0 } else { (most - one.in_flight_by_weight()) / most * self.busy })
        });
    }
}
