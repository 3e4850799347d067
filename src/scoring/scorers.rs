//! The scorers, one file per kind. A new one is a file and a row in [`SCORERS`].

mod affinity;
mod latency;
mod load;
mod prefill;
mod presets;
mod queue;

use super::candidate::{Ask, Candidate};
use super::params::{ParamError, Params};

/// Says how well each candidate suits a request.
pub trait Scorer: std::fmt::Debug + Send + Sync {
    /// Fills in one score per candidate, in their order: 0..=1, 1 is best, NaN is not known. `scores`
    /// is as long as `candidates`.
    fn score(&self, ask: &Ask, candidates: &[Candidate], scores: &mut [f64]);

    /// Whether it reads how much of a prompt is cached where, so that somebody must keep track.
    fn reads_prefixes(&self) -> bool {
        false
    }

    /// Whether it reads which prompt it is.
    fn reads_prompts(&self) -> bool {
        self.reads_prefixes()
    }

    /// Whether it reads how many tokens are in flight.
    fn reads_tokens(&self) -> bool {
        false
    }

    /// Whether it reads how long first tokens take.
    fn reads_latencies(&self) -> bool {
        false
    }
}

/// Everything there is to say about a scorer.
#[derive(Debug)]
pub struct ScorerRow {
    /// The name it is configured by.
    pub name: &'static str,
    /// Its formula.
    pub formula: &'static str,
    /// Where that comes from.
    pub source: &'static str,
    /// What it makes of readings that are not known.
    pub unknown: &'static str,
    /// Its own parameters.
    pub params: &'static [&'static str],
    /// Makes one.
    pub build: fn(&Params) -> Result<Box<dyn Scorer>, ParamError>,
}

impl ScorerRow {
    /// Makes one with these parameters.
    ///
    /// # Errors
    /// [`ParamError`] when it does not have one of them, or a value does not fit.
    pub fn make(&self, params: &Params) -> Result<Box<dyn Scorer>, ParamError> {
        params.only(self.params)?;
        (self.build)(params)
    }
}

/// Every scorer.
pub const SCORERS: &[ScorerRow] = &[
    affinity::PREFIX,
    queue::DEPTH,
    load::KV_UTILIZATION,
    load::BALANCE,
    queue::WAITING,
    queue::RUNNING,
    load::ACTIVE,
    load::TOKENS,
    prefill::COST,
    prefill::BATCH,
    affinity::LORA,
    affinity::SESSION,
    load::PRIORITY,
    latency::LATENCY,
    presets::CACHE_AWARE,
    presets::BOUNDED_HASH,
    presets::BUSIEST,
];

/// Scores every candidate by itself.
fn each(candidates: &[Candidate], scores: &mut [f64], score: impl Fn(&Candidate) -> Option<f64>) {
    for (slot, candidate) in scores.iter_mut().zip(candidates) {
        *slot = score(candidate).unwrap_or(f64::NAN);
    }
}

/// Scores by `(max - x) / (max - min)`: 1 for the least, 0 for the most, 1 for all where they are
/// equal. What is not known stays out of both.
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
