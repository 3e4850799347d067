//! Decides whether a failed attempt is retried: only if that is safe, within `routing.max_retries`,
//! and within the retry budget. The budget adds a share of the traffic and a few retries per
//! second, so that a failing fleet is not buried under retries (the shape of linkerd's budget).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use penstock_api::units::Timestamp;
use penstock_config::{RetryBudget, RetryUnanswered, RoutingConfig};

/// The safety of sending the same request to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetrySafety {
    /// No engine can have started on it.
    Safe,
    /// An engine may have started on it; its connection is lost. Only if the operator allows it.
    IfLostAllowed,
    /// It must not be retried, or in vain.
    Unsafe,
}

/// The cost of a retry; the ratio and the rate are counted in thousandths of one.
const RETRY: i64 = 1000;
/// The seconds of the configured rate that may accumulate.
const SAVED_SECONDS: i64 = 10;

/// Credit for retries, earned by requests and by time.
#[derive(Debug)]
pub struct RetryCredit {
    credit: AtomicI64,
    filled_at: AtomicU64,
}

impl RetryCredit {
    /// Creates a full budget.
    pub fn new(config: &RetryBudget) -> Self {
        Self { credit: AtomicI64::new(saved(config)), filled_at: AtomicU64::new(0) }
    }

    /// Earns the share of a retry for a request that arrived.
    pub fn earn(&self, config: &RetryBudget) {
        self.add(share(config), config);
    }

    /// Takes a retry out of the budget if another attempt may follow attempt number `attempts`
    /// (from 1). The budget is charged last, so that only retries that happen are paid for.
    pub fn take_retry(
        &self,
        safety: RetrySafety,
        attempts: u32,
        routing: &RoutingConfig,
        now: Timestamp,
    ) -> bool {
        may_retry(safety, attempts, routing) && self.spend(&routing.retry_budget, now)
    }

    /// Returns whether [`Self::take_retry`] would take a safe retry now. Takes none.
    pub fn has_retry(&self, attempts: u32, routing: &RoutingConfig, now: Timestamp) -> bool {
        self.refill(&routing.retry_budget, now);
        let is_affordable = self.credit.load(Ordering::Relaxed) >= RETRY;
        is_affordable && may_retry(RetrySafety::Safe, attempts, routing)
    }

    /// Takes one retry out of the budget; `false` if it is used up.
    pub fn spend(&self, config: &RetryBudget, now: Timestamp) -> bool {
        self.refill(config, now);
        let spent = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| {
            (credit >= RETRY).then_some(credit - RETRY)
        });
        spent.is_ok()
    }

    fn refill(&self, config: &RetryBudget, now: Timestamp) {
        let before = self.filled_at.load(Ordering::Relaxed);
        // A minute fills the budget in any case, and bounds the product.
        let passed = now.0.saturating_sub(before).min(60_000_000);
        let earned = passed.saturating_mul(u64::from(config.per_second)) / 1000;
        // The time that earned nothing yet stays: under load each claim would lose some.
        let used = (earned * 1000).checked_div(config.per_second.into()).unwrap_or_default();
        let filled_at = now.0.saturating_sub(passed.saturating_sub(used));
        // One thread claims the time since the last refill: otherwise several would earn it.
        let claimed = earned > 0
            && self
                .filled_at
                .compare_exchange(before, filled_at, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if claimed {
            self.add(i64::try_from(earned).unwrap_or(i64::MAX), config);
        }
    }

    fn add(&self, earned: i64, config: &RetryBudget) {
        let ceiling = ceiling(config);
        // At the ceiling, which is the common case, nothing is written.
        let _at_ceiling =
            self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| {
                (credit < ceiling).then(|| credit.saturating_add(earned).min(ceiling))
            });
    }
}

/// Returns whether another attempt may follow attempt number `attempts`, as far as the budget
/// allows it.
fn may_retry(safety: RetrySafety, attempts: u32, routing: &RoutingConfig) -> bool {
    let is_safe = match safety {
        RetrySafety::Safe => true,
        RetrySafety::IfLostAllowed => routing.retry_unanswered != RetryUnanswered::Never,
        RetrySafety::Unsafe => false,
    };
    is_safe && attempts <= routing.max_retries
}

/// Returns the most credit that the rate may accumulate.
fn saved(config: &RetryBudget) -> i64 {
    i64::from(config.per_second) * RETRY * SAVED_SECONDS
}

/// Returns the maximum credit: the share of traffic alone may accumulate ten retries, too.
fn ceiling(config: &RetryBudget) -> i64 {
    let by_traffic = if share(config) > 0 { RETRY * SAVED_SECONDS } else { 0 };
    saved(config).max(by_traffic)
}

#[expect(clippy::cast_possible_truncation, reason = "a share of 0..=1 times a thousand")]
fn share(config: &RetryBudget) -> i64 {
    (config.ratio.clamp(0.0, 1.0) * 1000.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_for_a_retry_takes_none() {
        let retry_budget = RetryBudget { ratio: 1.0, per_second: 0 };
        let routing = RoutingConfig { retry_budget, max_retries: 2, ..RoutingConfig::default() };
        let (budget, now) = (RetryCredit::new(&routing.retry_budget), Timestamp(0));
        assert!(!budget.has_retry(1, &routing, now));
        budget.earn(&routing.retry_budget);
        assert!(!budget.has_retry(3, &routing, now));
        assert!(budget.has_retry(1, &routing, now));
        assert!(budget.take_retry(RetrySafety::Safe, 1, &routing, now));
        assert!(!budget.has_retry(1, &routing, now));
    }

    #[test]
    fn quiet_minute_saves_no_more_than_the_ceiling() {
        let config = RetryBudget { ratio: 0.0, per_second: 10 };
        let budget = RetryCredit::new(&config);
        let start = Timestamp(1);
        while budget.spend(&config, start) {}
        let later = start.after(std::time::Duration::from_secs(60));
        let granted = (0..1000).filter(|_| budget.spend(&config, later)).count();
        assert_eq!(granted, 100, "ten seconds of the rate");
    }

    #[test]
    fn rate_is_granted_whole_under_load() {
        let config = RetryBudget { ratio: 0.0, per_second: 3 };
        let budget = RetryCredit::new(&config);
        while budget.spend(&config, Timestamp(1)) {}
        // 500 attempts per second, for a minute.
        let asked = (1..=30_000).filter(|n| budget.spend(&config, Timestamp(1 + n * 2000)));
        assert_eq!(asked.count(), 180);
    }

    #[test]
    fn retries_are_granted_as_a_share_of_the_traffic() {
        let config = RetryBudget { ratio: 0.5, per_second: 0 };
        let budget = RetryCredit::new(&config);
        let granted = (0..40).filter(|_| {
            budget.earn(&config);
            budget.spend(&config, Timestamp(1))
        });
        assert_eq!(granted.count(), 20);
        let nothing = RetryBudget { ratio: 0.0, per_second: 0 };
        assert!(!RetryCredit::new(&nothing).spend(&nothing, Timestamp(1)));
    }

    #[test]
    fn retries_are_bounded_by_rate_and_share_of_traffic() {
        let config = RetryBudget { ratio: 0.2, per_second: 10 };
        let budget = RetryCredit::new(&config);
        let start = Timestamp(1);
        let saved = (0..1000).filter(|_| budget.spend(&config, start)).count();
        assert_eq!(saved, 100, "ten seconds of ten a second");
        assert!(!budget.spend(&config, Timestamp(50_000)));
        assert!(budget.spend(&config, Timestamp(150_000)), "a tenth of a second earns one");
        for _ in 0..5 {
            budget.earn(&config);
        }
        assert!(budget.spend(&config, Timestamp(150_000)), "five requests earn one");
        assert!(!budget.spend(&config, Timestamp(150_000)));
    }
}
