//! How much memory all indexes together may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where several share a budget, one part of so many is left to those with less than an even share: who
/// comes late must find room.
const LEFT_FREE: usize = 16;

/// How much memory all indexes together may take; nothing unless a limit is set.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
    sharers: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: AtomicUsize::new(limit), ..Self::default() })
    }

    /// Lets them take so many bytes from now on. With less than is used, nothing is added until
    /// enough was forgotten.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The most they may take, in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes in use now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What those may use together that have more than an even share, in bytes.
    pub fn limit_of_large(&self) -> usize {
        let limit = self.limit();
        if self.sharers.load(Ordering::Relaxed) > 1 { limit - limit / LEFT_FREE } else { limit }
    }

    /// What may be used after a change by one that uses `own` bytes: no more than before it, where that
    /// is too much already.
    pub(super) fn bound(&self, own: usize) -> usize {
        let is_large = own > self.limit() / self.sharers.load(Ordering::Relaxed).max(1);
        let limit = if is_large { self.limit_of_large() } else { self.limit() };
        limit.max(self.used())
    }

    /// Notes that one more index shares it, or one less.
    pub(super) fn share(&self, with: bool) {
        if with {
            self.sharers.fetch_add(1, Ordering::Relaxed);
        } else {
            self.sharers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes that an index uses `now` bytes where it used `before`.
    pub(super) fn charge(&self, before: usize, now: usize) {
        // Two's complement: what is given back is added as well.
        self.used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}
