//! The duration of the longest recent whole response of a model, on any backend. A whole response
//! shows nothing before its end, so silence of that length proves nothing against a backend. The
//! same holds for a stream before its first token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};

/// The time in which a value falls to 1/e.
const DECAY: Duration = Duration::from_secs(600);

/// The longest recent whole response. Two atomics: if two threads learn at once, the time of one of
/// them stays, and each is long enough.
#[derive(Debug, Default)]
pub(super) struct LongestResponse {
    micros: AtomicU64,
    learned_at: AtomicU64,
}

impl LongestResponse {
    /// The longest duration to expect; `None` before the first response.
    pub(super) fn value(&self, now: Timestamp) -> Option<Duration> {
        let micros = self.micros.load(Ordering::Relaxed);
        let age = now.since(Timestamp(self.learned_at.load(Ordering::Relaxed)));
        let left = (-age.as_secs_f64() / DECAY.as_secs_f64()).exp();
        (micros != 0).then(|| Duration::from_micros(micros).mul_f64(left))
    }

    /// Learns from a response that ended at `now`.
    pub(super) fn learn(&self, took: Duration, now: Timestamp) {
        if self.value(now).is_none_or(|longest| took >= longest) {
            // At least 1, because 0 stands for no response so far.
            self.micros.store(to_micros(took).max(1), Ordering::Relaxed);
            self.learned_at.store(now.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_response_counts_and_is_forgotten() {
        let longest = LongestResponse::default();
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        assert_eq!(longest.value(at(1)), None);
        longest.learn(Duration::from_secs(20), at(1));
        longest.learn(Duration::from_millis(50), at(2));
        assert!(longest.value(at(2)).is_some_and(|it| it > Duration::from_secs(19)));
        assert!(longest.value(at(3600)).is_some_and(|it| it < Duration::from_millis(60)));
        longest.learn(Duration::from_millis(70), at(3600));
        assert_eq!(longest.value(at(3600)), Some(Duration::from_millis(70)));
    }
}
