//! `queue-depth`: prefers the least effective load among the candidates.

use super::{Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "queue-depth",
    formula: "(max - load) / (max - min), load = waiting + running + dispatched since; 1 where all are equal",
    source: "BLIS",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| Ok(Box::new(QueueDepth)),
};

#[derive(Debug)]
struct QueueDepth;

impl Scorer for QueueDepth {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        least_is_best(candidates, scores, Candidate::load_by_weight);
    }
}
