//! A leaky bucket: its level is the usage, and it drains at a constant rate, the whole limit in a
//! minute. It stores the usage rather than the remainder, so that a reload that changes the limit
//! forgets nothing.

use std::time::Duration;

use penstock_api::units::Timestamp;

use super::Quota;

/// The units of one request or token. The bucket drains by `limit` units per microsecond: exact in
/// whole numbers.
const UNITS_PER_TOKEN: u64 = 60_000_000;

/// Usage that has not drained.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeakyBucket {
    units: u64,
    drained_at: Timestamp,
}

impl LeakyBucket {
    /// Drains the bucket up to `now`.
    pub(super) fn drain(&mut self, limit: u32, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.drained_at.0);
        self.units = self.units.saturating_sub(elapsed.saturating_mul(limit.into()));
        // Threads may arrive in another order than they read the clock.
        self.drained_at = self.drained_at.max(now);
    }

    /// The time until `count` more fit.
    pub(super) fn time_until_room(&self, limit: u32, count: u64) -> Duration {
        let needed = self.units.saturating_add(count.saturating_mul(UNITS_PER_TOKEN));
        drain_time(needed.saturating_sub(capacity(limit)), limit)
    }

    pub(super) fn take(&mut self, count: u64) {
        self.units = self.units.saturating_add(count.saturating_mul(UNITS_PER_TOKEN));
    }

    pub(super) fn give_back(&mut self, count: u64) {
        self.units = self.units.saturating_sub(count.saturating_mul(UNITS_PER_TOKEN));
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// Adds the usage of another process up to now.
    pub(super) fn restore(&mut self, units: u64, now: Timestamp) {
        self.units = self.units.saturating_add(units);
        self.drained_at = self.drained_at.max(now);
    }

    pub(super) fn quota(&self, limit: u32) -> Quota {
        Quota {
            limit: limit.into(),
            remaining: capacity(limit).saturating_sub(self.units) / UNITS_PER_TOKEN,
            reset: drain_time(self.units, limit),
        }
    }
}

fn capacity(limit: u32) -> u64 {
    // Cannot overflow: 2^32 times 6 * 10^7 is less than 2^58.
    u64::from(limit) * UNITS_PER_TOKEN
}

/// The time in which `units` drain.
fn drain_time(units: u64, limit: u32) -> Duration {
    // Rounded up: a client that returns after this time must find room.
    Duration::from_micros(units.div_ceil(u64::from(limit).max(1)))
}
