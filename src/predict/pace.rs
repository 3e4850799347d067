//! How fast tokens really come, beside what the steps and prompts of the engine explain.

/// What a step counts one step later.
const FORGETTING: f64 = 0.995;
/// A gap that is so many times as long as expected is a pause, and counts as that many.
const MOST: f64 = 5.0;
/// The largest factor, and the inverse of the least.
const MOST_FACTOR: f64 = 2.0;
/// Steps that count as if all came as expected: of few nothing is known.
const PRIOR: f64 = 50.0;

/// The time between tokens in relation to what is expected. First tokens have [`super::Residual`] for what their predictions
/// miss; this is seen at every step, and not only at the ends of streams, which come late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// Decayed sums of gaps, and of what was expected, in units of what is expected now.
    seen: f64,
    steps: f64,
}

impl Pace {
    /// So many steps took `gap`, where `expected` was.
    pub(super) fn learn(&mut self, gap: f64, expected: f64, steps: f64) {
        if !(expected > 0.0 && gap.is_finite() && gap > 0.0) {
            return;
        }
        let kept = FORGETTING.powf(steps.min(2000.0));
        let ratio = (gap / expected).min(MOST);
        // As many steps, decayed, as a sum of single ones would be.
        let added = (1.0 - kept) / (1.0 - FORGETTING);
        self.seen = self.seen * kept + ratio * added;
        self.steps = self.steps * kept + added;
    }

    /// By how much tokens come more slowly than expected.
    pub(super) fn factor(&self) -> f64 {
        ((self.seen + PRIOR) / (self.steps + PRIOR)).clamp(1.0 / MOST_FACTOR, MOST_FACTOR)
    }
}

/// The percentile of the time per token, as a logarithm of truth / prediction; and how fast it follows.
const SHARE: f64 = 0.9;
const RATE: f64 = 0.02;
/// What it is before anything was seen: 20 % above the mean. And the largest.
const FIRST_SPREAD: f64 = 0.18;
const MOST_SPREAD: f64 = 2.0;
/// The tokens below which the time per token of a stream is noise.
const LEAST_TOKENS: f64 = 8.0;

/// How much more slowly than predicted the tokens of a stream come, in nine of ten cases: prompts and streams that arrive later
/// delay them.
#[derive(Debug, Clone, Copy)]
pub(super) struct PaceSpread(f64);

impl Default for PaceSpread {
    fn default() -> Self {
        Self(FIRST_SPREAD)
    }
}

impl PaceSpread {
    /// A stream of so many tokens took so long per token.
    pub(super) fn learn(&mut self, predicted: f64, actual: f64, tokens: f64) {
        if tokens < LEAST_TOKENS || !(predicted > 0.0 && actual > 0.0) {
            return;
        }
        // The gradient of the pinball loss.
        let step = if (actual / predicted).ln() > self.0 { SHARE } else { SHARE - 1.0 };
        self.0 = (self.0 + RATE * step).clamp(0.0, MOST_SPREAD);
    }

    /// The 90th percentile in relation to the mean.
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
