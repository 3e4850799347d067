//! Scorers that are a whole policy of their own; presets use them alone.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Scorer, ScorerRow, each, least_is_best};
use crate::scoring::candidate::{Ask, Candidate};

pub(super) const CACHE_AWARE: ScorerRow = ScorerRow {
    name: "cache-aware",
    formula: "while loads are uneven (max - min > imbalance and max > ratio x min), or no match is above threshold: least load is best; else leading blocks cached / blocks",
    source: "SGLang's cache-aware policy",
    unknown: "requests in flight stand in for the load; 0 where those are not told, either",
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

fn load(candidate: &Candidate) -> f64 {
    candidate.load.unwrap_or(candidate.in_flight)
}

impl Scorer for CacheAware {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let loads = || candidates.iter().map(load);
        let (least, most) = (loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
        let is_uneven = most - least > self.imbalance && most > self.ratio * least;
        let best = candidates.iter().map(|one| one.match_ratio()).fold(0.0, f64::max);
        if is_uneven || best <= self.threshold {
            least_is_best(candidates, scores, |one| Some(load(one)));
        } else {
            each(candidates, scores, |one| Some(one.match_ratio()));
        }
    }

    fn reads_prefixes(&self) -> bool {
        true
    }
}

pub(super) const BOUNDED_HASH: ScorerRow = ScorerRow {
    name: "bounded-hash",
    formula: "the hash of first block and name, as a part of 1, where load < bound x mean of the loads with this request; else 0",
    source: "consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), over a rendezvous hash",
    unknown: "requests in flight stand in for the load; 0 where those are not told, either",
    params: &["bound"],
    build: |params| Ok(Box::new(BoundedHash { bound: params.number_above("bound", 1.0, 1.25)? })),
};

#[derive(Debug)]
struct BoundedHash {
    bound: f64,
}

impl Scorer for BoundedHash {
    fn score(&self, ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let count = f64::from(u32::try_from(candidates.len().max(1)).unwrap_or(u32::MAX));
        let known = candidates.iter().map(load).filter(|load| !load.is_nan());
        let all = known.sum::<f64>() + 1.0;
        let room = (self.bound * all / count).ceil();
        each(candidates, scores, |one| {
            // Without a prompt there is no home: whoever has room is an equal, and has its turn.
            let rank = match ask.in_turn {
                true => u64::MAX,
                false => xxh3_64_with_seed(&one.key.to_le_bytes(), ask.first_block),
            };
            // The upper 32 bits, which a float holds exactly; never 0, so that a backend with room
            // is before one without.
            let part = (f64::from(u32::try_from(rank >> 32).unwrap_or(u32::MAX)) + 1.0)
                / (f64::from(u32::MAX) + 1.0);
            (!load(one).is_nan()).then(|| if load(one) + 1.0 <= room { part } else { 0.0 })
        });
    }

    fn reads_prompts(&self) -> bool {
        true
    }
}

pub(super) const BUSIEST: ScorerRow = ScorerRow {
    name: "busiest",
    formula: "load / max: the worst choice there is, for tests",
    source: "BLIS's always-busiest",
    unknown: "requests in flight stand in for the load; 0 where those are not told, either",
    params: &[],
    build: |_| Ok(Box::new(Busiest)),
};

#[derive(Debug)]
struct Busiest;

impl Scorer for Busiest {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let most = candidates.iter().map(load).fold(0.0, f64::max);
        each(candidates, scores, |one| Some(if most > 0.0 { load(one) / most } else { 1.0 }));
    }
}
