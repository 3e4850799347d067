//! `new-prefill-batch`: prefers the least product of uncached tokens and batch size.

use super::{Needs, Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "new-prefill-batch",
    formula: "least is best of (tokens waiting for prefill + the prompt's uncached tokens) x (load + 1)",
    source: "LMetric (arXiv 2603.15202)",
    unknown: "the load is the requests in flight; 0 where those are unknown, too",
    params: &[],
    build: |_| Ok(Box::new(NewPrefillBatch)),
};

#[derive(Debug)]
struct NewPrefillBatch;

impl Scorer for NewPrefillBatch {
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        least_is_best(candidates, scores, |one| {
            // Plus one: a fully cached prompt still costs its batch.
            let tokens = one.prefill_tokens + features.new_tokens(one) + 1.0;
            Some(tokens * (one.load_or_in_flight() + 1.0))
        });
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES.with(Needs::TOKENS)
    }
}
