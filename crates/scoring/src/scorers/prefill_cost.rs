//! `prefill-cost`: prefers the backend with the least prefill and decode work.

use super::{Needs, Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "prefill-cost",
    formula: "least is best of prefill-weight x (tokens waiting for prefill + the prompt's uncached tokens) + tokens in flight, both in blocks",
    source: "NVIDIA Dynamo's KV router cost",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["prefill-weight"],
    build: |params| {
        Ok(Box::new(PrefillCost { weight: params.number_above("prefill-weight", 0.0, 1.0)? }))
    },
};

#[derive(Debug)]
struct PrefillCost {
    weight: f64,
}

impl Scorer for PrefillCost {
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let block = f64::from(features.block_tokens.max(1));
        least_is_best(candidates, scores, |one| {
            let prefill = one.prefill_tokens + features.new_tokens(one);
            Some(self.weight * (prefill / block) + one.tokens_in_flight / block)
        });
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES.with(Needs::TOKENS)
    }
}
