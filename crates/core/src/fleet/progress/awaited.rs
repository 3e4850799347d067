//! The longest work in flight on a backend: an engine with one thread shows no page meanwhile.
//!
//! **What it proves.** A check that hangs says nothing about such an engine while a request that
//! may take as long is in flight. It says something as soon as the backend has shown no life for
//! longer than the request may take, however many such requests follow it: otherwise they would
//! keep a dead engine in use.
//!
//! **What would break it.** The slots are few, and requests without one do not count. So only those
//! that may take longer than a check take one, and each must be freed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};

use super::EXPECTED_PART;

/// The shortest time that a request must be able to take for a slot.
const MIN_PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that a request may keep checks from counting.
const MAX_PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
struct AwaitedSlot {
    /// The start of the request; 0 if the slot is free.
    sent: AtomicU64,
    /// The time until its first byte is overdue, in microseconds.
    patience: AtomicU64,
}

/// The requests in flight that may take long, and the last sign of life before them.
#[derive(Debug, Default)]
pub(super) struct AwaitedWork {
    slots: [AwaitedSlot; 8],
    /// The end of the last check that passed.
    passed_at: AtomicU64,
    /// The start of the first request since the last sign of life.
    since: AtomicU64,
}

impl AwaitedWork {
    /// Adds a request whose first byte is expected after `expected` at most. Returns its slot; the
    /// caller must free it. `last` is the time of the last progress.
    pub(super) fn add(&self, expected: Duration, last: Timestamp, now: Timestamp) -> Option<usize> {
        if self.since.load(Ordering::Relaxed) <= self.last_sign(last).0 {
            self.since.store(now.0, Ordering::Relaxed);
        }
        let patience = (expected * EXPECTED_PART).min(MAX_PATIENCE);
        if patience < MIN_PATIENCE {
            return None;
        }
        let (order, started) = (Ordering::Relaxed, now.0.max(1));
        let is_taken =
            |slot: &AwaitedSlot| slot.sent.compare_exchange(0, started, order, order).is_ok();
        let index = self.slots.iter().position(is_taken)?;
        if let Some(slot) = self.slots.get(index) {
            slot.patience.store(to_micros(patience), order);
        }
        Some(index)
    }

    pub(super) fn free(&self, index: usize) {
        if let Some(slot) = self.slots.get(index) {
            slot.patience.store(0, Ordering::Relaxed);
            slot.sent.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn note_check(&self, now: Timestamp) {
        self.passed_at.store(now.0, Ordering::Relaxed);
    }

    fn last_sign(&self, last: Timestamp) -> Timestamp {
        last.max(Timestamp(self.passed_at.load(Ordering::Relaxed)))
    }

    /// Returns whether the first byte of a request is not overdue, counted from the last sign of
    /// life, too.
    pub(super) fn is_due_later(&self, last: Timestamp, now: Timestamp) -> bool {
        let since = Timestamp(self.since.load(Ordering::Relaxed)).max(self.last_sign(last));
        self.slots.iter().any(|slot| {
            let sent = Timestamp(slot.sent.load(Ordering::Relaxed));
            let patience = Duration::from_micros(slot.patience.load(Ordering::Relaxed));
            sent.0 != 0 && now.since(sent.min(since)) < patience
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Timestamp {
        Timestamp(0).after(SECOND * (seconds + 1))
    }

    #[test]
    fn long_request_is_overdue_after_three_times_its_expected_wait() {
        let work = AwaitedWork::default();
        assert!(!work.is_due_later(at(0), at(0)), "nothing is in flight");
        assert_eq!(work.add(SECOND / 10, at(0), at(1)), None, "shorter than a check");
        let slot = work.add(SECOND * 5, at(0), at(1)).unwrap();
        assert!(work.is_due_later(at(0), at(15)));
        assert!(!work.is_due_later(at(0), at(16)), "15 s after it was sent");
        assert!(!work.is_due_later(at(10), at(16)), "the progress of others is not its own");
        work.free(slot);
        assert!(!work.is_due_later(at(0), at(2)));
    }

    #[test]
    fn further_requests_do_not_prolong_a_silence() {
        let work = AwaitedWork::default();
        for second in 1..15 {
            let _slot = work.add(SECOND * 5, at(0), at(second));
        }
        assert!(work.is_due_later(at(0), at(15)));
        assert!(!work.is_due_later(at(0), at(16)), "counted from the first");
        let work = AwaitedWork::default();
        let left = work.add(SECOND * 5, at(0), at(1)).unwrap();
        work.free(left);
        work.note_check(at(100));
        work.add(SECOND * 5, at(0), at(101)).unwrap();
        assert!(work.is_due_later(at(0), at(115)), "a check has passed since");
    }

    #[test]
    fn patience_is_bounded_and_slots_are_used_again() {
        let work = AwaitedWork::default();
        let slots: Vec<_> = (0..9).map(|_| work.add(SECOND * 5000, at(0), at(1))).collect();
        assert_eq!(slots.iter().flatten().count(), 8);
        assert!(work.is_due_later(at(0), at(300)) && !work.is_due_later(at(0), at(301)));
        slots.into_iter().flatten().for_each(|slot| work.free(slot));
        assert!(work.add(SECOND, at(300), at(301)).is_some());
    }
}
