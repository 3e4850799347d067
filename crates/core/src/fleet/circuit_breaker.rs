//! The circuit breaker: takes an unreachable backend out of rotation.
//!
//! **Why health checks are not enough.** A check runs every few seconds. The breaker learns from
//! the first failed requests, and requests a check to confirm what they suggest.
//!
//! **When it opens.** On `breaker.connect_failures` failures in a row to connect, and when a health
//! check confirms a failure. Faults alone never open it: the prompts may cause them, so they are
//! compared with those of other backends ([`super::ModelEvidence`]). Traffic alone thus never takes
//! away the last backend of a model.
//!
//! **What a failed check confirms.** A check that failed because nothing accepts connections
//! confirms any failure. So does any failed check after a failure to connect, which no prompt can
//! cause, or after faults of two clients. Faults of one client need [`CHECKS`] failed checks in a
//! row: a busy engine misses the timeout of one check, and that client's prompts may be what keeps
//! it busy.
//!
//! **How it recovers.** It stays open for `breaker.open`, doubled each time it opens without having
//! closed, up to `breaker.max_open` (exponential backoff). Then it is half-open: one request at a
//! time may probe and holds the probe slot until the first token of its stream or its end. A
//! complete response closes the breaker; a failure opens it again, for longer. After that decision,
//! other probes count as ordinary requests. A passed health check makes an open breaker half-open
//! at once.
//!
//! **What it never learns from.** A cancelled request, and a request for which this machine lacked
//! resources. A 429 or 503 proves that the backend is reachable and starts a separate
//! [`super::Cooldowns`]. A 4xx counts as a good response.
//!
//! **What would break it.** `open_until` alone decides about a request. The other fields only
//! decide its next value, so relaxed ordering and lost increments cost a late or early trip and no
//! more. The probe slot is the exception: one swap takes it, and the request that took it must free
//! it ([`super::InflightGuard`] does so when it drops), or the breaker stays open for good.

mod streak;
mod transition;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::KindCounters;
use penstock_api::slices::element_of;
use penstock_api::units::Timestamp;
use penstock_config::BreakerConfig;
use serde::{Deserialize, Serialize};

use self::streak::Streak;
use super::health::{CheckOutcome, CheckResult};
use super::load::Probe;
use super::outcome::{Outcome, OutcomeSource};
use super::probe_slot::ProbeSlot;
pub use transition::{BreakerTransition, ModelTransition, OpenReason};

/// The number of doublings of the open time after which it stops growing; `max_open` is reached
/// long before.
const MAX_DOUBLINGS: u32 = 16;
/// The number of failed checks in a row that confirms faults of one client.
const CHECKS: u32 = 2;

/// The state of a breaker as a new request finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    Closed,
    /// One request may probe now.
    HalfOpen,
    Open,
}

/// The circuit breaker of one backend.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CircuitBreaker {
    /// The end of the open state; 0 while closed. First, because most decisions read nothing else.
    open_until: AtomicU64,
    /// The number of times it opened since a probe last closed it.
    times_opened: AtomicU32,
    /// The number of consecutive failures to reach the backend.
    unreachable: AtomicU32,
    /// The number of consecutive failed checks.
    failed_checks: AtomicU32,
    pub(super) probe: ProbeSlot,
    streak: Streak,
    /// The number of openings so far, in the order of [`OpenReason::ALL`].
    opened: KindCounters<{ OpenReason::ALL.len() }>,
    closed: AtomicU64,
}

impl CircuitBreaker {
    pub fn state(&self, now: Timestamp) -> BreakerState {
        match self.open_until.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            until if until <= now.0 && self.probe.is_free() => BreakerState::HalfOpen,
            _ => BreakerState::Open,
        }
    }

    /// The time until a request may probe; zero while it is closed.
    pub(super) fn time_until_probe(&self, now: Timestamp) -> Duration {
        Timestamp(self.open_until.load(Ordering::Relaxed)).since(now)
    }

    /// Returns whether it is closed, which does not depend on the time.
    pub fn is_closed(&self) -> bool {
        self.open_until.load(Ordering::Relaxed) == 0
    }

    /// The number of times it opened for `reason`.
    pub fn times_opened(&self, reason: OpenReason) -> u64 {
        element_of(&self.opened.read(), reason as usize)
    }

    /// The number of times a probe closed it.
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

    /// Records a health check. A passed check makes an open breaker half-open. A check that
    /// confirms a failure seen since the last good response opens it.
    pub(super) fn learn_check(
        &self,
        check: CheckResult,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        if matches!(check.outcome, CheckOutcome::Passed(_)) {
            self.failed_checks.store(0, Ordering::Relaxed);
            if self.open_until.load(Ordering::Relaxed) > check.at.0 {
                // At least 1, because 0 means closed. Only the probe closes the breaker.
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

    /// Ignores a failed check, because requests prove that the backend works.
    pub(super) fn veto_check(&self) {
        self.failed_checks.store(0, Ordering::Relaxed);
    }

    /// Returns whether the open time is over, so that the next probe decides the state.
    fn awaits_probe(&self, now: Timestamp) -> bool {
        let until = self.open_until.load(Ordering::Relaxed);
        until != 0 && until <= now.0
    }

    fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed) > 0
    }

    /// Records how an attempt ended.
    pub(super) fn learn(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        // A probe that ends after another one has decided counts as an ordinary request.
        let is_probe = source.probe == Probe::Breaker && self.awaits_probe(source.at);
        match outcome {
            Outcome::Cancel | Outcome::Shortage => None,
            Outcome::Ok | Outcome::Empty | Outcome::Client => {
                self.streak.end(source.started);
                self.responded(is_probe)
            }
            // It proves that the backend is reachable, not that its faults are over: the streak
            // goes on.
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
            Outcome::Fault => {
                self.streak.add(source);
                is_probe.then(|| self.open(OpenReason::Probe, source.at, config)).flatten()
            }
        }
    }

    /// Counts that a model there is paused for all clients, because it fails more often than
    /// elsewhere, for `reason`.
    pub(super) fn count_faulty_model(&self, reason: OpenReason) {
        self.opened.count(reason as usize);
    }

    /// Counts that a probe of such a model succeeded.
    pub(super) fn count_sound_model(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
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
        self.times_opened.store(0, Ordering::Relaxed);
        self.closed.fetch_add(1, Ordering::Relaxed);
        Some(BreakerTransition::Closed)
    }

    fn open(
        &self,
        reason: OpenReason,
        now: Timestamp,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        // Requests that were in flight when it opened fail one after another. They must not double
        // the pause each time.
        if self.open_until.load(Ordering::Relaxed) > now.0 {
            return None;
        }
        let pause = pause(config, self.times_opened.fetch_add(1, Ordering::Relaxed));
        self.open_until.store(now.after(pause).0.max(1), Ordering::Relaxed);
        self.opened.count(reason as usize);
        Some(BreakerTransition::Opened { reason, pause })
    }
}

/// The pause after a failure that follows `times` earlier ones: exponential backoff.
pub(super) fn pause(config: &BreakerConfig, times: u32) -> Duration {
    config.open.saturating_mul(1 << times.min(MAX_DOUBLINGS)).min(config.max_open)
}

/// Returns the latest time at which a pause that starts at `at` is forgotten.
pub(super) fn pauses_end(at: Timestamp, config: &BreakerConfig) -> Timestamp {
    at.after(config.max_open.max(config.open)).after(config.window)
}

#[cfg(test)]
mod tests;
