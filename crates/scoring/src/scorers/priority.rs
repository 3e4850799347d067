//! `priority`: prefers the configured priority, lower numbers first.

use super::{Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "priority",
    formula: "1 - min(priority, 100) / 100",
    source: "Nexus",
    unknown: "always known",
    params: &[],
    build: |_| Ok(Box::new(Priority)),
};

#[derive(Debug)]
struct Priority;

impl Scorer for Priority {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| Some(1.0 - f64::from(one.priority.min(100)) / 100.0));
    }
}
