//! The scorers. Those of one formula are rows in `simple.rs`; the others have one file per kind:
//! `free_slot.rs` holds `FreeSlot`, configured as `free-slot`. A new one is a row or a file, and a
//! line in [`SCORERS`].

mod bounded_hash;
mod cache_aware;
mod free_slot;
mod kv_utilization;
mod resident;
mod session_affinity;
mod simple;
mod slo_headroom;
mod sticky;

use super::params::{ParamError, Params};
use super::readings::Candidate;
use super::request::RequestFeatures;

/// Scores how well each candidate suits a request.
pub trait Scorer: std::fmt::Debug + Send + Sync {
    /// Fills in one score per candidate, in their order: 0..=1, 1 is best, NaN is unknown. `scores`
    /// is as long as `candidates`.
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]);

    /// The readings it needs besides those that every decision takes.
    fn needs(&self) -> Needs {
        Needs::NONE
    }
}

/// Readings that cost something to take. They are taken only for scorers that use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs(u16);

impl Needs {
    pub const NONE: Self = Self(0);
    /// The hashes of the prompt's blocks.
    pub const PROMPTS: Self = Self(1);
    /// The cached part of the prompt on each candidate; implies [`Needs::PROMPTS`].
    pub const PREFIXES: Self = Self(1 << 1 | 1);
    pub const TOKENS: Self = Self(1 << 2);
    /// Times to first token.
    pub const LATENCIES: Self = Self(1 << 3);
    /// The state of the request's adapter.
    pub const ADAPTERS: Self = Self(1 << 4);
    /// The latency that the strategy `smart` scores by.
    pub const RESPONSE_TIMES: Self = Self(1 << 5);
    /// The state of the model in memory, and its free slots.
    pub const RESIDENCY: Self = Self(1 << 6);
    /// The predictions for the request.
    pub const PREDICTIONS: Self = Self(1 << 7);
    /// The home of the session; the scorer decides how it counts.
    pub const HOMES: Self = Self(1 << 8);
    /// Copies of popular prompts on more backends: the scorer weighs one request alone.
    pub const COPIES: Self = Self(1 << 9);
    /// The further readings that a recorded decision keeps. Not the prefixes: ties between equals
    /// are broken by them, so reading them would change the decision.
    pub const RECORDED: Self = Self(
        Self::TOKENS.0
            | Self::LATENCIES.0
            | Self::ADAPTERS.0
            | Self::RESPONSE_TIMES.0
            | Self::RESIDENCY.0,
    );

    /// The union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` are among them.
    #[inline(always)]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A scorer as a row: its configuration, documentation and constructor.
#[derive(Debug)]
pub struct ScorerRow {
    /// The name it is configured by.
    pub name: &'static str,
    pub formula: &'static str,
    /// The source of the formula.
    pub source: &'static str,
    /// Its score of unknown readings.
    pub unknown: &'static str,
    pub params: &'static [&'static str],
    pub build: fn(&Params) -> Result<Box<dyn Scorer>, ParamError>,
}

impl ScorerRow {
    /// Builds the scorer with these parameters.
    ///
    /// # Errors
    /// [`ParamError`] for an unknown parameter or an invalid value.
    pub fn make(&self, params: &Params) -> Result<Box<dyn Scorer>, ParamError> {
        params.only(self.params)?;
        (self.build)(params)
    }
}

pub const SCORERS: &[ScorerRow] = &[
    simple::PREFIX_AFFINITY,
    simple::QUEUE_DEPTH,
    kv_utilization::ROW,
    simple::LOAD_BALANCE,
    simple::WAITING_QUEUE,
    simple::RUNNING_REQUESTS,
    simple::ACTIVE_REQUESTS,
    simple::TOKEN_LOAD,
    simple::PREFILL_COST,
    simple::NEW_PREFILL_BATCH,
    simple::LORA_AFFINITY,
    session_affinity::ROW,
    simple::PRIORITY,
    simple::LATENCY,
    resident::ROW,
    free_slot::ROW,
    cache_aware::ROW,
    sticky::ROW,
    bounded_hash::ROW,
    slo_headroom::ROW,
    simple::BUSIEST,
];

/// Scores each candidate independently of the others.
fn each(candidates: &[Candidate], scores: &mut [f64], score: impl Fn(&Candidate) -> Option<f64>) {
    for (slot, candidate) in scores.iter_mut().zip(candidates) {
        *slot = score(candidate).unwrap_or(f64::NAN);
    }
}

/// Scores by `(max - x) / (max - min)`: 1 for the least, 0 for the most, 1 for all when they are
/// equal. Unknown readings are ignored for both bounds.
fn least_is_best(
    candidates: &[Candidate],
    scores: &mut [f64],
    read: impl Fn(&Candidate) -> Option<f64>,
) {
    each(candidates, scores, read);
    let known = scores.iter().copied().filter(|value| !value.is_nan());
    let (least, most) = known.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (value.min(least), value.max(most))
    });
    let width = most - least;
    for slot in scores.iter_mut().filter(|slot| !slot.is_nan()) {
        *slot = if width > 0.0 { (most - *slot) / width } else { 1.0 };
    }
}
