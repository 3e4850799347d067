//! The faults in a row that a failed health check may confirm, and the clients that saw them: one
//! bit per client by hash. Two clients that share a bit count as one, which only delays the
//! confirmation.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use penstock_api::units::Timestamp;

use crate::fleet::OutcomeSource;

#[derive(Debug, Default)]
pub(super) struct Streak {
    count: AtomicU32,
    /// One bit for each client that saw a fault, by hash.
    clients: AtomicU64,
    /// The time of the first fault in the row.
    began_at: AtomicU64,
}

impl Streak {
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn has_two_clients(&self) -> bool {
        self.clients.load(Ordering::Relaxed).count_ones() >= 2
    }

    pub(super) fn add(&self, source: OutcomeSource) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.began_at.store(source.at.0, Ordering::Relaxed);
            self.clients.store(0, Ordering::Relaxed);
        }
        self.clients.fetch_or(1 << (source.requester.client % 64), Ordering::Relaxed);
    }

    /// Ends the row after a good response to a request sent at `started`. A request sent before the
    /// row proves nothing.
    pub(super) fn end(&self, started: Timestamp) {
        // A load before the store: the common case must not dirty the cache line.
        if self.count() != 0 && started.0 >= self.began_at.load(Ordering::Relaxed) {
            self.count.store(0, Ordering::Relaxed);
        }
    }
}
