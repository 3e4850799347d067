//! The four strategies: each picks one of the candidates that passed the filters.

use std::time::Duration;

use super::card::ScoreCard;
use super::filters::{Terms, fitting};
use super::scratch::{Rows, Scratch};
use super::weighted::Weighted;
use super::{Chance, RouteInput};
use crate::config::{Strategy, Weights};
use crate::fleet::{Model, ModelId, Serving};

/// What the strategies read of a candidate: of a backend at the moment they come by, or of what was
/// noted of one.
pub(super) trait Reading {
    /// Its row of the model.
    fn row(&self) -> u32;
    /// Lower is better.
    fn priority(&self) -> u32;
    /// Requests in flight.
    fn in_flight(&self) -> u32;
    /// The latency `smart` scores it by, in microseconds.
    fn latency_micros(&self, streaming: bool) -> u32;
}

impl Reading for (u32, &Serving) {
    #[inline(always)]
    fn row(&self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn priority(&self) -> u32 {
        self.1.priority
    }

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.1.state.load.in_flight()
    }

    // The same as `latency`, in whole numbers: a division of durations costs more than the rest.
    #[inline(always)]
    fn latency_micros(&self, streaming: bool) -> u32 {
        match self.1.latency.micros(streaming) {
            0 => self.1.state.check_micros(),
            measured => measured,
        }
    }
}

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
        if let Some(weighted) = self.weighted {
            let place = (self.input, self.model, self.id);
            return weighted.pick(place, terms, (chance, &mut scratch.weighted));
        }
        let rules = Rules { strategy, weights: self.weights, is_streaming: self.is_streaming() };
        let rows = (self.model.serving.len(), scratch);
        if let Some(notes) = chance.notes() {
            let noted = notes.read((self.input, self.model, self.id), terms);
            let picked = rules.pick(noted.iter(), rows, (chance, self.id));
            if let Some(notes) = chance.notes() {
                notes.candidates = noted;
            }
            return picked;
        }
        rules.pick(fitting(self.input, self.model, terms), rows, (chance, self.id))
    }

    fn is_streaming(&self) -> bool {
        self.input.request.streaming
    }
}

/// The strategies that need no scorers, over whatever the readings are of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) strategy: Strategy,
    pub(super) weights: &'a Weights,
    pub(super) is_streaming: bool,
}

impl Rules<'_> {
    /// Picks one of the candidates, of which there are at most `most`.
    #[inline(always)]
    pub(super) fn pick<R: Reading>(
        &self,
        candidates: impl Iterator<Item = R>,
        (most, scratch): (usize, &mut Scratch),
        (chance, id): (&mut impl Chance, ModelId),
    ) -> Option<Picked> {
        if self.strategy == Strategy::Smart {
            return self.best(candidates);
        }
        let mut rows = scratch.rows(most);
        let count = if self.strategy == Strategy::PriorityOnly {
            keep_least(candidates, &mut rows)
        } else {
            candidates.for_each(|one| rows.add(one.row()));
            rows.count()
        };
        let row = match self.strategy {
            Strategy::Smart
            | Strategy::RoundRobin
            | Strategy::PriorityOnly
            | Strategy::Weighted => rows.in_turn(|| chance.turn(id)),
            Strategy::Random => rows.at_random(chance.rng()),
        };
        Some(Picked { row: row?, candidates: count, card: None })
    }

    // Scored as they are found: a second pass over them would cost as much as the first.
    #[inline(always)]
    fn best<R: Reading>(&self, candidates: impl Iterator<Item = R>) -> Option<Picked> {
        let (mut count, mut best) = (0, 0);
        for candidate in candidates {
            count += 1;
            let points = points(&candidate, self.is_streaming, self.weights);
            // As one number, so that no branch has to be guessed: more points, and of equals the
            // first candidate.
            best = best.max(u64::from(points) << 32 | u64::from(u32::MAX - candidate.row()));
        }
        let row = u32::MAX - u32::try_from(best & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        (count > 0).then_some(Picked { row, candidates: count, card: None })
    }
}

/// Keeps the rows of the best priority and, among those, of the least load; returns how many there
/// were to choose from. Each load is read once: it may change meanwhile.
#[inline(always)]
fn keep_least<R: Reading>(candidates: impl Iterator<Item = R>, rows: &mut Rows<'_>) -> u32 {
    let mut least = u64::MAX;
    candidates.for_each(|candidate| {
        // As one number, so that no branch has to be guessed.
        let found = u64::from(candidate.priority()) << 32 | u64::from(candidate.in_flight());
        least = least.min(found);
        rows.add_keyed(candidate.row(), found);
    });
    let count = rows.count();
    rows.keep(least);
    count
}

/// The latency `smart` scores a candidate by: measured on requests of the same kind, else on its
/// health checks, else zero.
pub(super) fn latency(candidate: &Serving, streaming: bool) -> Duration {
    let measured =
        if streaming { candidate.latency.first_token() } else { candidate.latency.response() };
    measured.unwrap_or_else(|| candidate.state.check_latency())
}

/// The undivided score of a candidate, 0..=10000:
/// `P * priority + L * load + T * latency` with `P = 100 - min(priority, 100)`,
/// `L = 100 - min(in flight, 100)`, `T = 100 - min(latency in ms / 10, 100)`.
/// Source: the scoring function of Nexus F06.
#[inline(always)]
pub(super) fn points(candidate: &impl Reading, streaming: bool, weights: &Weights) -> u32 {
    let tens_of_ms = candidate.latency_micros(streaming) / 10_000;
    score_points(candidate.priority(), candidate.in_flight(), tens_of_ms, weights)
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
