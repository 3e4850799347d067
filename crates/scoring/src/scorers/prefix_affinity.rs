//! `prefix-affinity`: sends a prompt to a backend that has its beginning cached.

use super::{Needs, Scorer, ScorerRow, each};
use crate::prefix_params::PrefixParams;
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "prefix-affinity",
    formula: "leading blocks believed cached / full blocks of the prompt; 0 without a full block",
    source: "BLIS, llm-d",
    unknown: "0: nothing is believed cached",
    params: &["block-size", "capacity", "max-blocks"],
    build: |params| {
        // Validated here, used by the prefix index.
        PrefixParams::of_params(params)?;
        Ok(Box::new(PrefixAffinity))
    },
};

#[derive(Debug)]
struct PrefixAffinity;

impl Scorer for PrefixAffinity {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| Some(one.match_ratio()));
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES
    }
}
