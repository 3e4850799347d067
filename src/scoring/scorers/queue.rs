//! Scorers that compare candidates by how many requests they have.

use super::{Scorer, ScorerRow, least_is_best};
use crate::scoring::candidate::{Ask, Candidate};

pub(super) const DEPTH: ScorerRow = ScorerRow {
    name: "queue-depth",
    formula: "(max - load) / (max - min), load = waiting + running + dispatched since; 1 where all are equal",
    source: "BLIS",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| Ok(Box::new(Least(|candidate| candidate.load))),
};

pub(super) const WAITING: ScorerRow = ScorerRow {
    name: "waiting-queue",
    formula: "(max - waiting) / (max - min); 1 where all are equal",
    source: "llm-d's queue scorer",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| Ok(Box::new(Least(|candidate| candidate.waiting))),
};

pub(super) const RUNNING: ScorerRow = ScorerRow {
    name: "running-requests",
    formula: "(max - running) / (max - min); 1 where all are equal",
    source: "llm-d",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| Ok(Box::new(Least(|candidate| candidate.running))),
};

#[derive(Debug)]
struct Least(fn(&Candidate) -> Option<f64>);

impl Scorer for Least {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        least_is_best(candidates, scores, self.0);
    }
}
