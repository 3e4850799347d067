//! Scorers that weigh the work a request would cause where it goes.

use super::{Scorer, ScorerRow, least_is_best};
use crate::scoring::candidate::{Ask, Candidate};

pub(super) const COST: ScorerRow = ScorerRow {
    name: "prefill-cost",
    formula: "least is best of prefill-weight x (tokens waiting for prefill + the prompt's uncached tokens) + tokens in flight, both in blocks",
    source: "NVIDIA Dynamo's KV router cost",
    unknown: "counted here; 0 where `penstock score` is not told",
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
    fn score(&self, ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let block = f64::from(ask.block_tokens.max(1));
        least_is_best(candidates, scores, |one| {
            let prefill = one.prefill_tokens + ask.new_tokens(one);
            Some(self.weight * (prefill / block) + one.tokens_in_flight / block)
        });
    }

    fn reads_prefixes(&self) -> bool {
        true
    }

    fn reads_tokens(&self) -> bool {
        true
    }
}

pub(super) const BATCH: ScorerRow = ScorerRow {
    name: "new-prefill-batch",
    formula: "least is best of (tokens waiting for prefill + the prompt's uncached tokens) x (load + 1)",
    source: "LMetric (arXiv 2603.15202)",
    unknown: "requests in flight stand in for the load; 0 where those are not told, either",
    params: &[],
    build: |_| Ok(Box::new(NewPrefillBatch)),
};

#[derive(Debug)]
struct NewPrefillBatch;

impl Scorer for NewPrefillBatch {
    fn score(&self, ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        least_is_best(candidates, scores, |one| {
            // One more token than there may be: a prompt that is cached whole still costs its batch.
            let tokens = one.prefill_tokens + ask.new_tokens(one) + 1.0;
            Some(tokens * (one.load.unwrap_or(one.in_flight) + 1.0))
        });
    }

    fn reads_prefixes(&self) -> bool {
        true
    }

    fn reads_tokens(&self) -> bool {
        true
    }
}
