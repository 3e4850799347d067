//! `resident`: prefers backends that have the model in memory, then those that can load it at the
//! least cost to others.

use super::{Needs, Scorer, ScorerRow, each};
use crate::reading_values::{Eviction, Residency};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "resident",
    formula: "1 in memory, 0.7 asleep; else 0.4 if loading it evicts nothing, 0.2 idle models, 0 one in use",
    source: "penstock",
    unknown: "0",
    params: &[],
    build: |_| Ok(Box::new(Resident)),
};

#[derive(Debug)]
struct Resident;

impl Scorer for Resident {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| match (one.residency, one.eviction) {
            (Residency::Unknown, _) => None,
            (Residency::Resident, _) => Some(1.0),
            (Residency::Sleeping, _) => Some(0.7),
            (Residency::Loadable, Eviction::Nothing) => Some(0.4),
            (Residency::Loadable, Eviction::Idle) => Some(0.2),
            (Residency::Loadable, Eviction::InUse) => Some(0.0),
        });
    }

    fn needs(&self) -> Needs {
        Needs::RESIDENCY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_model_scores_one_and_loading_less_the_more_it_pushes_out() {
        let all = [
            (Residency::Resident, Eviction::Nothing),
            (Residency::Sleeping, Eviction::Nothing),
            (Residency::Loadable, Eviction::Nothing),
            (Residency::Loadable, Eviction::Idle),
            (Residency::Loadable, Eviction::InUse),
            (Residency::Unknown, Eviction::Idle),
        ];
        let candidates = all.map(|(residency, eviction)| Candidate {
            residency,
            eviction,
            ..Candidate::default()
        });
        let mut scores = [0.5; 6];
        Resident.score(&RequestFeatures::default(), &candidates, &mut scores);
        assert_eq!(scores[..5], [1.0, 0.7, 0.4, 0.2, 0.0]);
        assert!(scores[5].is_nan());
    }
}
