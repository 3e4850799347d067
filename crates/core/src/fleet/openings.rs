//! The times at which requests find room: what is known of the future of a backend, of all backends
//! of a model, or of a limit of a client. `Retry-After` is computed from them
//! (`admission::returns`).

use std::time::Duration;

use penstock_api::units::{to_micros, whole_seconds};

/// The number of seconds that are looked ahead: SDKs do not wait for longer.
pub const MAX_WAIT_S: u64 = 120;
const SECONDS: usize = 121;
const _: () = assert!(SECONDS as u64 == MAX_WAIT_S + 1);

/// The span for which a rate is laid out: openings come at that rate again after it.
const RATE_SPAN: Duration = Duration::from_secs(10);
/// The shortest interval of a rate: 10,000 requests in its span.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// The openings of the next two minutes. Each is room for one request, which then takes it for the
/// hold time.
#[derive(Debug, Clone, PartialEq)]
pub struct Openings {
    /// The number of openings by the whole second from which they are there.
    by_second: [u32; SECONDS],
    /// The number of those with a hold time, and the sum of its inverses, per second.
    held_count: f64,
    held_rate: f64,
}

impl Default for Openings {
    fn default() -> Self {
        Self { by_second: [0; SECONDS], held_count: 0.0, held_rate: 0.0 }
    }
}

impl Openings {
    /// The openings of a limit that lets one request pass every `interval`, the first in `wait`.
    pub fn at_rate(wait: Duration, interval: Duration) -> Self {
        let mut openings = Self::default();
        openings.add_rate(wait, interval);
        openings
    }

    /// Adds openings that come every `interval`, the first in `wait`.
    pub fn add_rate(&mut self, wait: Duration, interval: Duration) {
        let interval_us = to_micros(interval.max(MIN_INTERVAL));
        let (wait_us, span_us) = (to_micros(wait), to_micros(RATE_SPAN));
        let count = (span_us / interval_us).max(1);
        let mut before = 0;
        for (second, there) in (0_u64..).zip(&mut self.by_second) {
            let passed_us = (second * 1_000_000).checked_sub(wait_us);
            let open = passed_us.map_or(0, |passed| (passed / interval_us + 1).min(count));
            *there = there.saturating_add(u32::try_from(open - before).unwrap_or(u32::MAX));
            before = open;
        }
        self.hold_each(count as f64, Duration::from_micros(interval_us.max(span_us)));
    }

    /// Adds room for `count` requests in `wait`, each of which then takes `hold`.
    pub fn add(&mut self, wait: Duration, count: u32, hold: Duration) {
        self.open(wait, count);
        self.hold_each(f64::from(count), hold);
    }

    /// Adds room for any number of requests in `wait`.
    pub fn add_unlimited(&mut self, wait: Duration) {
        self.open(wait, u32::MAX);
    }

    fn hold_each(&mut self, count: f64, hold: Duration) {
        self.held_count += count;
        self.held_rate += count / hold.max(MIN_INTERVAL).as_secs_f64();
    }

    fn open(&mut self, wait: Duration, count: u32) {
        let second = usize::try_from(whole_seconds(wait).as_secs()).unwrap_or(usize::MAX);
        if let Some(there) = self.by_second.get_mut(second) {
            *there = there.saturating_add(count);
        }
    }

    /// The time for which a request takes an opening: the mean over all of them.
    pub fn hold(&self) -> Duration {
        if self.held_rate <= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(self.held_count / self.held_rate).unwrap_or(Duration::MAX)
    }

    /// The number of openings that are there after each second from now, the first after one.
    pub fn after_seconds(&self) -> impl Iterator<Item = (u64, u32)> {
        let mut count = 0_u32;
        let counts = self.by_second.iter().map(move |more| {
            count = count.saturating_add(*more);
            count
        });
        (0..).zip(counts).skip(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(openings: &Openings) -> Vec<u32> {
        openings.after_seconds().map(|(_, count)| count).take(11).collect()
    }

    #[test]
    fn rate_is_laid_out_by_seconds() {
        let rate = |wait, interval| {
            let millis = Duration::from_millis;
            Openings::at_rate(millis(wait), millis(interval))
        };
        assert_eq!(counts(&rate(2000, 2000)), [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!(counts(&rate(900, 250))[..4], [1, 5, 9, 13]);
        assert_eq!(counts(&rate(1500, 1500))[..6], [0, 1, 2, 2, 3, 4]);
        assert_eq!(rate(0, 60_000).hold(), Duration::from_secs(60));
        assert_eq!(rate(0, 250).hold(), RATE_SPAN);
        assert_eq!(counts(&rate(0, 0))[..2], [1001, 2001], "bounded");
    }

    #[test]
    fn hold_time_follows_the_rate_of_all_openings() {
        let mut openings = Openings::default();
        assert_eq!(openings.hold(), Duration::ZERO);
        openings.add(Duration::from_secs(3), 3, Duration::from_secs(2));
        openings.add(Duration::from_secs(1), 1, Duration::from_secs(2));
        assert_eq!(openings.hold(), Duration::from_secs(2));
        openings.add(Duration::from_secs(200), 2, Duration::from_secs(1));
        assert_eq!(openings.hold(), Duration::from_millis(1500), "6 in 4 slots of 1 a second");
        openings.add_unlimited(Duration::from_secs(4));
        assert_eq!(counts(&openings)[..4], [1, 1, 4, u32::MAX]);
        assert_eq!(openings.hold(), Duration::from_millis(1500));
    }
}
