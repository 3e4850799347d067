//! `sticky`: prefers backends that have most of the prompt cached, until they are too far behind
//! the others.

use super::{Needs, Scorer, ScorerRow, least_is_best};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

/// The least score of a backend with the prompt; those without it stay below.
const MIN_WARM: f64 = 0.5;
/// The best score of a backend without the prompt.
const MAX_COLD: f64 = 0.49;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "sticky",
    formula: "least is best of tokens waiting for prefill + the prompt's uncached tokens; backends with at least threshold of the prompt cached, and the home of the session, come first, unless the best of them is more than release seconds behind, at peak-prefill tokens per second",
    source: "llm-d's default since June 2026: affinity until saturated, then the token load",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["threshold", "peak-prefill", "release"],
    build: |params| {
        Ok(Box::new(Sticky {
            threshold: params.share("threshold", 0.8)?,
            peak_prefill: params.number_above("peak-prefill", 0.0, 15_928.0)?,
            release: params.number_above("release", 0.0, 18.0)?,
        }))
    },
};

#[derive(Debug)]
struct Sticky {
    threshold: f64,
    peak_prefill: f64,
    release: f64,
}

impl Scorer for Sticky {
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let cost = |one: &Candidate| one.prefill_tokens + features.new_tokens(one);
        let is_warm = |one: &Candidate| features.is_warm(one, self.threshold);
        let least = |warm: bool| {
            let group = candidates.iter().filter(|one| is_warm(one) == warm);
            group.map(cost).fold(f64::INFINITY, f64::min)
        };
        let (warm, cold) = (least(true), least(false));
        least_is_best(candidates, scores, |one| Some(cost(one)));
        let keeps = warm.is_finite() && (warm - cold) / self.peak_prefill <= self.release;
        // With one group only, the order by cost stands.
        if keeps && cold.is_finite() {
            for (score, one) in scores.iter_mut().zip(candidates) {
                *score =
                    if is_warm(one) { MIN_WARM + MIN_WARM * *score } else { MAX_COLD * *score };
            }
        }
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES.with(Needs::TOKENS).with(Needs::HOMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Params;

    fn scores(waiting: [f64; 2]) -> [f64; 2] {
        let candidate = |matched_blocks, prefill_tokens| Candidate {
            prompt_blocks: 100,
            matched_blocks,
            prefill_tokens,
            ..Candidate::default()
        };
        let candidates = [candidate(90, waiting[0]), candidate(0, waiting[1])];
        let features =
            RequestFeatures { prompt_tokens: 1600, block_tokens: 16, ..RequestFeatures::default() };
        let mut scores = [0.0; 2];
        ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
        scores
    }

    #[test]
    fn backend_with_the_prompt_is_kept_until_it_is_18_seconds_behind() {
        let [warm, cold] = scores([0.0, 0.0]);
        assert!(warm > cold);
        let [warm, cold] = scores([280_000.0, 0.0]);
        assert!(warm > cold, "17.5 s behind");
        let [warm, cold] = scores([300_000.0, 0.0]);
        assert!(warm < cold, "18.7 s behind");
    }
}
