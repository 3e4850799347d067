//! The true time between tokens, in relation to what the steps and prompts of the engine explain.

/// The factor by which the weight of a step falls with each later step.
const FORGETTING: f64 = 0.995;
/// The largest ratio of a gap to the expected one: a longer gap is a pause, and counts as this one.
const MAX_RATIO: f64 = 5.0;
/// The largest factor, and the inverse of the least.
const MAX_FACTOR: f64 = 2.0;
/// The prior: the number of steps that count as if all came as expected.
const PRIOR_STEPS: f64 = 50.0;

/// The time between tokens in relation to what is expected. [`super::Residual`] corrects first
/// tokens. This factor is learned at every step, and not only at the ends of streams, which come
/// late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PaceLearner {
    /// Decayed sums of gaps, in units of the expected gap, and of steps.
    ratio_sum: f64,
    step_sum: f64,
}

impl PaceLearner {
    /// Learns from `steps` steps that took `gap_us` instead of `expected_us`.
    pub(super) fn learn(&mut self, gap_us: f64, expected_us: f64, steps: f64) {
        if !(expected_us > 0.0 && gap_us.is_finite() && gap_us > 0.0) {
            return;
        }
        let kept = FORGETTING.powf(steps.min(2000.0));
        let ratio = (gap_us / expected_us).min(MAX_RATIO);
        // The decayed sum of `steps` single steps.
        let added = (1.0 - kept) / (1.0 - FORGETTING);
        self.ratio_sum = self.ratio_sum * kept + ratio * added;
        self.step_sum = self.step_sum * kept + added;
    }

    /// Returns the factor by which tokens come more slowly than expected.
    pub(super) fn factor(&self) -> f64 {
        ((self.ratio_sum + PRIOR_STEPS) / (self.step_sum + PRIOR_STEPS))
            .clamp(1.0 / MAX_FACTOR, MAX_FACTOR)
    }
}

/// The percentile of the logarithm of truth / prediction of the time per token.
const PERCENTILE: f64 = 0.9;
/// The rate at which its value follows.
const RATE: f64 = 0.02;
/// The value before any stream was seen: 20 % above the mean.
const PRIOR_SPREAD: f64 = 0.18;
/// The largest value.
const MAX_SPREAD: f64 = 2.0;
/// The number of tokens below which the time per token of a stream is noise.
const MIN_TOKENS: f64 = 8.0;

/// The 90th percentile of the logarithm of truth / prediction of the time per token of streams:
/// prompts and streams that arrive later delay them.
#[derive(Debug, Clone, Copy)]
pub(super) struct PaceSpreadLearner(f64);

impl Default for PaceSpreadLearner {
    fn default() -> Self {
        Self(PRIOR_SPREAD)
    }
}

impl PaceSpreadLearner {
    /// Learns from a stream of `tokens` tokens that took `actual_us` per token.
    pub(super) fn learn(&mut self, predicted_us: f64, actual_us: f64, tokens: f64) {
        if tokens < MIN_TOKENS || !(predicted_us > 0.0 && actual_us > 0.0) {
            return;
        }
        // The gradient of the pinball loss.
        let step =
            if (actual_us / predicted_us).ln() > self.0 { PERCENTILE } else { PERCENTILE - 1.0 };
        self.0 = (self.0 + RATE * step).clamp(0.0, MAX_SPREAD);
    }

    /// Returns the 90th percentile in relation to the mean.
    pub(super) fn factor(self) -> f64 {
        self.0.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_streams_of_ten_are_within_the_percentile() {
        let mut spread = PaceSpreadLearner::default();
        // From 1 to 2 times as long as predicted.
        let actual = |n: u32| 10.0 + f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 6_553.6;
        (0..20_000).for_each(|n| spread.learn(10.0, actual(n), 100.0));
        assert!((1.75..2.05).contains(&spread.factor()), "{}", spread.factor());
        let before = spread.factor();
        spread.learn(10.0, 100.0, 3.0);
        assert_eq!(spread.factor(), before, "too short");
    }

    #[test]
    fn factor_follows_recent_gaps() {
        let mut pace = PaceLearner::default();
        assert_eq!(pace.factor(), 1.0);
        (0..2000).for_each(|_| pace.learn(8.0, 10.0, 1.0));
        assert!((pace.factor() - 0.84).abs() < 0.01, "{}", pace.factor());
        let mut together = PaceLearner::default();
        (0..20).for_each(|_| together.learn(800.0, 1000.0, 100.0));
        assert!((together.factor() - pace.factor()).abs() < 0.01, "{}", together.factor());
        pace.learn(1e6, 10.0, 1.0);
        assert!(pace.factor() < 0.87, "a pause counts little: {}", pace.factor());
        (0..2000).for_each(|_| pace.learn(100.0, 10.0, 1.0));
        assert_eq!(pace.factor(), 2.0);
    }
}
