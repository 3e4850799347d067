//! The time that requests of one kind take, from their start to the end of their response.
//!
//! Unlike the averages of latency, these do not age: they say when a full backend has room again,
//! however long its requests take. An update is a load, a computation and a store: of two requests
//! that end at the same moment one sample may be lost.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{lower_half, to_micros};

/// The weight of a sample in the mean: that of TCP's timeout (RFC 6298).
const MEAN_WEIGHT: f64 = 0.125;
/// The weight of a sample in the mean deviation: also TCP's.
const DEVIATION_WEIGHT: f64 = 0.25;
/// The deviation that the first sample suggests, as a share of it.
const FIRST_DEVIATION: f64 = 0.125;
/// The number of deviations above the mean within which nine of ten requests end, be their times
/// distributed normally or exponentially.
const DEVIATIONS: f64 = 2.0;
/// The most that one sample counts, in usual durations: one very long response among short ones
/// says little about those in flight.
const MAX_SAMPLE: f64 = 4.0;
/// The samples of which each counts in full: until then no usual duration is known.
const FIRST_SAMPLES: u8 = 12;
/// The share by which requests may take longer although none did before.
const MARGIN: f64 = 0.05;
/// The microseconds of a unit: 32 bits hold 49 days.
const UNIT_US: u64 = 1000;

/// The duration of requests of which none has ended.
// Too long rather than too short: the first one that ends shows how long they take.
pub const UNKNOWN_DURATION: Duration = Duration::from_secs(10);

/// The mean duration of requests and its mean deviation.
#[derive(Debug, Default)]
pub struct Durations {
    /// Packed into one atomic, because both belong together: milliseconds of the mean in the upper
    /// 32 bits, of the deviation in the lower ones; 0 before the first sample.
    packed: AtomicU64,
    /// The number of samples, up to [`FIRST_SAMPLES`].
    samples: AtomicU8,
}

impl Durations {
    /// Records a request that took `took`.
    pub fn learn(&self, took: Duration) {
        let took = (to_micros(took) / UNIT_US) as f64;
        let samples = self.samples.load(Ordering::Relaxed);
        if samples < FIRST_SAMPLES {
            self.samples.store(samples + 1, Ordering::Relaxed);
        }
        let (mean, deviation) = match self.read() {
            None => (took, took * FIRST_DEVIATION),
            Some((mean, deviation)) => {
                let most = match samples < FIRST_SAMPLES {
                    true => f64::INFINITY,
                    false => usual_ms(mean, deviation) * MAX_SAMPLE,
                };
                let took = took.min(most);
                (
                    mean + (took - mean) * MEAN_WEIGHT,
                    deviation + ((took - mean).abs() - deviation) * DEVIATION_WEIGHT,
                )
            }
        };
        // At least 1: a mean of 0 would read as "no sample".
        let packed = whole(mean).max(1) << 32 | whole(deviation);
        self.packed.store(packed, Ordering::Relaxed);
    }

    /// The time within which nine of ten requests end; `None` before the first sample.
    pub fn usual(&self) -> Option<Duration> {
        let (mean, deviation) = self.read()?;
        Some(Duration::from_secs_f64(usual_ms(mean, deviation) / 1e3))
    }

    fn read(&self) -> Option<(f64, f64)> {
        let packed = self.packed.load(Ordering::Relaxed);
        let halves = || (f64::from(lower_half(packed >> 32)), f64::from(lower_half(packed)));
        (packed != 0).then(halves)
    }
}

fn usual_ms(mean: f64, deviation: f64) -> f64 {
    mean * (1.0 + MARGIN) + deviation * DEVIATIONS
}

/// The remaining time of a request that has run for `elapsed`. One that takes longer than usual
/// counts as half done.
pub fn time_left(usual: Duration, elapsed: Duration) -> Duration {
    usual.checked_sub(elapsed).unwrap_or(elapsed)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole(millis: f64) -> u64 {
    u64::from(millis.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(millis: impl IntoIterator<Item = u64>) -> f64 {
        let durations = Durations::default();
        millis.into_iter().for_each(|one| durations.learn(Duration::from_millis(one)));
        durations.usual().unwrap().as_secs_f64()
    }

    #[test]
    fn equal_requests_take_what_they_took() {
        assert_eq!(Durations::default().usual(), None);
        assert!((4.5..6.0).contains(&learned([4000])), "{}", learned([4000]));
        let many = learned([4000; 20]);
        assert!((4.1..4.3).contains(&many), "{many}");
        assert!(learned([0]) < 0.01);
    }

    #[test]
    fn nine_of_ten_unequal_requests_end_in_the_usual_time() {
        let unequal = [1000, 1000, 6000];
        let usual = learned(unequal.into_iter().cycle().take(90));
        assert!((5.5..8.5).contains(&usual), "{usual}");
    }

    #[test]
    fn one_outlier_says_little_and_a_change_is_learned_at_once() {
        let short = [200; 30];
        assert!(learned(short.into_iter().chain([25_000])) < 1.0);
        let changed = learned(short.into_iter().chain([8000; 5]));
        assert!((7.0..12.0).contains(&changed), "{changed}");
    }

    #[test]
    fn request_that_takes_longer_than_usual_counts_as_half_done() {
        let left = |elapsed| time_left(Duration::from_secs(8), Duration::from_secs(elapsed));
        assert_eq!([0, 3, 8, 20].map(|elapsed| left(elapsed).as_secs()), [8, 5, 0, 20]);
    }

    #[test]
    fn long_times_are_cut() {
        let durations = Durations::default();
        durations.learn(Duration::MAX);
        assert!(durations.usual().is_some_and(|one| one > Duration::from_secs(4_000_000)));
    }
}
