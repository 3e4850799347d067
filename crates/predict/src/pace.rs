//! The true time between tokens, in relation to what the steps and prompts of the engine explain.

/// The factor by which the weight of a step falls with each later step.
const FORGETTING: f64 = 0.995;
/// The largest ratio of a gap to the expected one: a longer gap is a pause, and counts as this one.
const MOST: f64 = 5.0;
/// The largest factor, and the inverse of the least.
const MOST_FACTOR: f64 = 2.0;
/// The prior: the number of steps that count as if all came as expected.
const PRIOR: f64 = 50.0;

/// The time between tokens in relation to what is expected. [`super::Residual`] corrects first
/// tokens. This factor is learned at every step, and not only at the ends of streams, which come
/// late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// Decayed sums of gaps, in units of the expected gap, and of steps.
    seen: f64,
    steps: f64,
}

impl Pace {
    /// Learns from `steps` steps that took `gap` instead of `expected`.
    pub(super) fn learn(&mut self, gap: f64, expected: f64, steps: f64) {
        if !(expected > 0.0 && gap.is_finite() && gap > 0.0) {
            return;
        }
        let kept = FORGETTING.powf(steps.min(2000.0));
        let ratio = (gap / expected).min(MOST);
        // The decayed sum of `steps` single steps.
        let added = (1.0 - kept) / (1.0 - FORGETTING);
        self.seen = self.seen * kept + ratio * added;
        self.steps = self.steps * kept + added;
    }

    /// Returns the factor by which tokens come more slowly than expected.
    pub(super) fn factor(&self) -> f64 {
        ((self.seen + PRIOR) / (self.steps + PRIOR)).clamp(1.0 / MOST_FACTOR, MOST_FACTOR)
    }
}

/// The percentile of the logarithm of truth / prediction of the time per token, and the rate at
/// which it follows.
const SHARE: f64 = 0.9;
const RATE: f64 = 0.02;
/// The percentile before any stream was seen, 20 % above the mean, and the largest.
const FIRST_SPREAD: f64 = 0.18;
const MOST_SPREAD: f64 = 2.0;
/// The number of tokens below which the time per token of a stream is noise.
const LEAST_TOKENS: f64 = 8.0;

/// The 90th percentile of the logarithm of truth / prediction of the time per token of streams:
/// prompts and streams that arrive later delay them.
#[derive(Debug, Clone, Copy)]
pub(super) struct PaceSpread(f64);

impl Default for PaceSpread {
    fn default() -> Self {
        Self(FIRST_SPREAD)
    }
}

impl PaceSpread {
    /// Learns from a stream of `tokens` tokens that took `actual` per token.
    pub(super) fn learn(&mut self, predicted: f64, actual: f64, tokens: f64) {
        if tokens < LEAST_TOKENS || !(predicted > 0.0 && actual > 0.0) {
            return;
        }
        // The gradient of the pinball loss.
        let step = if (actual / predicted).ln() > self.0 { SHARE } else { SHARE - 1.0 };
        self.0 = (self.0 + RATE * step).clamp(0.0, MOST_SPREAD);
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
        let mut spread = PaceSpread::default();
        // From 1 to 2 times as long as predicted.
        let actual = |n: u32| 10.0 + f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 6_553.6;
        (0..20_000).for_each(|n| spread.learn(10.0, actual(n), 100.0));
        assert!((1.75..2.05).contains(&spread.factor()), "{}", spread.factor());
        let before = spread.factor();
        spread.learn(10.0, 100.0, 3.0);
        assert_eq!(spread.factor(), before, "too short");
    }

    #[test]
    fn factor_is_that_of_the_gaps_lately() {
        let mut pace = Pace::default();
        assert_eq!(pace.factor(), 1.0);
        (0..2000).for_each(|_| pace.learn(8.0, 10.0, 1.0));
        assert!((pace.factor() - 0.84).abs() < 0.01, "{}", pace.factor());
        let mut together = Pace::default();
        (0..20).for_each(|_| together.learn(800.0, 1000.0, 100.0));
        assert!((together.factor() - pace.factor()).abs() < 0.01, "{}", together.factor());
        pace.learn(1e6, 10.0, 1.0);
        assert!(pace.factor() < 0.87, "a pause counts little: {}", pace.factor());
        (0..2000).for_each(|_| pace.learn(100.0, 10.0, 1.0));
        assert_eq!(pace.factor(), 2.0);
    }
}
