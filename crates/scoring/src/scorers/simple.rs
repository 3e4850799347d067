//! The scorers of one formula. Each row holds its formula as text for users and as code.

use std::fmt;

use super::{Needs, Scorer, ScorerRow, each, least_is_best};
use crate::params::ParamError;
use crate::prefix_params::PrefixParams;
use crate::reading_values::Adapter;
use crate::readings::Candidate;
use crate::request::RequestFeatures;

/// Tokens in flight at which `token-load` reaches 0, unless `limit` says otherwise.
const TOKENS_AT_ZERO: f64 = 4_194_304.0;

/// Prefers the backend with the longest cached beginning of the prompt.
pub(super) const PREFIX_AFFINITY: ScorerRow = ScorerRow {
    name: "prefix-affinity",
    formula: "leading blocks believed cached / full blocks of the prompt; 0 without a full block",
    source: "BLIS, llm-d",
    unknown: "0: nothing is believed cached",
    params: &["block-size", "capacity", "max-blocks"],
    build: |params| {
        // Validated here, used by the prefix index.
        PrefixParams::of_params(params)?;
        each_by(Needs::PREFIXES, |one| Some(one.match_ratio()))
    },
};

/// Prefers the least effective load among the candidates.
pub(super) const QUEUE_DEPTH: ScorerRow = ScorerRow {
    name: "queue-depth",
    formula: "(max - load) / (max - min), load = waiting + running + dispatched since; 1 where all are equal",
    source: "BLIS",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| least_by(Needs::NONE, |_, one| one.load_by_weight()),
};

/// Prefers the least effective load, on an absolute scale.
pub(super) const LOAD_BALANCE: ScorerRow = ScorerRow {
    name: "load-balance",
    formula: "1 / (1 + load), load = waiting + running + dispatched since",
    source: "BLIS",
    unknown: "0",
    params: &[],
    build: |_| each_by(Needs::NONE, |one| Some(1.0 / (1.0 + one.load_by_weight()?))),
};

/// Prefers the shortest engine queue.
pub(super) const WAITING_QUEUE: ScorerRow = ScorerRow {
    name: "waiting-queue",
    formula: "(max - waiting) / (max - min); 1 where all are equal",
    source: "llm-d's queue scorer",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| least_by(Needs::NONE, |_, one| one.waiting),
};

/// Prefers the smallest engine batch.
pub(super) const RUNNING_REQUESTS: ScorerRow = ScorerRow {
    name: "running-requests",
    formula: "(max - running) / (max - min); 1 where all are equal",
    source: "llm-d",
    unknown: "0, and not part of min and max",
    params: &[],
    build: |_| least_by(Needs::NONE, |_, one| one.running),
};

/// Prefers idle backends, then those with few requests in flight. `max-busy-score` is the best
/// score of a backend with requests in flight.
pub(super) const ACTIVE_REQUESTS: ScorerRow = ScorerRow {
    name: "active-requests",
    formula: "1 when idle, else (max - in flight) / max x max-busy-score",
    source: "llm-d's active-request scorer",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["max-busy-score"],
    build: |params| {
        let max_busy_score = params.share("max-busy-score", 1.0)?;
        formula(Needs::NONE, move |_, candidates, scores| {
            let most = candidates.iter().map(|one| one.in_flight_by_weight()).fold(0.0, f64::max);
            each(candidates, scores, |one| {
                let in_flight = one.in_flight_by_weight();
                let is_idle = in_flight <= 0.0;
                // A backend that is not idle makes `most` more than 0.
                Some(if is_idle { 1.0 } else { (most - in_flight) / most * max_busy_score })
            });
        })
    },
};

/// Prefers backends with few tokens in flight.
pub(super) const TOKEN_LOAD: ScorerRow = ScorerRow {
    name: "token-load",
    formula: "1 - tokens in flight / limit",
    source: "llm-d",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["limit"],
    build: |params| {
        let limit = params.number_above("limit", 0.0, TOKENS_AT_ZERO)?;
        each_by(Needs::TOKENS, move |one| Some(1.0 - one.tokens_in_flight / limit))
    },
};

/// Prefers the backend with the least prefill and decode work.
pub(super) const PREFILL_COST: ScorerRow = ScorerRow {
    name: "prefill-cost",
    formula: "least is best of prefill-weight x (tokens waiting for prefill + the prompt's uncached tokens) + tokens in flight, both in blocks",
    source: "NVIDIA Dynamo's KV router cost",
    unknown: "counted here; 0 where `penstock score` is not given them",
    params: &["prefill-weight"],
    build: |params| {
        let weight = params.number_above("prefill-weight", 0.0, 1.0)?;
        least_by(Needs::PREFIXES.with(Needs::TOKENS), move |features, one| {
            let block = f64::from(features.block_tokens.max(1));
            let prefill = one.prefill_tokens + features.new_tokens(one);
            Some(weight * (prefill / block) + one.tokens_in_flight / block)
        })
    },
};

/// Prefers the least product of uncached tokens and batch size.
pub(super) const NEW_PREFILL_BATCH: ScorerRow = ScorerRow {
    name: "new-prefill-batch",
    formula: "least is best of (tokens waiting for prefill + the prompt's uncached tokens) x (load + 1)",
    source: "LMetric (arXiv 2603.15202)",
    unknown: "the load is the requests in flight; 0 where those are unknown, too",
    params: &[],
    build: |_| {
        least_by(Needs::PREFIXES.with(Needs::TOKENS), |features, one| {
            // Plus one: a fully cached prompt still costs its batch.
            let tokens = one.prefill_tokens + features.new_tokens(one) + 1.0;
            Some(tokens * (one.load_or_in_flight() + 1.0))
        })
    },
};

/// Sends a request to a backend that has its adapter loaded.
pub(super) const LORA_AFFINITY: ScorerRow = ScorerRow {
    name: "lora-affinity",
    formula: "1 where the adapter is in use, 0.8 with a free slot, 0.6 where requests wait for it, else 0",
    source: "llm-d",
    unknown: "0",
    params: &[],
    build: |_| {
        each_by(Needs::ADAPTERS, |one| match one.adapter {
            Adapter::Unknown => None,
            Adapter::Active => Some(1.0),
            Adapter::FreeSlot => Some(0.8),
            Adapter::Waiting => Some(0.6),
            Adapter::Absent => Some(0.0),
        })
    },
};

/// Prefers the configured priority, lower numbers first.
pub(super) const PRIORITY: ScorerRow = ScorerRow {
    name: "priority",
    formula: "1 - min(priority, 100) / 100",
    source: "Nexus",
    unknown: "always known",
    params: &[],
    build: |_| each_by(Needs::NONE, |one| Some(1.0 - f64::from(one.priority.min(100)) / 100.0)),
};

/// Prefers backends with a low time to first token (peak EWMA).
pub(super) const LATENCY: ScorerRow = ScorerRow {
    name: "latency",
    formula: "least is best of TTFT x (in flight + 1), where TTFT is an average that follows rises at once and falls to 1/e in 10 s",
    source: "peak EWMA of Finagle's load balancers, with TTFT as the response time",
    unknown: "the TTFT of the fastest backend: a backend without requests has none",
    params: &[],
    build: |_| {
        formula(Needs::LATENCIES, |_, candidates, scores| {
            let known = candidates.iter().filter_map(|one| one.first_token_ms);
            let fastest = known.fold(f64::INFINITY, f64::min);
            let fastest = if fastest.is_finite() { fastest } else { 1.0 };
            least_is_best(candidates, scores, |one| {
                // An unknown count of requests in flight (NaN) counts as none here.
                Some(one.first_token_ms.unwrap_or(fastest) * (one.in_flight.max(0.0) + 1.0))
            });
        })
    },
};

/// The worst choice on purpose, to measure the value of routing.
pub(super) const BUSIEST: ScorerRow = ScorerRow {
    name: "busiest",
    formula: "load / max: the worst choice there is, for tests",
    source: "BLIS's always-busiest",
    unknown: "the load is the requests in flight; 0 where those are unknown, too",
    params: &[],
    build: |_| {
        formula(Needs::NONE, |_, candidates, scores| {
            let most = candidates.iter().map(Candidate::load_or_in_flight).fold(0.0, f64::max);
            each(candidates, scores, |one| {
                Some(if most > 0.0 { one.load_or_in_flight() / most } else { 1.0 })
            });
        })
    },
};

/// A scorer that consists of its formula and the readings that the formula takes. The formula is a
/// type parameter: a pointer to a function would cost a call for each candidate.
struct Formula<F> {
    needs: Needs,
    score: F,
}

impl<F> Scorer for Formula<F>
where
    F: Fn(&RequestFeatures, &[Candidate], &mut [f64]) + Send + Sync,
{
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        (self.score)(features, candidates, scores);
    }

    fn needs(&self) -> Needs {
        self.needs
    }
}

impl<F> fmt::Debug for Formula<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Formula").field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Makes a scorer of a formula over all candidates.
fn formula<F>(needs: Needs, score: F) -> Result<Box<dyn Scorer>, ParamError>
where
    F: Fn(&RequestFeatures, &[Candidate], &mut [f64]) + Send + Sync + 'static,
{
    Ok(Box::new(Formula { needs, score }))
}

/// Makes a scorer that scores each candidate independently of the others.
fn each_by<F>(needs: Needs, score: F) -> Result<Box<dyn Scorer>, ParamError>
where
    F: Fn(&Candidate) -> Option<f64> + Send + Sync + 'static,
{
    formula(needs, move |_, candidates, scores| each(candidates, scores, &score))
}

/// Makes a scorer that prefers the candidate with the least value.
fn least_by<F>(needs: Needs, read: F) -> Result<Box<dyn Scorer>, ParamError>
where
    F: Fn(&RequestFeatures, &Candidate) -> Option<f64> + Send + Sync + 'static,
{
    formula(needs, move |features, candidates, scores| {
        least_is_best(candidates, scores, |one| read(features, one));
    })
}
