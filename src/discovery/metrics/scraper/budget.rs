//! What all scrapes together cost, and how far their intervals stretch so that it stays within what
//! the configuration allows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::thread_cpu_time;
use crate::config::TelemetryConfig;
use crate::units::{ByteSize, Timestamp, to_micros};

/// Intervals stretch no further.
const MOST: f64 = 100.0;
/// Bytes per second that all scrapes together may read before intervals grow.
const MAX_BYTES_PER_SECOND: ByteSize = ByteSize::mib(20);
/// `stretch` is kept in steps of this.
const STEP: f64 = 1e-3;

/// What all scrapes together cost.
#[derive(Debug, Default)]
pub struct ScrapeBudget {
    bytes: AtomicU64,
    cpu_micros: AtomicU64,
    /// Beyond 1, in steps.
    stretch: AtomicU32,
    settled_at: AtomicU64,
    settled_cpu: AtomicU64,
    settled_bytes: AtomicU64,
}

impl ScrapeBudget {
    /// The factor by which intervals are stretched: 1 while all is within its bounds.
    pub fn stretch(&self) -> f64 {
        1.0 + f64::from(self.stretch.load(Ordering::Relaxed)) * STEP
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Processor time spent so far, as of the last second.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_micros(self.cpu_micros.load(Ordering::Relaxed))
    }

    pub(super) fn add_bytes(&self, count: usize) {
        self.bytes.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Compares what was spent since the last time with what may be. To be called on the thread that
    /// all scrapes run on.
    #[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
    pub(super) fn settle(&self, now: Timestamp, config: &TelemetryConfig) {
        let since =
            |last: &AtomicU64, new: u64| new.saturating_sub(last.swap(new, Ordering::Relaxed));
        let spent = to_micros(thread_cpu_time());
        let passed = since(&self.settled_at, now.0);
        let spent_since = since(&self.settled_cpu, spent);
        let bytes = since(&self.settled_bytes, self.bytes());
        self.cpu_micros.store(spent, Ordering::Relaxed);
        // The first time there is nothing to compare with.
        if passed == now.0 || passed == 0 {
            return;
        }
        let passed = passed as f64;
        let cpu = spent_since as f64 / passed / config.max_cpu;
        let rate = bytes as f64 * 1e6 / passed / MAX_BYTES_PER_SECOND.0 as f64;
        self.set_stretch(next_stretch(self.stretch(), cpu.max(rate)));
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 100")]
    fn set_stretch(&self, stretch: f64) {
        self.stretch.store(((stretch - 1.0) / STEP) as u32, Ordering::Relaxed);
    }
}

/// The stretch after a second in which `used` times the budget was spent: what is spent falls as the
/// intervals grow.
fn next_stretch(stretch: f64, used: f64) -> f64 {
    // Not a number where nothing may be spent and nothing was.
    let used = if used.is_nan() { 1.0 } else { used.clamp(0.5, 4.0) };
    (stretch * used).clamp(1.0, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_stretch_until_the_budget_is_kept_and_shrink_again() {
        let mut stretch = 1.0;
        for _ in 0..20 {
            stretch = next_stretch(stretch, 12.0 / stretch);
        }
        assert!((stretch - 12.0).abs() < 1e-9, "{stretch}");
        for _ in 0..20 {
            stretch = next_stretch(stretch, 0.1 / stretch);
        }
        assert_eq!(stretch, 1.0);
        assert_eq!(next_stretch(90.0, f64::INFINITY), MOST);
        assert_eq!(next_stretch(3.0, f64::NAN), 3.0);
    }

    #[test]
    fn what_is_read_too_fast_stretches_the_intervals() {
        let budget = ScrapeBudget::default();
        let config = TelemetryConfig { max_cpu: 1.0, ..TelemetryConfig::default() };
        let second = |count: u64| Timestamp(count * 1_000_000);
        budget.settle(second(1), &config);
        assert_eq!(budget.stretch(), 1.0);
        budget.add_bytes(MAX_BYTES_PER_SECOND.to_usize() * 3);
        budget.settle(second(2), &config);
        assert!((budget.stretch() - 3.0).abs() < 0.01, "{}", budget.stretch());
        budget.settle(second(3), &config);
        assert!(budget.stretch() < 1.6);
    }
}
