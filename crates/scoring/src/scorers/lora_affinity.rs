//! `lora-affinity`: sends a request to a backend that has its adapter loaded.

use super::{Needs, Scorer, ScorerRow, each};
use crate::reading_values::Adapter;
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "lora-affinity",
    formula: "1 where the adapter is in use, 0.8 with a free slot, 0.6 where requests wait for it, else 0",
    source: "llm-d",
    unknown: "0",
    params: &[],
    build: |_| Ok(Box::new(LoraAffinity)),
};

#[derive(Debug)]
struct LoraAffinity;

impl Scorer for LoraAffinity {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| match one.adapter {
            Adapter::Unknown => None,
            Adapter::Active => Some(1.0),
            Adapter::FreeSlot => Some(0.8),
            Adapter::Waiting => Some(0.6),
            Adapter::Absent => Some(0.0),
        });
    }

    fn needs(&self) -> Needs {
        Needs::ADAPTERS
    }
}
