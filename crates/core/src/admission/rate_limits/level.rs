//! A token bucket, as the level of what has been used: it sinks evenly, the limit in a minute. Kept as a
//! use rather than as what is left, so that a reload that changes the limit forgets nothing.

use std::time::Duration;

use super::Quota;
use penstock_api::units::Timestamp;

/// Parts of one request or token. The level sinks by the limit in parts per microsecond: exact in whole
/// numbers.
const PARTS: u64 = 60_000_000;

/// What has been used and has not sunk yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    parts: u64,
    at: Timestamp,
}

impl Level {
    /// Lets the level sink until now.
    pub(super) fn advance(&mut self, limit: u32, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.at.0);
        self.parts = self.parts.saturating_sub(elapsed.saturating_mul(limit.into()));
        // A thread that read the clock earlier may come later.
        self.at = self.at.max(now);
    }

    /// How long until there is room for so many.
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

    /// What is used, in parts.
    pub(super) fn parts(&self) -> u64 {
        self.parts
    }

    /// Adds what another process had used until now.
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

/// The time in which so many parts sink.
fn sinking(parts: u64, limit: u32) -> Duration {
    Duration::from_micros(parts.div_ceil(u64::from(limit).max(1)))
}
