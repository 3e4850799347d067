//! The circuit breaker: takes a backend out of rotation because of what requests meet there.
//!
//! **Why health checks are not enough.** A check runs every few seconds and sends a cheap request. The
//! breaker learns from the first failed requests, and sees failures that `/health` never shows: a crashed
//! worker behind a live HTTP server, a model that returns 500.
//!
//! **When it opens.** On `breaker.connect_failures` failures in a row to reach the backend, or when at
//! least `breaker.error_share` of at least `breaker.min_responses` responses within `breaker.window` were
//! faults *and more than one client saw some*. vLLM returns 500 for over-long prompts: without that
//! condition one client could take a backend away from everybody else.
//!
//! **How it recovers.** Open lasts `breaker.open`, doubled each time it opens without having closed, up
//! to `breaker.max_open` (exponential backoff). Then it is half-open: one request at a time may probe,
//! holding the probe slot. A response closes the breaker and clears the window; a failure opens it
//! again, for longer. A passed health check shortens the wait to nothing if connecting was what failed,
//! but not if faults opened it, which a check cannot disprove.
//!
//! **What it never learns from.** A cancelled request. A 429 or 503 proves that the backend is
//! reachable and starts a separate [`super::Cooldown`]. A 4xx counts as a good response.
//!
//! **What would break it.** `open_until` alone decides what a request meets; the other fields only
//! decide its next value, so relaxed ordering and lost increments cost a late or early trip and no
//! more. The probe slot is the exception: it is taken by one swap and must be freed by the request that
//! took it ([`super::InflightGuard`] does so when it drops), or the breaker stays open for good.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::outcome::{Outcome, OutcomeSource};
use crate::config::BreakerConfig;
use crate::units::{Timestamp, to_micros};

/// Doublings of the open state beyond which it grows no further; `max_open` is reached long before.
const MAX_DOUBLINGS: u32 = 16;

/// What a new request meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    Closed,
    /// One request may probe now.
    HalfOpen,
    /// No request passes.
    Open,
}

/// The circuit breaker of one backend.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CircuitBreaker {
    /// 0 while closed. First, because most decisions read nothing else.
    open_until: AtomicU64,
    /// Times it opened since it was last closed by a probe.
    times_opened: AtomicU32,
    /// Failures in a row to reach the backend.
    unreachable: AtomicU32,
    probing: AtomicBool,
    opened_by_faults: AtomicBool,
    window: Window,
}

impl CircuitBreaker {
    /// What a request meets at `now`.
    pub fn state(&self, now: Timestamp) -> BreakerState {
        match self.open_until.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            until if until <= now.0 && !self.probing.load(Ordering::Relaxed) => {
                BreakerState::HalfOpen
            }
            _ => BreakerState::Open,
        }
    }

    /// Whether requests pass whatever the time.
    pub fn is_closed(&self) -> bool {
        self.open_until.load(Ordering::Relaxed) == 0
    }

    /// Sets the state as of `now`: for `explain` on a saved fleet and for tests.
    pub fn set(&self, state: BreakerState, now: Timestamp) {
        let until = match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => now.0.max(1),
            BreakerState::Open => u64::MAX,
        };
        self.open_until.store(until, Ordering::Relaxed);
    }

    /// A health check reached the backend: if being unreachable opened the breaker, it is half-open
    /// from `now` on.
    pub fn check_passed(&self, now: Timestamp) {
        let is_open = self.open_until.load(Ordering::Relaxed) > now.0;
        if is_open && !self.opened_by_faults.load(Ordering::Relaxed) {
            self.open_until.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    pub(super) fn try_take_probe(&self) -> bool {
        !self.probing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn free_probe(&self) {
        self.probing.store(false, Ordering::Release);
    }

    /// Records how an attempt ended.
    pub fn learn(&self, outcome: Outcome, source: OutcomeSource, config: &BreakerConfig) {
        match outcome {
            Outcome::Cancel => {}
            Outcome::Ok | Outcome::Client => {
                self.window.count(source, false, config.window);
                self.responded(source);
            }
            Outcome::Busy { .. } => self.responded(source),
            Outcome::Unreachable => {
                let count = self.unreachable.fetch_add(1, Ordering::Relaxed) + 1;
                if source.probe || count >= config.connect_failures {
                    self.opened_by_faults.store(false, Ordering::Relaxed);
                    self.open(source.at, config);
                }
            }
            Outcome::Fault => {
                self.window.count(source, true, config.window);
                if source.probe || self.window.is_bad(source.at, config) {
                    self.opened_by_faults.store(true, Ordering::Relaxed);
                    self.open(source.at, config);
                }
            }
        }
    }

    fn responded(&self, source: OutcomeSource) {
        // Loads before stores: the common case must not dirty the cache line.
        if self.unreachable.load(Ordering::Relaxed) != 0 {
            self.unreachable.store(0, Ordering::Relaxed);
        }
        if source.probe {
            self.open_until.store(0, Ordering::Relaxed);
            self.times_opened.store(0, Ordering::Relaxed);
            self.window.clear();
        }
    }

    fn open(&self, now: Timestamp, config: &BreakerConfig) {
        // Requests that were in flight when it opened fail one after another: they must not double
        // the pause each time.
        if self.open_until.load(Ordering::Relaxed) > now.0 {
            return;
        }
        let doublings = self.times_opened.fetch_add(1, Ordering::Relaxed).min(MAX_DOUBLINGS);
        let pause = config.open.saturating_mul(1 << doublings).min(config.max_open);
        self.open_until.store(now.after(pause).0.max(1), Ordering::Relaxed);
    }
}

const BUCKETS: usize = 6;

/// Responses and faults within `breaker.window`: a ring of buckets, each reused once the sixth of the
/// window it counted has passed.
#[derive(Debug, Default)]
struct Window([Bucket; BUCKETS]);

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

    fn count(&self, source: OutcomeSource, is_fault: bool, window: Duration) {
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
            bucket.clients.fetch_or(1 << (source.client % 64), Ordering::Relaxed);
        }
    }

    fn is_bad(&self, now: Timestamp, config: &BreakerConfig) -> bool {
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

    fn clear(&self) {
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

#[cfg(test)]
mod tests;
