//! The rate at which requests leave a queue for a backend; `Retry-After` is computed from it.

use std::time::Duration;

use penstock_api::units::Timestamp;

/// The time constant of the decay, in seconds.
const MEMORY: f64 = 10.0;

/// A rate with exponential decay.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DispatchRate {
    /// The decayed number of dispatches at `at`.
    count: f64,
    at: Timestamp,
    since: Option<Timestamp>,
}

impl DispatchRate {
    /// Counts a dispatch at `now`.
    pub(super) fn add(&mut self, now: Timestamp) {
        self.since.get_or_insert(now);
        self.count = self.faded(now) + 1.0;
        self.at = now;
    }

    /// The time that `ahead` requests take; `None` before the first dispatch.
    pub(super) fn time_for(&self, ahead: usize, now: Timestamp) -> Option<Duration> {
        let age = now.since(self.since?).as_secs_f64();
        // At a constant rate r the count after `age` is r * MEMORY * (1 - exp(-age / MEMORY)).
        let seen = MEMORY * (1.0 - (-age.max(0.1) / MEMORY).exp());
        let rate = self.faded(now) / seen;
        // Both bounds matter after a pause: the rate decays towards 0, and `from_secs_f64` panics
        // beyond its range.
        let seconds = ahead as f64 / rate.max(1e-3);
        Some(Duration::from_secs_f64(seconds.min(3600.0)))
    }

    fn faded(&self, now: Timestamp) -> f64 {
        self.count * (-now.since(self.at).as_secs_f64() / MEMORY).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_follows_the_rate() {
        let mut rate = DispatchRate::default();
        assert_eq!(rate.time_for(1, Timestamp(0)), None);
        for n in 0..600_u64 {
            rate.add(Timestamp(n * 50_000));
        }
        let now = Timestamp(600 * 50_000);
        let time = rate.time_for(40, now).unwrap().as_secs_f64();
        assert!((1.9..2.1).contains(&time), "20 a second: {time}");
        let later = rate.time_for(40, now.after(Duration::from_secs(20))).unwrap().as_secs_f64();
        assert!(later > 10.0, "none for 20 s: {later}");
    }
}
