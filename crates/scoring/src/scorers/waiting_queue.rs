//! `waiting-queue`: prefers the shortest engine queue.

use super::{Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "waiting-queue",
    formula: "(max - waiting) / (max - min); 1 where all are equal",
    source: "llm-d's queue scorer",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| Ok(Box::new(WaitingQueue)),
};

#[derive(Debug)]
struct WaitingQueue;

impl Scorer for WaitingQueue {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        least_is_best(candidates, scores, |one| one.waiting);
    }
}
