//! The memory for bodies: a budget for all bodies of a kind, and the claims on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bounds the bytes of all bodies of a kind that are held at one time.
#[derive(Debug, Default)]
pub(crate) struct BodyBudget {
    held: AtomicUsize,
}

impl BodyBudget {
    /// The number of bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn try_take(&self, bytes: usize, limit: usize) -> bool {
        // Checked and added in one step: two bodies must not both take the last room.
        let added = self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= limit)
        });
        added.is_ok()
    }
}

/// A claim on the budget, returned when dropped.
#[derive(Debug)]
pub(crate) struct BodyClaim {
    budget: Arc<BodyBudget>,
    bytes: usize,
    limit: usize,
}

impl BodyClaim {
    /// An empty claim, for a body that is held as it arrives.
    pub(crate) fn empty(budget: &Arc<BodyBudget>, limit: usize) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0, limit }
    }

    /// Claims room for a body of `bytes`; `None` when `limit` is reached.
    pub(crate) fn take(budget: &Arc<BodyBudget>, bytes: usize, limit: usize) -> Option<Self> {
        budget.try_take(bytes, limit).then(|| Self { budget: Arc::clone(budget), bytes, limit })
    }

    /// Claims more room as a body of unknown length grows; returns whether there is any.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let granted = more == 0 || self.budget.try_take(more, self.limit);
        if granted {
            self.bytes += more;
        }
        granted
    }

    /// Returns the room beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.budget.held.fetch_sub(surplus, Ordering::AcqRel);
        self.bytes -= surplus;
    }

    /// The maximum of all claims together.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
}

impl Drop for BodyClaim {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_claims_stay_within_the_budget_and_are_returned() {
        let budget = Arc::new(BodyBudget::default());
        let mut first = BodyClaim::take(&budget, 60, 100).unwrap();
        assert!(BodyClaim::take(&budget, 50, 100).is_none());
        assert!(first.grow_to(100));
        assert!(!first.grow_to(101));
        assert_eq!(budget.held(), 100);
        first.shrink_to(200);
        assert_eq!(budget.held(), 100);
        first.shrink_to(30);
        assert_eq!(budget.held(), 30);
        let mut second = BodyClaim::empty(&budget, 100);
        assert!(second.grow_to(70) && !second.grow_to(71));
        drop((first, second));
        assert_eq!(budget.held(), 0);
    }
}
