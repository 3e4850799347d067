//! Space a decision works in, kept by its caller so that no decision allocates.

use rand::Rng;

use crate::scoring::{Candidate, ScoreMatrix};

/// Space a decision works in, kept by its caller so that no decision allocates.
#[derive(Debug, Default)]
pub struct Scratch {
    rows: Vec<u32>,
    keys: Vec<u64>,
    pub(super) readings: Readings,
}

/// The candidates as they were read, and their scores.
#[derive(Debug, Default)]
pub(super) struct Readings {
    pub(super) rows: Vec<u32>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) matrix: ScoreMatrix,
}

impl Scratch {
    /// Space for up to `most` rows, and the readings.
    pub(super) fn split(&mut self, most: usize) -> (Rows<'_>, &mut Readings) {
        if self.rows.len() < most {
            self.rows.resize(most, 0);
            self.keys.resize(most, 0);
        }
        let rows = Rows { room: &mut self.rows, keys: &mut self.keys, count: 0 };
        (rows, &mut self.readings)
    }

    /// The same for as many rows as there are candidates.
    pub(super) fn split_for_readings(&mut self) -> (Rows<'_>, &mut Readings) {
        self.split(self.readings.candidates.len())
    }
}

/// The rows a decision picks from. Their space is allocated beforehand: a vector that may grow at every
/// push costs a third of a decision.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    room: &'a mut [u32],
    keys: &'a mut [u64],
    count: usize,
}

impl Rows<'_> {
    #[inline(always)]
    pub(super) fn add(&mut self, row: u32) {
        if let Some(slot) = self.room.get_mut(self.count) {
            *slot = row;
            self.count += 1;
        }
    }

    /// Adds a row with what it is to be kept by.
    #[inline(always)]
    pub(super) fn add_keyed(&mut self, row: u32, key: u64) {
        if let Some(slot) = self.keys.get_mut(self.count) {
            *slot = key;
        }
        self.add(row);
    }

    /// Keeps the rows that were added with this key.
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

    /// The row whose turn it is.
    #[inline(always)]
    pub(super) fn at_turn(&self, turn: u64) -> Option<u32> {
        let index = turn.checked_rem(u64::try_from(self.count).ok()?)?;
        self.room.get(usize::try_from(index).ok()?).copied()
    }

    /// One of the rows, each as likely as the others. A single one is not drawn.
    pub(super) fn at_random(&self, rng: &mut impl Rng) -> Option<u32> {
        let at = if self.count > 1 { rng.random_range(0..self.count) } else { 0 };
        self.room.get(at).copied().filter(|_| self.count > 0)
    }
}
