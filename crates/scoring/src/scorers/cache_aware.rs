//! `cache-aware`: SGLang's policy as one scorer.

use super::{Needs, Scorer, ScorerRow, each, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "cache-aware",
    formula: "while loads are uneven (max - min > imbalance and max > ratio x min), or no match is above threshold: least load is best; else leading blocks cached / blocks",
    source: "SGLang's cache-aware policy",
    unknown: "the load is the requests in flight; 0 where those are unknown, too",
    params: &["imbalance", "ratio", "threshold"],
    build: |params| {
        Ok(Box::new(CacheAware {
            imbalance: params.number_above("imbalance", 0.0, 32.0)?,
            ratio: params.number_above("ratio", 1.0, 1.1)?,
            threshold: params.share("threshold", 0.5)?,
        }))
    },
};

#[derive(Debug)]
struct CacheAware {
    imbalance: f64,
    ratio: f64,
    threshold: f64,
}

impl Scorer for CacheAware {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let loads = candidates.iter().map(Candidate::load_or_in_flight);
        // `f64::min` and `f64::max` skip unknown loads (NaN).
        let least = loads.clone().fold(f64::INFINITY, f64::min);
        let most = loads.fold(0.0, f64::max);
        let is_uneven = most - least > self.imbalance && most > self.ratio * least;
        let best = candidates.iter().map(|one| one.match_ratio()).fold(0.0, f64::max);
        if is_uneven || best <= self.threshold {
            least_is_best(candidates, scores, |one| Some(one.load_or_in_flight()));
        } else {
            each(candidates, scores, |one| Some(one.match_ratio()));
        }
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES
    }
}
