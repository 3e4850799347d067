//! The cost of all scrapes, and the factor by which their intervals grow so that it stays within
//! `telemetry.max_cpu` and [`MAX_BYTES_PER_SECOND`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{ByteSize, Timestamp, to_micros};
use penstock_clock::thread_cpu_time;
use penstock_config::TelemetryConfig;

/// The largest interval factor.
const MAX_FACTOR: f64 = 100.0;
/// The bytes per second that all scrapes together may read before intervals grow.
const MAX_BYTES_PER_SECOND: ByteSize = ByteSize::mib(20);
/// The resolution of the stored factor.
const STEP: f64 = 1e-3;

/// The cost of all scrapes.
#[derive(Debug, Default)]
pub struct ScrapeBudget {
    bytes: AtomicU64,
    cpu_micros: AtomicU64,
    /// The part of the factor beyond 1, in units of [`STEP`].
    factor: AtomicU32,
    balanced_at: AtomicU64,
    balanced_cpu: AtomicU64,
    balanced_bytes: AtomicU64,
}

impl ScrapeBudget {
    /// Returns the factor on scrape intervals: 1 while the cost is within its bounds.
    pub fn interval_factor(&self) -> f64 {
        1.0 + f64::from(self.factor.load(Ordering::Relaxed)) * STEP
    }

    /// Returns the number of bytes read.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the processor time spent, as of the last second.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_micros(self.cpu_micros.load(Ordering::Relaxed))
    }

    pub(super) fn add_bytes(&self, count: usize) {
        self.bytes.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Compares the cost since the last call with the budget. Must be called on the thread that
    /// runs all scrapes: it reads that thread's CPU time.
    #[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
    pub(super) fn balance(&self, now: Timestamp, config: &TelemetryConfig) {
        // Relaxed: one thread balances, and the others read each number by itself.
        let since =
            |last: &AtomicU64, new: u64| new.saturating_sub(last.swap(new, Ordering::Relaxed));
        let spent = to_micros(thread_cpu_time());
        let passed = since(&self.balanced_at, now.0);
        let spent_since = since(&self.balanced_cpu, spent);
        let bytes = since(&self.balanced_bytes, self.bytes());
        self.cpu_micros.store(spent, Ordering::Relaxed);
        // There is nothing to compare with the first time.
        if passed == now.0 || passed == 0 {
            return;
        }
        let passed = passed as f64;
        let cpu = spent_since as f64 / passed / config.max_cpu;
        let rate = bytes as f64 * 1e6 / passed / MAX_BYTES_PER_SECOND.0 as f64;
        self.set_factor(next_factor(self.interval_factor(), cpu.max(rate)));
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 100")]
    fn set_factor(&self, factor: f64) {
        self.factor.store(((factor - 1.0) / STEP) as u32, Ordering::Relaxed);
    }
}

/// Returns the factor after a second in which `used` times the budget was spent: the cost falls as
/// intervals grow.
fn next_factor(factor: f64, used: f64) -> f64 {
    // NaN if the budget is 0 and nothing was spent.
    let used = if used.is_nan() { 1.0 } else { used.clamp(0.5, 4.0) };
    (factor * used).clamp(1.0, MAX_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_grows_until_the_budget_holds_and_shrinks_again() {
        let mut factor = 1.0;
        for _ in 0..20 {
            factor = next_factor(factor, 12.0 / factor);
        }
        assert!((factor - 12.0).abs() < 1e-9, "{factor}");
        for _ in 0..20 {
            factor = next_factor(factor, 0.1 / factor);
        }
        assert_eq!(factor, 1.0);
        assert_eq!(next_factor(90.0, f64::INFINITY), MAX_FACTOR);
        assert_eq!(next_factor(3.0, f64::NAN), 3.0);
    }

    #[test]
    fn factor_grows_with_the_read_rate() {
        let budget = ScrapeBudget::default();
        let config = TelemetryConfig { max_cpu: 1.0, ..TelemetryConfig::default() };
        let second = |count: u64| Timestamp(count * 1_000_000);
        budget.balance(second(1), &config);
        assert_eq!(budget.interval_factor(), 1.0);
        budget.add_bytes(MAX_BYTES_PER_SECOND.to_usize() * 3);
        budget.balance(second(2), &config);
        assert!((budget.interval_factor() - 3.0).abs() < 0.01, "{}", budget.interval_factor());
        budget.balance(second(3), &config);
        assert!(budget.interval_factor() < 1.6);
    }
}
