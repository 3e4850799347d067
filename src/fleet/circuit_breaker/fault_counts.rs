//! The faults that a circuit breaker counts: those in a row, and their share within a window. Both note
//! which clients saw them, as one bit per client by hash: two clients that share a bit count as one,
//! which errs on the careful side.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::config::BreakerConfig;
use crate::fleet::OutcomeSource;
use crate::units::{Timestamp, to_micros};

/// Faults in a row that count as evidence.
#[derive(Debug, Default)]
pub(super) struct Streak {
    count: AtomicU32,
    /// One bit per client that saw one, by hash.
    clients: AtomicU64,
    /// When the first of them was seen.
    began_at: AtomicU64,
}

impl Streak {
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn has_two_clients(&self) -> bool {
        self.clients.load(Ordering::Relaxed).count_ones() >= 2
    }

    /// Adds a fault. Returns how many there are.
    pub(super) fn add(&self, source: OutcomeSource) -> u32 {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count == 1 {
            self.began_at.store(source.at.0, Ordering::Relaxed);
            self.clients.store(0, Ordering::Relaxed);
        }
        self.clients.fetch_or(1 << (source.requester.client % 64), Ordering::Relaxed);
        count
    }

    /// A good response to a request sent at `started` ends the row, unless it was sent before.
    pub(super) fn end(&self, started: Timestamp) {
        // A load before the store: the common case must not dirty the cache line.
        if self.count() != 0 && started.0 >= self.began_at.load(Ordering::Relaxed) {
            self.count.store(0, Ordering::Relaxed);
        }
    }
}

const BUCKETS: usize = 6;

/// Responses and faults within `breaker.window`: a ring of buckets, each reused once the sixth of the
/// window it counted has passed.
#[derive(Debug, Default)]
pub(super) struct Window([Bucket; BUCKETS]);

#[derive(Debug, Default)]
struct Bucket {
    /// The number of the sixth that the counts belong to; 0 is unused.
    epoch: AtomicU64,
    responses: AtomicU32,
    faults: AtomicU32,
    /// One bit per client that saw a fault, by hash.
    clients: AtomicU64,
}

impl Window {
    fn epoch(at: Timestamp, window: Duration) -> u64 {
        let buckets = BUCKETS as u64;
        at.0 / (to_micros(window).max(buckets) / buckets) + 1
    }

    fn bucket(&self, epoch: u64) -> &Bucket {
        let [first, ..] = &self.0;
        let index = usize::try_from(epoch % BUCKETS as u64).ok();
        let bucket = index.and_then(|index| self.0.get(index));
        debug_assert!(bucket.is_some(), "a remainder is an index");
        bucket.unwrap_or(first)
    }

    pub(super) fn count(&self, source: OutcomeSource, is_fault: bool, window: Duration) {
        let epoch = Self::epoch(source.at, window);
        let bucket = self.bucket(epoch);
        let seen = bucket.epoch.load(Ordering::Relaxed);
        // Two threads that turn a bucket over at once may lose a count or two; a share of many
        // responses is not sensitive to that.
        let relaxed = Ordering::Relaxed;
        if seen != epoch && bucket.epoch.compare_exchange(seen, epoch, relaxed, relaxed).is_ok() {
            bucket.clear();
        }
        bucket.responses.fetch_add(1, Ordering::Relaxed);
        if is_fault {
            bucket.faults.fetch_add(1, Ordering::Relaxed);
            bucket.clients.fetch_or(1 << (source.requester.client % 64), Ordering::Relaxed);
        }
    }

    pub(super) fn is_bad(&self, now: Timestamp, config: &BreakerConfig) -> bool {
        let newest = Self::epoch(now, config.window);
        let (mut responses, mut faults, mut clients) = (0_u32, 0_u32, 0_u64);
        for bucket in &self.0 {
            if newest.saturating_sub(bucket.epoch.load(Ordering::Relaxed)) < BUCKETS as u64 {
                responses += bucket.responses.load(Ordering::Relaxed);
                faults += bucket.faults.load(Ordering::Relaxed);
                clients |= bucket.clients.load(Ordering::Relaxed);
            }
        }
        responses >= config.min_responses
            && f64::from(faults) >= config.error_share * f64::from(responses)
            && clients.count_ones() >= 2
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(Bucket::clear);
    }
}

impl Bucket {
    fn clear(&self) {
        self.responses.store(0, Ordering::Relaxed);
        self.faults.store(0, Ordering::Relaxed);
        self.clients.store(0, Ordering::Relaxed);
    }
}
