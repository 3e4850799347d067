//! `token-load`: prefers backends with few tokens in flight.

use super::{Needs, Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

/// Tokens in flight at which the score reaches 0, unless `limit` says otherwise.
const TOKENS_AT_ZERO: f64 = 4_194_304.0;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "token-load",
    formula: "1 - tokens in flight / limit",
    source: "llm-d",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["limit"],
    build: |params| {
        Ok(Box::new(TokenLoad { limit: params.number_above("limit", 0.0, TOKENS_AT_ZERO)? }))
    },
};

#[derive(Debug)]
struct TokenLoad {
    limit: f64,
}

impl Scorer for TokenLoad {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| Some(1.0 - one.tokens_in_flight / self.limit));
    }

    fn needs(&self) -> Needs {
        Needs::TOKENS
    }
}
