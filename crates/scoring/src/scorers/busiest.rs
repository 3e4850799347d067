//! `busiest`: the worst choice on purpose, to measure the value of routing.

use super::{Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "busiest",
    formula: "load / max: the worst choice there is, for tests",
    source: "BLIS's always-busiest",
    unknown: "the load is the requests in flight; 0 where those are unknown, too",
    params: &[],
    build: |_| Ok(Box::new(Busiest)),
};

#[derive(Debug)]
struct Busiest;

impl Scorer for Busiest {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let most = candidates.iter().map(Candidate::load_or_in_flight).fold(0.0, f64::max);
        each(candidates, scores, |one| {
            Some(if most > 0.0 { one.load_or_in_flight() / most } else { 1.0 })
        });
    }
}
