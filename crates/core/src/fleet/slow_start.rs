//! Slow start: a recovered backend receives a growing share of its traffic. Its caches are cold,
//! and otherwise all waiting requests would reach it at once (thundering herd).
//!
//! The share grows linearly from a tenth to all of it over `health.slow_start`. It starts when
//! health checks pass again and when the circuit breaker closes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::Timestamp;

/// The share at the start: enough requests to prove that the backend works.
const MIN_SHARE: f32 = 0.1;

/// The start and the end of the last slow start. Two independent atomics suffice: a reader that
/// sees a new start with the old end gets a share off by one request's worth, for one decision.
#[derive(Debug, Default)]
pub(super) struct SlowStart {
    started_at: AtomicU64,
    ends_at: AtomicU64,
}

impl SlowStart {
    pub(super) fn start(&self, now: Timestamp, duration: Duration) {
        self.started_at.store(now.0, Ordering::Relaxed);
        self.ends_at.store(now.after(duration).0, Ordering::Relaxed);
    }

    /// The fraction of its usual traffic that the backend may receive now: 1 outside a slow start.
    #[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
    pub(super) fn share(&self, now: Timestamp) -> f32 {
        let ends_at = self.ends_at.load(Ordering::Relaxed);
        if ends_at <= now.0 {
            return 1.0;
        }
        let started_at = self.started_at.load(Ordering::Relaxed);
        let elapsed = now.0.saturating_sub(started_at);
        let duration = ends_at.saturating_sub(started_at).max(1);
        (elapsed as f32 / duration as f32).clamp(MIN_SHARE, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_grows_linearly_from_a_tenth_to_one() {
        let slow_start = SlowStart::default();
        assert_eq!(slow_start.share(Timestamp(5)), 1.0);
        slow_start.start(Timestamp(1_000_000), Duration::from_secs(10));
        assert_eq!(slow_start.share(Timestamp(1_000_000)), 0.1);
        assert_eq!(slow_start.share(Timestamp(6_000_000)), 0.5);
        assert_eq!(slow_start.share(Timestamp(11_000_000)), 1.0);
    }
}
