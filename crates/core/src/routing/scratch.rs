//! The buffers of a decision, kept by its caller so that no decision allocates, and the context of
//! one: its randomness, buffers and recorder.

use penstock_scoring::{Candidate, ScoreMatrix};
use rand::Rng;

/// The reusable buffers of a decision.
#[derive(Debug, Default)]
pub struct Scratch {
    rows: Vec<u32>,
    keys: Vec<u64>,
    pub(super) readings: CandidateReadings,
}

/// The candidates with their readings and scores.
#[derive(Debug, Default)]
pub(super) struct CandidateReadings {
    pub(super) rows: Vec<u32>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) matrix: ScoreMatrix,
}

impl Scratch {
    /// Returns space for up to `most` rows, and the readings.
    pub(super) fn split(&mut self, most: usize) -> (Rows<'_>, &mut CandidateReadings) {
        // Never shrinks: after the largest model of a fleet no decision allocates.
        if self.rows.len() < most {
            self.rows.resize(most, 0);
            self.keys.resize(most, 0);
        }
        let rows = Rows { room: &mut self.rows, keys: &mut self.keys, count: 0, total: 0 };
        (rows, &mut self.readings)
    }

    /// Returns space for a row per candidate, and the readings.
    pub(super) fn split_for_readings(&mut self) -> (Rows<'_>, &mut CandidateReadings) {
        self.split(self.readings.candidates.len())
    }
}

/// The rows that a decision picks from. Their space is allocated beforehand: a vector that may grow
/// at every push costs a third of a decision.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    room: &'a mut [u32],
    keys: &'a mut [u64],
    count: usize,
    /// The sum of the weights, 0 without weights; the keys hold the running sums.
    total: u64,
}

impl Rows<'_> {
    #[inline(always)]
    pub(super) fn add(&mut self, row: u32) {
        if let Some(slot) = self.room.get_mut(self.count) {
            *slot = row;
            self.count += 1;
        }
    }

    /// Adds a row with the key for [`Rows::keep`].
    #[inline(always)]
    pub(super) fn add_keyed(&mut self, row: u32, key: u64) {
        if let Some(slot) = self.keys.get_mut(self.count) {
            *slot = key;
        }
        self.add(row);
    }

    #[inline(always)]
    pub(super) fn add_weighted(&mut self, row: u32, weight: u32) {
        self.total += u64::from(weight);
        self.add_keyed(row, self.total);
    }

    /// Returns whether the rows have weights that differ from 1.
    fn is_weighted(&self) -> bool {
        self.total > u64::from(self.count())
    }

    /// Returns the row at a position below the sum of the weights.
    fn at_weight(&self, position: u64) -> Option<u32> {
        let sums = self.keys.get(..self.count)?;
        self.room.get(sums.partition_point(|sum| *sum <= position)).copied()
    }

    /// Keeps the rows that were added with `key`.
    #[inline(always)]
    pub(super) fn keep(&mut self, key: u64) {
        let mut kept = 0;
        for at in 0..self.count {
            if self.keys.get(at) == Some(&key) {
                let Some(row) = self.room.get(at).copied() else { break };
                if let Some(slot) = self.room.get_mut(kept) {
                    *slot = row;
                }
                kept += 1;
            }
        }
        self.count = kept;
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.count).unwrap_or(u32::MAX)
    }

    /// Returns the row whose turn it is. With weights, a round of as many turns as the sum of the
    /// weights gives each row as many turns as its weight, spread evenly.
    #[inline(always)]
    pub(super) fn at_turn(&self, turn: u64) -> Option<u32> {
        if self.is_weighted() {
            return self.at_weight(spread(turn, self.total));
        }
        let index = turn.checked_rem(u64::try_from(self.count).ok()?)?;
        self.room.get(usize::try_from(index).ok()?).copied()
    }

    /// Returns a random row, with probability by weight. A single row needs no draw.
    pub(super) fn at_random(&self, rng: &mut impl Rng) -> Option<u32> {
        if self.is_weighted() && self.count > 1 {
            return self.at_weight(rng.random_range(0..self.total));
        }
        let at = if self.count > 1 { rng.random_range(0..self.count) } else { 0 };
        self.room.get(at).copied().filter(|_| self.count > 0)
    }
}

/// Permutes `0..total`, one number per turn, so that neighbours are far apart: steps of the golden
/// ratio, so that no stretch of turns favours a row for long.
fn spread(turn: u64, total: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below total")]
    let start = ((total as f64 * GOLDEN) as u64).max(1);
    // Coprime to the total, so that a round visits each position exactly once.
    let step = (start..=total).find(|step| gcd(*step, total) == 1).unwrap_or(1);
    let product = u128::from(turn % total.max(1)) * u128::from(step) % u128::from(total.max(1));
    u64::try_from(product).unwrap_or_default()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The randomness, the buffers and the observer of one decision.
#[derive(Debug)]
pub(super) struct RouteContext<'a, S, R> {
    pub(super) random: &'a mut S,
    pub(super) scratch: &'a mut Scratch,
    pub(super) recorder: &'a mut R,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_the_weights_and_are_spread() {
        for weights in [&[5, 1, 1][..], &[3, 1], &[2, 2], &[95, 5], &[1, 2, 3, 4], &[100]] {
            let mut scratch = Scratch::default();
            let (mut rows, _) = scratch.split(weights.len());
            (0..).zip(weights).for_each(|(row, weight)| rows.add_weighted(row, *weight));
            let total: u32 = weights.iter().sum();
            for first in [0, 17, 1_000_003] {
                let mut counts = vec![0_u32; weights.len()];
                for turn in first..first + u64::from(total) {
                    counts[rows.at_turn(turn).unwrap() as usize] += 1;
                }
                assert_eq!(counts, weights, "a round from turn {first}");
            }
            // After every turn, each row's count is within three turns of its share.
            let many = u64::from(total) * 100;
            let mut counts = vec![0_u32; weights.len()];
            for turn in 0..many {
                counts[rows.at_turn(turn).unwrap() as usize] += 1;
                let passed = f64::from(u32::try_from(turn).unwrap() + 1);
                for (count, weight) in counts.iter().zip(weights) {
                    let ideal = passed * f64::from(*weight) / f64::from(total);
                    assert!((f64::from(*count) - ideal).abs() < 3.0, "{weights:?} at {turn}");
                }
            }
        }
    }
}
