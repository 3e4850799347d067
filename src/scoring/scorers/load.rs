//! Scorers that look at each candidate by itself: how full, how busy, how preferred it is.

use super::{Scorer, ScorerRow, each};
use crate::scoring::candidate::{Ask, Candidate};

/// Tokens in flight at which `token-load` reaches 0.
const TOKENS_AT_ZERO: f64 = 4_194_304.0;

pub(super) const KV_UTILIZATION: ScorerRow = ScorerRow {
    name: "kv-utilization",
    formula: "1 - the part of the KV cache in use",
    source: "BLIS, llm-d",
    unknown: "0; of a stale engine the median of the others stands in",
    params: &[],
    build: |_| Ok(Box::new(Own(|candidate| Some(1.0 - candidate.kv_utilization?)))),
};

pub(super) const BALANCE: ScorerRow = ScorerRow {
    name: "load-balance",
    formula: "1 / (1 + load), load = waiting + running + dispatched since",
    source: "BLIS",
    unknown: "0",
    params: &[],
    build: |_| Ok(Box::new(Own(|candidate| Some(1.0 / (1.0 + candidate.load?))))),
};

pub(super) const PRIORITY: ScorerRow = ScorerRow {
    name: "priority",
    formula: "1 - min(priority, 100) / 100",
    source: "Nexus",
    unknown: "always known",
    params: &[],
    build: |_| Ok(Box::new(Own(|one| Some(1.0 - f64::from(one.priority.min(100)) / 100.0)))),
};

#[derive(Debug)]
struct Own(fn(&Candidate) -> Option<f64>);

impl Scorer for Own {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, self.0);
    }
}

pub(super) const TOKENS: ScorerRow = ScorerRow {
    name: "token-load",
    formula: "1 - tokens in flight / limit",
    source: "llm-d",
    unknown: "counted here; 0 where `penstock score` is not told",
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
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| Some(1.0 - one.tokens_in_flight / self.limit));
    }

    fn reads_tokens(&self) -> bool {
        true
    }
}

pub(super) const ACTIVE: ScorerRow = ScorerRow {
    name: "active-requests",
    formula: "1 when idle, else (max - in flight) / max x max-busy-score",
    source: "llm-d's active-request scorer",
    unknown: "counted here; 0 where `penstock score` is not told",
    params: &["max-busy-score"],
    build: |params| Ok(Box::new(ActiveRequests { busy: params.share("max-busy-score", 1.0)? })),
};

#[derive(Debug)]
struct ActiveRequests {
    /// The most a backend with requests in flight can get.
    busy: f64,
}

impl Scorer for ActiveRequests {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let most = candidates.iter().map(|one| one.in_flight).fold(0.0, f64::max);
        each(candidates, scores, |one| {
            let is_idle = one.in_flight <= 0.0;
            Some(if is_idle { 1.0 } else { (most - one.in_flight) / most * self.busy })
        });
    }
}
