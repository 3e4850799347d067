//! `free-slot`: prefers backends that can start the request at once. With a weight above the sum of
//! all others it acts as a filter: a backend without a free slot is picked only if no other has
//! one.

use super::{Needs, Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "free-slot",
    formula: "1 if requests of the model < slots, else 0",
    source: "penstock",
    unknown: "0",
    params: &[],
    build: |_| Ok(Box::new(FreeSlot)),
};

#[derive(Debug)]
struct FreeSlot;

impl Scorer for FreeSlot {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| {
            one.has_free_slot().map(|is_free| f64::from(u8::from(is_free)))
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
    fn free_slot_scores_one() {
        let candidates =
            [(Some(1.0), Some(2.0)), (Some(2.0), Some(2.0)), (None, Some(1.0)), (None, None)].map(
                |(model_in_flight, slots)| Candidate {
                    model_in_flight,
                    slots,
                    ..Candidate::default()
                },
            );
        let mut scores = [0.5; 4];
        FreeSlot.score(&RequestFeatures::default(), &candidates, &mut scores);
        assert_eq!(scores[..3], [1.0, 0.0, 1.0]);
        assert!(scores[3].is_nan(), "how many it runs is not known");
    }
}
