//! Counters that many threads add to, one per kind of something.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that are found by their position.
#[derive(Debug)]
pub struct KindCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for KindCounters<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> KindCounters<N> {
    /// Adds one to the counter at `position`.
    pub fn count(&self, position: usize) {
        let counter = self.0.get(position);
        debug_assert!(counter.is_some(), "{position} within {N} counters");
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counts so far.
    pub fn read(&self) -> [u64; N] {
        self.0.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }
}
