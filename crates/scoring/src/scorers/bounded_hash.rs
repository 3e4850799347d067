//! `bounded-hash`: consistent hashing of prompts with bounded loads.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Needs, Scorer, ScorerRow, each};
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "bounded-hash",
    formula: "the hash of first block and name, as a part of 1, where load < bound x mean of the loads with this request; else 0",
    source: "consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), over a rendezvous hash",
    unknown: "the load is the requests in flight; 0 where those are unknown, too",
    params: &["bound"],
    build: |params| Ok(Box::new(BoundedHash { bound: params.number_above("bound", 1.0, 1.25)? })),
};

#[derive(Debug)]
struct BoundedHash {
    bound: f64,
}

impl Scorer for BoundedHash {
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let count = f64::from(u32::try_from(candidates.len().max(1)).unwrap_or(u32::MAX));
        let known = candidates.iter().map(Candidate::load_or_in_flight);
        // The request itself counts: an idle fleet would otherwise have no room.
        let all = known.filter(|load| !load.is_nan()).sum::<f64>() + 1.0;
        let room = (self.bound * all / count).ceil();
        each(candidates, scores, |one| {
            let load = one.load_or_in_flight();
            // A request without a prompt hashes to no backend: all with room are equal and take
            // turns.
            let rank = match features.in_turn {
                true => u64::MAX,
                false => xxh3_64_with_seed(&one.key.to_le_bytes(), features.first_block),
            };
            // The upper 32 bits, which a float holds exactly; never 0, so that a backend with room
            // ranks above one without.
            let part = (f64::from(u32::try_from(rank >> 32).unwrap_or(u32::MAX)) + 1.0)
                / (f64::from(u32::MAX) + 1.0);
            (!load.is_nan()).then_some(if load + 1.0 <= room { part } else { 0.0 })
        });
    }

    fn needs(&self) -> Needs {
        Needs::PROMPTS
    }
}
