//! How much memory all indexes together may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much memory all indexes together may take; nothing unless a limit is set.
#[derive(Debug, Default)]
pub struct Budget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) })
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

    /// What may be used after a change: no more than before it, where that is too much already.
    pub(super) fn bound(&self) -> usize {
        self.limit().max(self.used())
    }

    /// Notes that an index uses `now` bytes where it used `before`.
    pub(super) fn charge(&self, before: usize, now: usize) {
        // Two's complement: what is given back is added as well.
        self.used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}
