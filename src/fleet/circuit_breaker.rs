//! The circuit breaker: takes a backend out of rotation because of what requests meet there.
//!
//! **Why health checks are not enough.** A check runs every few seconds and sends a cheap request. The
//! breaker learns from the first failed requests, and sees failures that `/health` never shows: a crashed
//! worker behind a live HTTP server, a model that returns 500.
//!
//! **When it opens.** On `breaker.connect_failures` failures in a row to connect; on
//! [`STREAK`] faults in a row that count as evidence, seen by at least two clients; when at least
//! `breaker.error_share` of at least `breaker.min_responses` responses within `breaker.window` were such
//! faults; and when a health check fails after a fault. What counts as evidence is decided by
//! [`super::ClientEvidence`]: vLLM returns 500 for over-long prompts, and without that condition one
//! client could take a backend away from everybody else. A response to a request that was sent before
//! the first fault of a row does not end the row: it proves nothing about the time after.
//!
//! **Suspicion.** The second fault in a row makes the backend suspect: for half of `breaker.open` it gets
//! requests only where no other backend can take them. That bounds what an engine that fails fast can
//! draw before the breaker opens.
//!
//! **How it recovers.** Open lasts `breaker.open`, doubled each time it opens without having closed, up
//! to `breaker.max_open` (exponential backoff). Then it is half-open: one request at a time may probe,
//! holding the probe slot. A response closes the breaker and clears the window; a failure opens it
//! again, for longer. A passed health check shortens the wait to nothing, unless faults opened the
//! breaker, which a check cannot disprove.
//!
//! **What it never learns from.** A cancelled request, and one for which this machine lacked resources. A
//! 429 or 503 proves that the backend is reachable and starts a separate [`super::Cooldowns`]. A 4xx counts
//! as a good response.
//!
//! **What would break it.** `open_until` alone decides what a request meets; the other fields only
//! decide its next value, so relaxed ordering and lost increments cost a late or early trip and no
//! more. The probe slot is the exception: it is taken by one swap and must be freed by the request that
//! took it ([`super::InflightGuard`] does so when it drops), or the breaker stays open for good.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::load::Probe;
use super::outcome::{Outcome, OutcomeSource};
use crate::config::BreakerConfig;
use crate::units::{Timestamp, to_micros};

/// Doublings of the open state beyond which it grows no further; `max_open` is reached long before.
const MAX_DOUBLINGS: u32 = 16;
/// Faults in a row that open the breaker.
const STREAK: u32 = 3;

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

/// Why a breaker opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// Connect failures in a row.
    Unreachable,
    /// Faults in a row, or too large a share of faults.
    Faults,
    /// A health check failed after a fault.
    HealthCheck,
    /// The probe of the half-open breaker failed.
    Probe,
}

impl OpenReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Unreachable, Self::Faults, Self::HealthCheck, Self::Probe];

    /// The name in metrics and log lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Faults => "faults",
            Self::HealthCheck => "health_check",
            Self::Probe => "probe",
        }
    }
}

/// A breaker that opened or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerTransition {
    /// It opened.
    Opened {
        /// Why.
        reason: OpenReason,
        /// For how long.
        pause: Duration,
    },
    /// A probe closed it.
    Closed,
}

impl BreakerTransition {
    /// Writes it to the log, as one line.
    pub fn log(self, backend: &str) {
        match self {
            Self::Opened { reason, pause } => {
                let (reason, open_s) = (reason.name(), pause.as_secs_f64());
                tracing::warn!(backend, reason, open_s, "circuit breaker opened");
            }
            Self::Closed => tracing::info!(backend, "circuit breaker closed"),
        }
    }
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
    streak: Streak,
    suspect_until: AtomicU64,
    window: Window,
    /// Openings so far, in the order of [`OpenReason::ALL`].
    opened: [AtomicU64; OpenReason::ALL.len()],
    closed: AtomicU64,
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

    /// Whether other backends are preferred, because the last responses were faults.
    pub fn is_suspect(&self, now: Timestamp) -> bool {
        self.suspect_until.load(Ordering::Relaxed) > now.0
    }

    /// How often it opened for that reason.
    pub fn times_opened(&self, reason: OpenReason) -> u64 {
        let counts = OpenReason::ALL.iter().zip(&self.opened);
        let found = counts.into_iter().find(|(one, _)| **one == reason);
        found.map_or(0, |(_, count)| count.load(Ordering::Relaxed))
    }

    /// How often a probe closed it.
    pub fn times_closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
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

    /// Records a health check. One that reached the backend makes a breaker half-open that faults did
    /// not open; one that failed opens the breaker where a fault was seen since the last good response.
    pub(super) fn learn_check(
        &self,
        passed: bool,
        now: Timestamp,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        if !passed {
            let is_confirmed = self.streak.count() > 0;
            return is_confirmed.then(|| self.open(OpenReason::HealthCheck, now, config)).flatten();
        }
        let is_open = self.open_until.load(Ordering::Relaxed) > now.0;
        if is_open && !self.opened_by_faults.load(Ordering::Relaxed) {
            self.open_until.store(now.0.max(1), Ordering::Relaxed);
        }
        None
    }

    pub(super) fn try_take_probe(&self) -> bool {
        !self.probing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn free_probe(&self) {
        self.probing.store(false, Ordering::Release);
    }

    /// Records how an attempt ended. `is_evidence`: whether a fault counts, see
    /// [`super::ClientEvidence`].
    pub(super) fn learn(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        is_evidence: bool,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        let is_probe = source.probe == Probe::Breaker;
        match outcome {
            Outcome::Cancel | Outcome::Shortage => None,
            Outcome::Ok | Outcome::Client => {
                self.window.count(source, false, config.window);
                self.streak.end(source.started);
                self.responded(is_probe)
            }
            Outcome::Busy { .. } => self.responded(is_probe),
            Outcome::Unreachable => {
                let count = self.unreachable.fetch_add(1, Ordering::Relaxed) + 1;
                let reason = match () {
                    () if is_probe => OpenReason::Probe,
                    () if count >= config.connect_failures => OpenReason::Unreachable,
                    () => return None,
                };
                self.open(reason, source.at, config)
            }
            Outcome::Fault if is_probe => self.open_by_faults(OpenReason::Probe, source, config),
            Outcome::Fault if is_evidence => {
                self.window.count(source, true, config.window);
                let streak = self.streak.add(source);
                if streak == STREAK - 1 {
                    let until = source.at.after(config.open / 2).0;
                    self.suspect_until.store(until, Ordering::Relaxed);
                }
                let is_bad = (streak >= STREAK && self.streak.has_two_clients())
                    || self.window.is_bad(source.at, config);
                is_bad.then(|| self.open_by_faults(OpenReason::Faults, source, config)).flatten()
            }
            Outcome::Fault => None,
        }
    }

    fn responded(&self, is_probe: bool) -> Option<BreakerTransition> {
        // Loads before stores: the common case must not dirty the cache line.
        if self.unreachable.load(Ordering::Relaxed) != 0 {
            self.unreachable.store(0, Ordering::Relaxed);
        }
        if !is_probe {
            return None;
        }
        self.open_until.store(0, Ordering::Relaxed);
        self.suspect_until.store(0, Ordering::Relaxed);
        self.times_opened.store(0, Ordering::Relaxed);
        self.window.clear();
        self.closed.fetch_add(1, Ordering::Relaxed);
        Some(BreakerTransition::Closed)
    }

    fn open_by_faults(
        &self,
        reason: OpenReason,
        source: OutcomeSource,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        let transition = self.open(reason, source.at, config);
        self.opened_by_faults.store(true, Ordering::Relaxed);
        transition
    }

    fn open(
        &self,
        reason: OpenReason,
        now: Timestamp,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        // Requests that were in flight when it opened fail one after another: they must not double
        // the pause each time.
        if self.open_until.load(Ordering::Relaxed) > now.0 {
            return None;
        }
        let pause = pause(config, self.times_opened.fetch_add(1, Ordering::Relaxed));
        self.opened_by_faults.store(false, Ordering::Relaxed);
        self.open_until.store(now.after(pause).0.max(1), Ordering::Relaxed);
        let counts = OpenReason::ALL.iter().zip(&self.opened);
        for (_, count) in counts.into_iter().filter(|(one, _)| **one == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Some(BreakerTransition::Opened { reason, pause })
    }
}

/// The pause after a failure that follows `times` others: exponential backoff.
pub(super) fn pause(config: &BreakerConfig, times: u32) -> Duration {
    config.open.saturating_mul(1 << times.min(MAX_DOUBLINGS)).min(config.max_open)
}

/// Faults in a row that count as evidence.
#[derive(Debug, Default)]
struct Streak {
    count: AtomicU32,
    /// One bit per client that saw one, by hash.
    clients: AtomicU64,
    /// When the first of them was seen.
    began_at: AtomicU64,
}

impl Streak {
    fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    fn has_two_clients(&self) -> bool {
        self.clients.load(Ordering::Relaxed).count_ones() >= 2
    }

    /// Adds a fault. Returns how many there are.
    fn add(&self, source: OutcomeSource) -> u32 {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count == 1 {
            self.began_at.store(source.at.0, Ordering::Relaxed);
            self.clients.store(0, Ordering::Relaxed);
        }
        self.clients.fetch_or(1 << (source.requester.client % 64), Ordering::Relaxed);
        count
    }

    /// A good response to a request sent at `started` ends the row, unless it was sent before.
    fn end(&self, started: Timestamp) {
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
            bucket.clients.fetch_or(1 << (source.requester.client % 64), Ordering::Relaxed);
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
