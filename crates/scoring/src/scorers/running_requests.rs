//! `running-requests`: prefers the smallest engine batch.

use super::{Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "running-requests",
    formula: "(max - running) / (max - min); 1 where all are equal",
    source: "llm-d",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| Ok(Box::new(RunningRequests)),
};

#[derive(Debug)]
struct RunningRequests;

impl Scorer for RunningRequests {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        least_is_best(candidates, scores, |one| one.running);
    }
}
