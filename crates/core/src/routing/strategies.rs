//! The strategies: each picks one of the candidates that passed the filters. A new one is a file
//! here, an arm in [`Rules::pick`] and a row of the config enum.

mod copies;
mod deployment;
mod exploration;
mod home;
mod laggards;
mod priority_only;
mod random;
mod round_robin;
pub(super) mod smart;
pub(super) mod weighted;

pub(super) use deployment::Placement;

use penstock_api::units::Timestamp;
use penstock_config::{Strategy, Weights};
use penstock_scoring::Candidate;

use super::random::RandomSource;
use super::record::ScoreRecord;
use super::scratch::Rows;
use crate::fleet::{ModelId, Serving};

/// The readings of a candidate for strategies without scorers: live from the backend, or recorded.
pub(super) trait Reading {
    /// True if weights may differ; if not, they are not even read.
    const HAS_WEIGHTS: bool;

    fn row(&self) -> u32;
    /// Its priority; lower is better.
    fn priority(&self) -> u32;
    /// Requests in flight, scaled by its weight.
    fn in_flight(&self) -> u32;
    /// Its weight; equal for all if the model has no weights.
    fn weight(&self) -> u32;
    /// The latency that `smart` scores, in microseconds.
    fn latency_micros(&self) -> u32;
    /// The state of the model there.
    fn placement(&self) -> Placement;
    /// A count, scaled by its weight.
    fn by_weight(&self, count: u32) -> u32;
}

/// A backend that is read during the pass. `HAS_WEIGHTS`: true if the backends of its model differ
/// in weight. Known before the pass; otherwise every candidate would be tested for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveReading<'a, const HAS_WEIGHTS: bool> {
    pub(super) row: u32,
    pub(super) serving: &'a Serving,
    pub(super) is_streaming: bool,
    pub(super) now: Timestamp,
}

impl<const HAS_WEIGHTS: bool> Reading for LiveReading<'_, HAS_WEIGHTS> {
    const HAS_WEIGHTS: bool = HAS_WEIGHTS;

    #[inline(always)]
    fn row(&self) -> u32 {
        self.row
    }

    #[inline(always)]
    fn priority(&self) -> u32 {
        self.serving.priority
    }

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.by_weight(self.serving.state.load.counted())
    }

    #[inline(always)]
    fn weight(&self) -> u32 {
        if HAS_WEIGHTS { self.serving.weight } else { 1 }
    }

    #[inline(always)]
    fn latency_micros(&self) -> u32 {
        smart::latency_micros(self.serving, self.is_streaming, self.now)
    }

    #[inline(always)]
    fn placement(&self) -> Placement {
        Placement::of(self.serving, self.now)
    }

    #[inline(always)]
    fn by_weight(&self, count: u32) -> u32 {
        if HAS_WEIGHTS { self.serving.by_weight(count) } else { count }
    }
}

impl Reading for &Candidate {
    const HAS_WEIGHTS: bool = true;

    fn row(&self) -> u32 {
        self.row
    }

    fn priority(&self) -> u32 {
        self.priority
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count")]
    fn in_flight(&self) -> u32 {
        self.by_weight(self.in_flight as u32)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a weight")]
    fn by_weight(&self, count: u32) -> u32 {
        match (self.weight, self.most_weight) {
            (Some(weight), Some(most)) => {
                let scaled = u64::from(count) * most as u64 / (weight as u64).max(1);
                u32::try_from(scaled).unwrap_or(u32::MAX)
            }
            _ => count,
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count")]
    fn weight(&self) -> u32 {
        self.weight.map_or(1, |weight| weight as u32).max(1)
    }

    fn latency_micros(&self) -> u32 {
        u32::try_from(self.latency.0).unwrap_or(u32::MAX)
    }

    fn placement(&self) -> Placement {
        Placement::recorded(self)
    }
}

/// Adds all candidates to `rows`, with their weights if any.
#[inline(always)]
fn collect<R: Reading>(candidates: impl Iterator<Item = R>, rows: &mut Rows<'_>) {
    candidates.for_each(|one| {
        if R::HAS_WEIGHTS {
            rows.add_weighted(one.row(), one.weight())
        } else {
            rows.add(one.row())
        }
    });
}

#[derive(Debug)]
pub(super) struct Picked {
    pub(super) row: u32,
    pub(super) candidates: u32,
    /// The turn that was taken, if one was.
    pub(super) turn: Option<u64>,
    /// Its scores, if scorers decided.
    pub(super) scores: Option<ScoreRecord>,
}

impl Picked {
    #[inline(always)]
    fn plain(row: u32, candidates: u32) -> Self {
        Self { row, candidates, turn: None, scores: None }
    }
}

/// A strategy without scorers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) strategy: Strategy,
    pub(super) weights: &'a Weights,
}

impl Rules<'_> {
    /// Picks one of the candidates; `None` when there are none.
    #[inline(always)]
    pub(super) fn pick<R: Reading>(
        &self,
        candidates: impl Iterator<Item = R>,
        rows: Rows<'_>,
        random: &mut impl RandomSource,
        model: ModelId,
    ) -> Option<Picked> {
        match self.strategy {
            Strategy::Smart => smart::pick(candidates, self.weights),
            // Routers with scorers decide in `weighted`; without scorers all candidates are equal.
            // `auto` was replaced by one of the others before.
            Strategy::Auto | Strategy::RoundRobin | Strategy::Weighted | Strategy::Slo => {
                round_robin::pick(candidates, rows, random, model)
            }
            Strategy::Deployment => deployment::pick(candidates, rows, random, model),
            Strategy::PriorityOnly => priority_only::pick(candidates, rows, random, model),
            Strategy::Random => random::pick(candidates, rows, random),
        }
    }
}
