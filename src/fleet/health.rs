//! The verdict of the health checks. It is independent of traffic: the circuit breaker and the
//! cooldown judge requests, and a backend is used only when all three allow it.
//!
//! The first check decides at once, so that a start needs one round of checks and no more. From then
//! on the verdict changes after `health.rise` passed or `health.fall` failed checks in a row; a single
//! check of the other kind resets the streak. One task per backend writes, so the two atomics need no
//! lock; with two writers a streak could count the same check twice.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use crate::units::Timestamp;

/// The state of a backend as shown in `/fleet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// Not checked yet.
    Unknown,
    /// The checks pass.
    Healthy,
    /// The checks fail.
    Unhealthy,
    /// An operator drains it: no new requests.
    Draining,
}

impl Health {
    /// The name in `/fleet` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }

    /// The state called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Unknown, Self::Healthy, Self::Unhealthy, Self::Draining]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// Counts consecutive checks that contradict the verdict.
#[derive(Debug, Default)]
pub struct HealthTracker {
    status: AtomicU8,
    streak: AtomicU32,
}

impl HealthTracker {
    /// The current verdict; never [`Health::Draining`].
    pub fn status(&self) -> Health {
        match self.status.load(Ordering::Relaxed) {
            1 => Health::Healthy,
            2 => Health::Unhealthy,
            _ => Health::Unknown,
        }
    }

    /// Whether the last check contradicts the verdict, which did not change yet.
    pub fn is_in_doubt(&self) -> bool {
        self.streak.load(Ordering::Relaxed) > 0
    }

    /// Sets the verdict: for `explain` on a saved fleet and for tests.
    pub fn set(&self, status: Health) {
        self.status.store(status as u8, Ordering::Relaxed);
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Records one check. Returns the new verdict when it changed.
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

/// How one health check ended.
#[derive(Debug, Clone, Copy)]
pub struct CheckResult {
    /// When it ended.
    pub at: Timestamp,
    /// How long it took; `None` when it failed.
    pub passed: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
