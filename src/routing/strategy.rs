//! The four strategies: each picks one of the candidates that passed the filters.

use std::time::Duration;

use super::card::ScoreCard;
use super::filters::{Terms, fitting};
use super::scratch::{Rows, Scratch};
use super::weighted::Weighted;
use super::{Chance, RouteInput};
use crate::config::{Strategy, Weights};
use crate::registry::{Model, ModelId, Serving};

/// What a pick reads.
pub(super) struct Choice<'a> {
    pub(super) input: &'a RouteInput<'a>,
    pub(super) model: &'a Model,
    pub(super) id: ModelId,
    pub(super) weights: &'a Weights,
    pub(super) weighted: Option<&'a Weighted>,
}

/// What was picked.
pub(super) struct Picked {
    /// The row of the model.
    pub(super) row: u32,
    /// Among how many.
    pub(super) candidates: u32,
    /// What its scorers made of it.
    pub(super) card: Option<ScoreCard>,
}

impl Choice<'_> {
    /// Picks one of the candidates that fit; none if there are none.
    pub(super) fn pick(
        &self,
        strategy: Strategy,
        terms: Terms,
        (chance, scratch): (&mut impl Chance, &mut Scratch),
    ) -> Option<Picked> {
        if strategy == Strategy::Smart {
            return self.best(terms);
        }
        if let Some(weighted) = self.weighted {
            let place = (self.input, self.model, self.id);
            return weighted.pick(place, terms, (chance, &mut scratch.weighted));
        }
        let mut rows = scratch.rows(self.model.serving.len());
        let fitting = fitting(self.input, self.model, terms);
        let candidates = if strategy == Strategy::PriorityOnly {
            keep_least(fitting, &mut rows)
        } else {
            fitting.for_each(|(row, _)| rows.add(row));
            rows.count()
        };
        let row = match strategy {
            Strategy::Smart
            | Strategy::RoundRobin
            | Strategy::PriorityOnly
            | Strategy::Weighted => rows.in_turn(|| chance.turn(self.id)),
            Strategy::Random => rows.at_random(chance.rng()),
        };
        Some(Picked { row: row?, candidates, card: None })
    }

    // Scored as they are found: a second pass over them would cost as much as the first.
    fn best(&self, terms: Terms) -> Option<Picked> {
        let (streaming, weights) = (self.input.request.streaming, self.weights.clone());
        let fitting = fitting(self.input, self.model, terms);
        let (candidates, best) = fitting.fold((0, 0), |(candidates, best), (row, candidate)| {
            let points = points(candidate, streaming, &weights);
            // As one number, so that no branch has to be guessed: more points, and of equals the
            // first candidate.
            let found = u64::from(points) << 32 | u64::from(u32::MAX - row);
            (candidates + 1, u64::max(best, found))
        });
        let row = u32::MAX - u32::try_from(best & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        (candidates > 0).then_some(Picked { row, candidates, card: None })
    }
}

/// Keeps the rows of the best priority and, among those, of the least load; returns how many there
/// were to choose from. Each load is read once: it may change meanwhile.
#[inline(always)]
fn keep_least<'a>(fitting: impl Iterator<Item = (u32, &'a Serving)>, rows: &mut Rows<'_>) -> u32 {
    let mut least = u64::MAX;
    fitting.for_each(|(row, candidate)| {
        // As one number, so that no branch has to be guessed.
        let load = candidate.state.load.in_flight();
        let found = u64::from(candidate.priority) << 32 | u64::from(load);
        least = least.min(found);
        rows.add_keyed(row, found);
    });
    let candidates = rows.count();
    rows.keep(least);
    candidates
}

/// The latency `smart` scores a candidate by: measured on requests of the same kind, else on its
/// health checks, else zero.
pub(super) fn latency(candidate: &Serving, streaming: bool) -> Duration {
    let measured =
        if streaming { candidate.latency.first_token() } else { candidate.latency.answer() };
    measured.unwrap_or_else(|| candidate.state.check_latency())
}

/// The undivided score of a candidate, 0..=10000:
/// `P * priority + L * load + T * latency` with `P = 100 - min(priority, 100)`,
/// `L = 100 - min(in flight, 100)`, `T = 100 - min(latency in ms / 10, 100)`.
/// Source: the scoring function of Nexus F06.
pub(super) fn points(candidate: &Serving, streaming: bool, weights: &Weights) -> u32 {
    // The same as `latency`, in whole numbers: a division of durations costs more than the rest.
    let micros = match candidate.latency.micros(streaming) {
        0 => candidate.state.check_micros(),
        measured => measured,
    };
    score_points(candidate.priority, candidate.state.load.in_flight(), micros / 10_000, weights)
}

fn score_points(priority: u32, in_flight: u32, tens_of_ms: u32, weights: &Weights) -> u32 {
    let part = |value: u32| 100 - value.min(100);
    part(priority) * weights.priority
        + part(in_flight) * weights.load
        + part(tens_of_ms) * weights.latency
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: Weights = Weights { priority: 50, load: 30, latency: 20 };

    #[test]
    fn the_formula_gives_the_documented_values() {
        assert_eq!(score_points(0, 0, 0, &DEFAULT) / 100, 100);
        assert_eq!(score_points(100, 100, 100, &DEFAULT) / 100, 0);
        assert_eq!(score_points(1000, 1000, 1000, &DEFAULT) / 100, 0, "all three are clamped");
        assert_eq!(score_points(10, 2, 5, &DEFAULT) / 100, (90 * 50 + 98 * 30 + 95 * 20) / 100);
    }

    proptest! {
        #[test]
        fn scores_stay_in_range(
            priority: u32, in_flight: u32, latency: u32, a in 0_u32..=100, b in 0_u32..=100
        ) {
            let weights = Weights { priority: a, load: b.min(100 - a), latency: 100 - a - b.min(100 - a) };
            prop_assert!(score_points(priority, in_flight, latency, &weights) <= 10_000);
        }
    }
}
