//! Counts of converted requests, by their original and their new operation.

use std::sync::atomic::{AtomicU64, Ordering};

use penstock_api::{OPERATIONS, Operation};

/// A counter for each pair of operations.
#[derive(Debug)]
pub(super) struct Conversions([[AtomicU64; OPERATIONS.len()]; OPERATIONS.len()]);

impl Default for Conversions {
    fn default() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl Conversions {
    pub(super) fn count(&self, from: Operation, to: Operation) {
        let cell = self.0.get(from as usize).and_then(|row| row.get(to as usize));
        debug_assert!(cell.is_some(), "there is a cell per pair of operations");
        if let Some(cell) = cell {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns every pair that was counted.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let names = || OPERATIONS.iter().map(|row| row.name);
        self.0.iter().zip(names()).flat_map(move |(row, from)| {
            let cells = row.iter().zip(names());
            let counts = cells.map(move |(cell, to)| (from, to, cell.load(Ordering::Relaxed)));
            counts.filter(|(.., count)| *count > 0)
        })
    }
}
