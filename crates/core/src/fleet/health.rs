//! The verdict of the health checks. It is independent of traffic: the circuit breaker and the
//! cooldown judge requests, and a backend is used only when all three allow it.
//!
//! The first check decides at once, so that a start needs only one round of checks. After that the
//! verdict changes after `health.rise` passed or `health.fall` failed checks in a row. A single
//! check of the other kind resets the streak. One task per backend learns, so the two atomics need
//! no lock; with two writers a streak could count the same check twice.
//!
//! The byte of the verdict also holds three flags: draining, slow start and frozen. A decision thus
//! tests all four with one load. Each writer changes only its own bits.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_config::HealthConfig;

penstock_api::named! {
    /// The state of a backend as shown in `/fleet`.
    #[repr(u8)]
    pub enum Health {
        Unknown = "unknown",
        Healthy = "healthy",
        Unhealthy = "unhealthy",
        /// An operator drains it: no new requests.
        Draining = "draining",
    }
}

/// The bits of the verdict.
const VERDICT: u8 = 0b11;
/// The flag of a drain by an operator.
const DRAINING: u8 = 0b100;
/// The flag of a slow start that may be in progress.
const SLOW_START: u8 = 0b1000;
/// The flag of a backend whose requests make no progress.
const FROZEN: u8 = 0b1_0000;

/// The verdict, and the count of consecutive checks that contradict it.
#[derive(Debug, Default)]
pub struct HealthTracker {
    bits: AtomicU8,
    streak: AtomicU32,
}

impl HealthTracker {
    /// The current verdict; never [`Health::Draining`].
    pub fn status(&self) -> Health {
        match self.bits.load(Ordering::Relaxed) & VERDICT {
            1 => Health::Healthy,
            2 => Health::Unhealthy,
            _ => Health::Unknown,
        }
    }

    /// Returns whether the checks pass, no operator drains the backend, no slow start is in
    /// progress, and its requests make progress.
    #[inline(always)]
    pub(super) fn is_unimpaired(&self) -> bool {
        // All bits at once: any flag makes the byte another one.
        self.bits.load(Ordering::Relaxed) == Health::Healthy as u8
    }

    pub(super) fn is_draining(&self) -> bool {
        self.bits.load(Ordering::Acquire) & DRAINING != 0
    }

    /// Sets the flag. Returns its previous value.
    pub(super) fn set_draining(&self, draining: bool) -> bool {
        self.set_bit(DRAINING, draining)
    }

    pub(super) fn is_in_slow_start(&self) -> bool {
        self.bits.load(Ordering::Acquire) & SLOW_START != 0
    }

    pub(super) fn set_slow_start(&self, in_slow_start: bool) {
        self.set_bit(SLOW_START, in_slow_start);
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & FROZEN != 0
    }

    pub(super) fn set_frozen(&self, is_frozen: bool) {
        self.set_bit(FROZEN, is_frozen);
    }

    /// Ignores a failed check, because requests prove that the backend works.
    pub(super) fn veto(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }

    fn set_bit(&self, bit: u8, on: bool) -> bool {
        let before = if on {
            self.bits.fetch_or(bit, Ordering::AcqRel)
        } else {
            self.bits.fetch_and(!bit, Ordering::AcqRel)
        };
        before & bit != 0
    }

    /// Returns whether the last check contradicts the verdict without having changed it.
    pub fn is_in_doubt(&self) -> bool {
        self.streak.load(Ordering::Relaxed) > 0
    }

    /// The time from one check to the next.
    pub fn check_interval(&self, config: &HealthConfig) -> Duration {
        match (self.status(), self.is_in_doubt()) {
            (Health::Healthy, false) => config.interval,
            // Requests still go there until `fall` checks have failed.
            (Health::Healthy, true) => config.fast_interval,
            (Health::Unknown | Health::Unhealthy | Health::Draining, _) => {
                config.unhealthy_interval
            }
        }
    }

    /// The number of checks that must pass until the backend is healthy.
    pub(super) fn checks_until_healthy(&self, config: &HealthConfig) -> u32 {
        match self.status() {
            Health::Unhealthy => {
                let passed = self.streak.load(Ordering::Relaxed);
                config.rise.saturating_sub(passed).max(1)
            }
            // The first check decides.
            Health::Unknown => 1,
            Health::Healthy | Health::Draining => 0,
        }
    }

    /// Sets the verdict: for `explain` on a saved fleet and for tests.
    pub fn set(&self, status: Health) {
        let verdict = status as u8 & VERDICT;
        let replaced = self.bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
            Some(bits & !VERDICT | verdict)
        });
        debug_assert!(replaced.is_ok(), "the closure always returns bits");
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Records one check. Returns the new verdict if it changed.
    pub fn learn(&self, passed: bool, rise: u32, fall: u32) -> Option<Health> {
        let (verdict, needed) =
            if passed { (Health::Healthy, rise) } else { (Health::Unhealthy, fall) };
        let status = self.status();
        if status == verdict {
            self.streak.store(0, Ordering::Relaxed);
            return None;
        }
        let streak = self.streak.fetch_add(1, Ordering::Relaxed) + 1;
        if status != Health::Unknown && streak < needed {
            return None;
        }
        self.set(verdict);
        Some(verdict)
    }
}

/// The end of a health check.
#[derive(Debug, Clone, Copy)]
pub struct CheckResult {
    /// The time at which it ended.
    pub at: Timestamp,
    pub outcome: CheckOutcome,
}

/// The result of a health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutcome {
    /// A success, with its duration.
    Passed(Duration),
    /// Nothing accepts connections: however busy an engine is, it does not refuse them.
    Refused,
    /// A bad response, or none in time: a busy engine may cause this, too.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_slow_start_and_verdict_keep_each_other() {
        let tracker = HealthTracker::default();
        assert!(!tracker.is_unimpaired(), "not checked yet");
        tracker.learn(true, 1, 1);
        assert!(tracker.is_unimpaired());
        for (drains, starts) in [(true, false), (true, true), (false, true), (false, false)] {
            let before = tracker.is_draining();
            assert_eq!(tracker.set_draining(drains), before, "it returns what it was");
            tracker.set_slow_start(starts);
            for passed in [false, true] {
                tracker.learn(passed, 1, 1);
                let verdict = if passed { Health::Healthy } else { Health::Unhealthy };
                assert_eq!(tracker.status(), verdict);
                assert_eq!((tracker.is_draining(), tracker.is_in_slow_start()), (drains, starts));
                assert_eq!(tracker.is_unimpaired(), passed && !drains && !starts);
            }
        }
    }

    #[test]
    fn first_check_decides_and_later_changes_need_a_streak() {
        let tracker = HealthTracker::default();
        assert_eq!(tracker.learn(false, 2, 3), Some(Health::Unhealthy));
        assert_eq!(tracker.learn(true, 2, 3), None, "one pass of two");
        assert!(tracker.is_in_doubt());
        assert_eq!(tracker.learn(false, 2, 3), None, "the streak starts over");
        assert!(!tracker.is_in_doubt());
        assert_eq!(tracker.learn(true, 2, 3), None);
        assert_eq!(tracker.learn(true, 2, 3), Some(Health::Healthy));
        assert_eq!(tracker.learn(false, 2, 3), None);
        assert_eq!(tracker.learn(false, 2, 3), None);
        assert_eq!(tracker.learn(false, 2, 3), Some(Health::Unhealthy));
    }
}
