//! Slow start: a backend that comes back gets its share of the traffic little by little, because its
//! caches are cold and everything that waited would come at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::units::Timestamp;

/// What it gets at the least, so that it can show that it works.
const LEAST: f32 = 0.1;

/// How far a backend is on its way back.
#[derive(Debug, Default)]
pub(super) struct Ramp {
    from: AtomicU64,
    until: AtomicU64,
}

impl Ramp {
    /// Begins the way back.
    pub(super) fn start(&self, now: Timestamp, takes: Duration) {
        self.from.store(now.0, Ordering::Relaxed);
        self.until.store(now.after(takes).0, Ordering::Relaxed);
    }

    /// Takes over how far another one is.
    pub(super) fn follow(&self, other: &Self) {
        self.from.store(other.from.load(Ordering::Relaxed), Ordering::Relaxed);
        self.until.store(other.until.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The share of its traffic that it may get: grows evenly from a tenth to all of it.
    #[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
    pub(super) fn share(&self, now: Timestamp) -> f32 {
        let (from, until) = (self.from.load(Ordering::Relaxed), self.until.load(Ordering::Relaxed));
        if until <= now.0 {
            return 1.0;
        }
        let (passed, takes) = (now.0.saturating_sub(from), until.saturating_sub(from).max(1));
        (passed as f32 / takes as f32).clamp(LEAST, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_grows_from_a_tenth_to_all() {
        let ramp = Ramp::default();
        assert_eq!(ramp.share(Timestamp(5)), 1.0);
        ramp.start(Timestamp(1_000_000), Duration::from_secs(10));
        assert_eq!(ramp.share(Timestamp(1_000_000)), 0.1);
        assert_eq!(ramp.share(Timestamp(6_000_000)), 0.5);
        assert_eq!(ramp.share(Timestamp(11_000_000)), 1.0);
    }
}
