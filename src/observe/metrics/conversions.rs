//! Counts of converted requests, by their original and their new operation.

use penstock_api::{KindCounters, OPERATIONS, Operation};

/// A counter for each pair of operations.
#[derive(Debug, Default)]
pub(super) struct Conversions([KindCounters<{ OPERATIONS.len() }>; OPERATIONS.len()]);

impl Conversions {
    pub(super) fn count(&self, from: Operation, to: Operation) {
        let row = self.0.get(from as usize);
        debug_assert!(row.is_some(), "there is a row per operation");
        if let Some(row) = row {
            row.count(to as usize);
        }
    }

    /// Returns every pair that was counted.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let names = || OPERATIONS.iter().map(|row| row.name);
        self.0.iter().zip(names()).flat_map(move |(row, from)| {
            let counts = row.read().into_iter().zip(names());
            counts.map(move |(count, to)| (from, to, count)).filter(|(.., count)| *count > 0)
        })
    }
}
