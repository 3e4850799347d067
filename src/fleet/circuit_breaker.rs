//! The circuit breaker: takes a backend out of rotation because of what requests meet there.
//!
//! **Why health checks are not enough.** A check runs every few seconds and sends a cheap request. The
//! breaker learns from the first failed requests, and sees failures that `/health` never shows: a crashed
//! worker behind a live HTTP server, a model that returns 500.
//!
//! **When it opens.** On `breaker.connect_failures` failures in a row to connect; on
//! [`STREAK`] faults in a row that count as evidence, seen by at least two clients; when at least
//! `breaker.error_share` of at least `breaker.min_responses` responses within `breaker.window` were such
//! faults; and when a health check confirms a failure. What counts as evidence is decided by
//! [`super::ClientEvidence`]: vLLM returns 500 for over-long prompts, and without that condition one
//! client could take a backend away from everybody else. A response to a request that was sent before
//! the first fault of a row does not end the row: it proves nothing about the time after.
//!
//! **What a failed check confirms.** One that failed because nothing accepts connections confirms any
//! failure. So does any failed check after a failure to connect, which no prompt can cause, or after
//! faults of two clients. Faults of one client need [`CHECKS`] failed checks in a row: an engine that is
//! only busy misses the timeout of one, and that client's prompts may be what keeps it busy.
//!
//! **Suspicion.** The second fault in a row, when it is another client's than the first, makes the
//! backend suspect: for half of `breaker.open` it gets requests only where no other backend can take
//! them. That bounds what an engine that fails fast can draw before the breaker opens. Faults of one
//! client steer that client alone.
//!
//! **How it recovers.** Open lasts `breaker.open`, doubled each time it opens without having closed, up
//! to `breaker.max_open` (exponential backoff). Then it is half-open: one request at a time may probe,
//! holding the probe slot until the first token of its stream or its end. A complete response closes the
//! breaker and clears the window; a failure opens it again, for longer. Once that is decided, other
//! probes count as any request does. A passed health check shortens the wait to nothing, unless faults
//! opened the breaker, which a check cannot disprove.
//!
//! **What it never learns from.** A cancelled request, and one for which this machine lacked resources. A
//! 429 or 503 proves that the backend is reachable and starts a separate [`super::Cooldowns`]. A 4xx counts
//! as a good response.
//!
//! **What would break it.** `open_until` alone decides what a request meets; the other fields only
//! decide its next value, so relaxed ordering and lost increments cost a late or early trip and no
//! more. The probe slot is the exception: it is taken by one swap and must be freed by the request that
//! took it ([`super::InflightGuard`] does so when it drops), or the breaker stays open for good.

mod fault_counts;
mod transition;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use self::fault_counts::{Streak, Window};
use super::health::{CheckOutcome, CheckResult};
use super::load::Probe;
use super::outcome::{Outcome, OutcomeSource};
use crate::config::BreakerConfig;
use crate::units::Timestamp;
pub use transition::{BreakerTransition, OpenReason};

/// Doublings of the open state beyond which it grows no further; `max_open` is reached long before.
const MAX_DOUBLINGS: u32 = 16;
/// Faults in a row that open the breaker.
const STREAK: u32 = 3;
/// Failed checks in a row that confirm faults of one client.
const CHECKS: u32 = 2;

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
    /// Failed checks in a row.
    failed_checks: AtomicU32,
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

    /// Records a health check. One that passed makes a breaker half-open that faults did not open; one
    /// that confirms a failure seen since the last good response opens the breaker.
    pub(super) fn learn_check(
        &self,
        check: CheckResult,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        if matches!(check.outcome, CheckOutcome::Passed(_)) {
            self.failed_checks.store(0, Ordering::Relaxed);
            let is_open = self.open_until.load(Ordering::Relaxed) > check.at.0;
            if is_open && !self.opened_by_faults.load(Ordering::Relaxed) {
                self.open_until.store(check.at.0.max(1), Ordering::Relaxed);
            }
            return None;
        }
        let failed_checks = self.failed_checks.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let is_sound = check.outcome == CheckOutcome::Refused
            || failed_checks >= CHECKS
            || self.streak.has_two_clients();
        let is_confirmed = self.is_unreachable() || (self.streak.count() > 0 && is_sound);
        is_confirmed.then(|| self.open(OpenReason::HealthCheck, check.at, config)).flatten()
    }

    /// Whether a probe decides what becomes of it: not where another one already has.
    fn awaits_probe(&self, now: Timestamp) -> bool {
        let until = self.open_until.load(Ordering::Relaxed);
        until != 0 && until <= now.0
    }

    fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed) > 0
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
        let is_probe = source.probe == Probe::Breaker && self.awaits_probe(source.at);
        match outcome {
            Outcome::Cancel | Outcome::Shortage => None,
            Outcome::Ok | Outcome::Client => {
                self.window.count(source, false, config.window);
                self.streak.end(source.started);
                self.responded(is_probe)
            }
            Outcome::Busy { .. } | Outcome::Refused { .. } => self.responded(is_probe),
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
                let is_of_two = self.streak.has_two_clients();
                if streak == STREAK - 1 && is_of_two {
                    let until = source.at.after(config.open / 2).0;
                    self.suspect_until.store(until, Ordering::Relaxed);
                }
                let is_bad =
                    (streak >= STREAK && is_of_two) || self.window.is_bad(source.at, config);
                is_bad.then(|| self.open_by_faults(OpenReason::Faults, source, config)).flatten()
            }
            Outcome::Fault => None,
        }
    }

    fn responded(&self, is_probe: bool) -> Option<BreakerTransition> {
        // Loads before stores: the common case must not dirty the cache line.
        if self.is_unreachable() {
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

#[cfg(test)]
mod tests;
