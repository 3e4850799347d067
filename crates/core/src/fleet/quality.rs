//! The quality of a model on a backend as measured: the share of failed requests, and the 90th
//! percentiles of the time to the first token and per further token. Policies have bounds for them.
//!
//! Figures are averages that forget exponentially: after `window` a request counts 1/e. So a
//! backend that gets no requests has too few to be judged after a while, and returns by itself.
//!
//! Decisions read one number per rule without a lock. Ends of attempts take a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_config::{Config, MAX_POLICIES, QualityConfig};

/// The position of the policy whose quality rule it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QualityRuleId(u8);

impl QualityRuleId {
    /// Returns the rule of the policy at `position`.
    pub fn at(position: usize) -> Option<Self> {
        u8::try_from(position).ok().filter(|_| position < MAX_POLICIES).map(Self)
    }
}

/// The quality rules of a configuration, by the position of their policies.
pub(super) type QualityRules = Vec<(QualityRuleId, QualityConfig)>;

/// Returns the quality rules of a configuration.
pub(super) fn quality_rules(config: &Config) -> QualityRules {
    let policies = config.policies.iter().enumerate();
    let rules = policies.filter_map(|(position, policy)| {
        Some((QualityRuleId::at(position)?, policy.quality.clone()?))
    });
    rules.collect()
}

/// One attempt that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QualitySample {
    pub at: Timestamp,
    /// True if it failed by the backend's fault.
    pub is_fault: bool,
    /// The time to the first token of a stream.
    pub ttft: Option<Duration>,
    /// The time per further token.
    pub tpot: Option<Duration>,
}

/// The measurements of a model on a backend, for each quality rule.
#[derive(Debug)]
pub struct Quality(Box<[Measured]>);

#[derive(Debug)]
struct Measured {
    id: QualityRuleId,
    rule: QualityConfig,
    /// The time until which the rule is violated, unless more is measured; 0 if it holds.
    violated_until: AtomicU64,
    figures: Mutex<Figures>,
}

impl Quality {
    /// Creates the measurements of a model on a backend; `None` without rules.
    pub(super) fn new(rules: &QualityRules) -> Option<Self> {
        let measured = |(id, rule): &(QualityRuleId, QualityConfig)| Measured {
            id: *id,
            rule: rule.clone(),
            violated_until: AtomicU64::default(),
            figures: Mutex::default(),
        };
        (!rules.is_empty()).then(|| Self(rules.iter().map(measured).collect()))
    }

    /// Returns whether it measures for the same rules.
    pub(super) fn is_for(&self, rules: &QualityRules) -> bool {
        self.0.iter().map(|one| (one.id, &one.rule)).eq(rules.iter().map(|(id, rule)| (*id, rule)))
    }

    pub fn violates(&self, id: QualityRuleId, now: Timestamp) -> bool {
        let mut rules = self.0.iter();
        rules
            .find(|one| one.id == id)
            .is_some_and(|one| one.violated_until.load(Ordering::Relaxed) > now.0)
    }

    /// Adds an attempt that ended.
    pub fn learn(&self, sample: &QualitySample) {
        for one in &self.0 {
            let mut figures = one.figures.lock();
            figures.add(sample, one.rule.window);
            let until = figures.violated_until(&one.rule, sample.at);
            // Stored under the lock: an older verdict must not replace a newer one.
            one.violated_until.store(until, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
struct Figures {
    updated_at: Timestamp,
    requests: f64,
    faults: f64,
    ttft: Histogram,
    tpot: Histogram,
}

impl Figures {
    fn add(&mut self, sample: &QualitySample, window: Duration) {
        let passed = sample.at.since(self.updated_at);
        let kept = (-passed.as_secs_f64() / window.as_secs_f64()).exp();
        self.requests = self.requests * kept + 1.0;
        self.faults = self.faults * kept + if sample.is_fault { 1.0 } else { 0.0 };
        self.ttft.add(sample.ttft, kept);
        self.tpot.add(sample.tpot, kept);
        self.updated_at = self.updated_at.max(sample.at);
    }

    /// Returns the time at which the figures no longer speak against the backend if nothing more
    /// is measured, in microseconds; 0 if they do not now.
    fn violated_until(&self, rule: &QualityConfig, now: Timestamp) -> u64 {
        let least = f64::from(rule.min_requests);
        let is_slow = |histogram: &Histogram, most: Option<Duration>| {
            most.is_some_and(|most| histogram.count >= least && histogram.p90() > most)
        };
        let is_violated = self.requests >= least
            && rule.max_error_share.is_some_and(|most| self.faults > most * self.requests)
            || is_slow(&self.ttft, rule.max_ttft)
            || is_slow(&self.tpot, rule.max_tpot);
        if !is_violated {
            return 0;
        }
        // requests x e^(-t / window) = least.
        let rest = rule.window.as_secs_f64() * (self.requests / least).max(1.0).ln();
        // Bounded, because the conversion panics on what no duration holds.
        let rest = Duration::from_secs_f64(rest.clamp(0.001, 1e6));
        now.after(rest).0
    }
}

/// The number of buckets of a histogram. Bounds grow by a factor of 2^(1/4) from 100 µs to 100 s.
const BUCKETS: usize = 80;
/// The upper bound of the first bucket, in seconds.
const FIRST_BOUND_S: f64 = 1e-4;

#[derive(Debug)]
struct Histogram {
    counts: [f32; BUCKETS],
    count: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0.0; BUCKETS], count: 0.0 }
    }
}

impl Histogram {
    #[expect(clippy::cast_possible_truncation, reason = "a share of 1")]
    fn add(&mut self, time: Option<Duration>, kept: f64) {
        self.count *= kept;
        self.counts.iter_mut().for_each(|count| *count *= kept as f32);
        let Some(time) = time else { return };
        self.count += 1.0;
        if let Some(count) = self.counts.get_mut(bucket(time)) {
            *count += 1.0;
        }
    }

    /// Returns the 90th percentile: the middle of its bucket, within 9 %.
    fn p90(&self) -> Duration {
        let wanted = 0.9 * self.count;
        let mut sum = 0.0;
        let found = self.counts.iter().position(|count| {
            sum += f64::from(*count);
            sum >= wanted
        });
        let bucket = found.unwrap_or(BUCKETS - 1) as f64;
        Duration::from_secs_f64(FIRST_BOUND_S * ((bucket - 0.5) / 4.0).exp2())
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
fn bucket(time: Duration) -> usize {
    let place = ((time.as_secs_f64() / FIRST_BOUND_S).max(1.0).log2() * 4.0).ceil();
    place.clamp(0.0, (BUCKETS - 1) as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: QualityRuleId = QualityRuleId(3);

    fn rule(change: impl FnOnce(&mut QualityConfig)) -> Quality {
        let window = Duration::from_secs(100);
        let mut rule = QualityConfig { min_requests: 10, window, ..QualityConfig::default() };
        change(&mut rule);
        Quality::new(&vec![(RULE, rule)]).unwrap()
    }

    fn at(seconds: f64) -> Timestamp {
        Timestamp::default().after(Duration::from_secs_f64(1000.0 + seconds))
    }

    fn sample(seconds: f64, ttft_ms: u64, is_fault: bool) -> QualitySample {
        let ttft = (!is_fault).then_some(Duration::from_millis(ttft_ms));
        QualitySample { at: at(seconds), is_fault, ttft, tpot: None }
    }

    #[test]
    fn errors_are_judged_from_a_number_of_requests_on_and_forgotten() {
        let quality = rule(|rule| rule.max_error_share = Some(0.2));
        for number in 0..9 {
            quality.learn(&sample(f64::from(number) * 0.1, 100, true));
            assert!(!quality.violates(RULE, at(1.0)), "{number} requests are too few");
        }
        (0..3).for_each(|_| quality.learn(&sample(1.0, 100, true)));
        assert!(quality.violates(RULE, at(1.1)));
        assert!(!quality.violates(QualityRuleId(0), at(1.1)), "another policy has no bounds");
        // 12 requests are fewer than 10 after 100 s x ln(1.2).
        assert!(quality.violates(RULE, at(15.0)) && !quality.violates(RULE, at(25.0)));
    }

    #[test]
    fn good_requests_end_a_violation() {
        let quality = rule(|rule| rule.max_error_share = Some(0.2));
        (0..20).for_each(|_| quality.learn(&sample(0.0, 100, true)));
        assert!(quality.violates(RULE, at(1.0)));
        for number in 0..200 {
            quality.learn(&sample(f64::from(number), 100, false));
        }
        assert!(!quality.violates(RULE, at(200.0)));
    }

    #[test]
    fn slowness_is_a_90th_percentile() {
        let quality = rule(|rule| rule.max_ttft = Some(Duration::from_millis(500)));
        for number in 0..100 {
            let ttft = if number % 20 == 0 { 5000 } else { 300 };
            quality.learn(&sample(0.0, ttft, false));
        }
        assert!(!quality.violates(RULE, at(0.1)), "5 % are slow");
        (0..10).for_each(|_| quality.learn(&sample(0.0, 5000, false)));
        assert!(quality.violates(RULE, at(0.1)), "14 % are slow");
    }

    #[test]
    fn percentiles_are_within_a_tenth() {
        for millis in [1, 7, 42, 333, 1000, 5000, 60_000_u64] {
            let mut histogram = Histogram::default();
            (0..100).for_each(|_| histogram.add(Some(Duration::from_millis(millis)), 1.0));
            let ratio = histogram.p90().as_secs_f64() * 1000.0 / millis as f64;
            assert!((0.9..1.1).contains(&ratio), "{millis} ms: {ratio}");
        }
    }
}
