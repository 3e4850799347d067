//! The memory bound of the prefix indexes (`limits.prefix_memory`).
//!
//! All models of a process share one [`MemoryBudget`]. Two mechanisms keep it:
//! - on the hot path each index evicts its own blocks when a record would exceed the budget
//!   ([`MemoryBudget::bound`]), so the limit holds at every moment;
//! - in the background [`fair_shares`] takes memory from the largest indexes (max-min fairness), so
//!   that earlier models do not occupy the budget forever.
//!
//! Between the two, a reserve of 1/16 is withheld from indexes above an even share. Without it, a
//! small index could only grow by evicting its own blocks until the next background pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The part of the limit reserved for indexes below an even share, as a divisor.
const RESERVE: usize = 16;

/// The memory bound of all indexes together; zero until a limit is set.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
    sharers: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: AtomicUsize::new(limit), ..Self::default() })
    }

    /// Changes the limit. If more is in use, nothing is added until enough has been evicted.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes in use now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit for indexes above an even share, in bytes: the reserve is withheld from them.
    pub fn limit_of_large(&self) -> usize {
        let limit = self.limit();
        if self.sharers.load(Ordering::Relaxed) > 1 { limit - limit / RESERVE } else { limit }
    }

    /// The bytes that may be in use after a change by an index that uses `own` bytes. If the limit
    /// is already exceeded (it was lowered), the change may not add to it.
    pub(super) fn bound(&self, own: usize) -> usize {
        let is_large = own > self.limit() / self.sharers.load(Ordering::Relaxed).max(1);
        let limit = if is_large { self.limit_of_large() } else { self.limit() };
        limit.max(self.used())
    }

    /// Counts an index that starts to share the budget.
    pub(super) fn join(&self) {
        self.sharers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an index that no longer shares the budget.
    pub(super) fn leave(&self) {
        self.sharers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that an index uses `now` bytes instead of `before`.
    pub(super) fn charge(&self, before: usize, now: usize) {
        // Two's complement: a negative difference is added as well.
        self.used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// Returns the holders that must shrink so that all together have at most `total`, each with the
/// amount it keeps (max-min fairness). Holders below an even share keep all they have; the others
/// share the rest evenly.
pub fn fair_shares<T: Copy>(held: &mut [(u64, T)], total: u64) -> Vec<(u64, T)> {
    // In ascending order, what a small holder leaves of its even share goes to the larger ones.
    held.sort_unstable_by_key(|(share, _)| *share);
    let (mut rest, mut sharers) = (total, u64::try_from(held.len()).unwrap_or(u64::MAX));
    let mut shrinking = Vec::new();
    for (share, holder) in held {
        let kept = (*share).min(rest / sharers.max(1));
        if kept < *share {
            shrinking.push((kept, *holder));
        }
        (rest, sharers) = (rest - kept, sharers - 1);
    }
    shrinking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_shares_are_max_min() {
        let kept = |held: &[u64], total| {
            let mut held: Vec<(u64, usize)> =
                held.iter().enumerate().map(|(index, share)| (*share, index)).collect();
            let mut kept = fair_shares(&mut held, total);
            kept.sort_unstable_by_key(|(_, holder)| *holder);
            kept
        };
        assert_eq!(kept(&[10, 20, 30], 60), []);
        assert_eq!(kept(&[10, 20, 30], 50), [(20, 2)]);
        assert_eq!(kept(&[100, 1, 100], 61), [(30, 0), (30, 2)]);
        assert_eq!(kept(&[5], 0), [(0, 0)]);
        assert_eq!(kept(&[], 7), []);
    }
}
