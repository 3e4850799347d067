//! `load-balance`: prefers the least effective load, on an absolute scale.

use super::{Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "load-balance",
    formula: "1 / (1 + load), load = waiting + running + dispatched since",
    source: "BLIS",
    unknown: "0",
    params: &[],
    build: |_| Ok(Box::new(LoadBalance)),
};

#[derive(Debug)]
struct LoadBalance;

impl Scorer for LoadBalance {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| Some(1.0 / (1.0 + one.load_by_weight()?)));
    }
}
