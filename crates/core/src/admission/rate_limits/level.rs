//! A leaky bucket: the level is the usage, and it drains at a constant rate, the whole limit in a
//! minute. It stores the usage rather than the remainder, so that a reload that changes the limit
//! forgets nothing.

use std::time::Duration;

use penstock_api::units::Timestamp;

use super::Quota;

/// Parts per request or token. The level drains by `limit` parts per microsecond: exact in whole
/// numbers.
const PARTS: u64 = 60_000_000;

/// Usage that has not drained.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    parts: u64,
    at: Timestamp,
}

impl Level {
    /// Drains the level up to `now`.
    pub(super) fn advance(&mut self, limit: u32, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.at.0);
        self.parts = self.parts.saturating_sub(elapsed.saturating_mul(limit.into()));
        // Threads may arrive in another order than they read the clock.
        self.at = self.at.max(now);
    }

    /// The time until `count` more fit.
    pub(super) fn wait(&self, limit: u32, count: u64) -> Duration {
        let needed = self.parts.saturating_add(count.saturating_mul(PARTS));
        sinking(needed.saturating_sub(room(limit)), limit)
    }

    pub(super) fn take(&mut self, count: u64) {
        self.parts = self.parts.saturating_add(count.saturating_mul(PARTS));
    }

    pub(super) fn give_back(&mut self, count: u64) {
        self.parts = self.parts.saturating_sub(count.saturating_mul(PARTS));
    }

    pub(super) fn parts(&self) -> u64 {
        self.parts
    }

    /// Adds the usage of another process up to now.
    pub(super) fn restore(&mut self, parts: u64, now: Timestamp) {
        self.parts = self.parts.saturating_add(parts);
        self.at = self.at.max(now);
    }

    pub(super) fn quota(&self, limit: u32) -> Quota {
        Quota {
            limit: limit.into(),
            remaining: room(limit).saturating_sub(self.parts) / PARTS,
            reset: sinking(self.parts, limit),
        }
    }
}

fn room(limit: u32) -> u64 {
    u64::from(limit) * PARTS
}

/// The time in which `parts` drain.
fn sinking(parts: u64, limit: u32) -> Duration {
    Duration::from_micros(parts.div_ceil(u64::from(limit).max(1)))
}
