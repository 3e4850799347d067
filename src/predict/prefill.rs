//! What a prompt token costs, and what lies before the first step of a request.

/// Tokens in which the regression counts.
const TOKENS: f64 = 512.0;
/// How much a sample counts one sample later.
const FORGETTING: f64 = 0.985;
/// The variance of the relative error of a sample: the phase of the step, and noise.
const NOISE: f64 = 0.02;
/// The least time that errors are measured by: below it the network's noise counts more.
const LEAST: f64 = 2_000.0;
/// What is not known of the front end: the variance of a guess, in milliseconds squared.
const FRONT_END: f64 = 400.0;
/// The largest variance of a weight.
const MOST_VARIANCE: f64 = 1e7;
/// How far a sample may be off, in times; the first ones may be off by more.
const OUTLIER: f64 = 3.0;
const FIRST: f64 = 10.0;

/// How long prompts took beyond the steps that would have passed anyway.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillSample {
    /// Tokens that were computed.
    pub tokens: f64,
    /// Pairs of tokens between which they have attention.
    pub pairs: f64,
    /// What they took, in microseconds.
    pub time: f64,
    /// Whether the time has what lies before the first step in it.
    pub has_front_end: bool,
}

/// Recursive least squares with forgetting on `time = front end + tokens x cost`, relative to the time.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefillLearner {
    front_end: f64,
    /// For [`TOKENS`] tokens.
    cost: f64,
    pair: f64,
    covariance: [[f64; 2]; 2],
    samples: f64,
}

impl PrefillLearner {
    /// Starts with a cost per token and per pair, and no front end.
    pub fn new(token: f64, pair: f64) -> Self {
        Self {
            front_end: 0.0,
            cost: token * TOKENS,
            pair,
            // Within the regression weights count in milliseconds.
            covariance: [[FRONT_END, 0.0], [0.0, (token * TOKENS / 500.0).powi(2).max(100.0)]],
            samples: 0.0,
        }
    }

    /// Learns from one sample.
    pub fn learn(&mut self, sample: &PrefillSample) {
        let time = sample.time - self.pair * sample.pairs;
        if !(sample.tokens > 0.0 && time.is_finite()) {
            return;
        }
        // A request that was caught by a step that was just starting took less than the steps; that is noise.
        let scale = time.max(LEAST);
        // The weights count in milliseconds within the regression.
        let front = if sample.has_front_end { 1000.0 / scale } else { 0.0 };
        let x = [front, sample.tokens / TOKENS * 1000.0 / scale];
        let weights = [self.front_end / 1000.0, self.cost / 1000.0];
        let expected = x[0] * weights[0] + x[1] * weights[1];
        let most = if self.samples < FIRST { f64::INFINITY } else { OUTLIER };
        let off = (time.max(0.0) / scale - expected).clamp(-most, most);
        let [[a, b], [c, d]] = self.covariance;
        let px = [a * x[0] + b * x[1], c * x[0] + d * x[1]];
        let total = NOISE + x[0] * px[0] + x[1] * px[1];
        let gain = [px[0] / total, px[1] / total];
        self.front_end = (self.front_end + gain[0] * off * 1000.0).max(0.0);
        self.cost = (self.cost + gain[1] * off * 1000.0).max(0.0);
        let shrink = |one: f64| (one / FORGETTING).clamp(-MOST_VARIANCE, MOST_VARIANCE);
        self.covariance = [
            [shrink(a - gain[0] * px[0]), shrink(b - gain[0] * px[1])],
            [shrink(c - gain[1] * px[0]), shrink(d - gain[1] * px[1])],
        ];
        self.samples += 1.0;
    }

    /// What lies before the first step of a request.
    pub fn front_end(&self) -> f64 {
        self.front_end
    }

    /// What a token costs.
    pub fn token(&self) -> f64 {
        self.cost / TOKENS
    }

    /// What a pair of tokens costs; it is not learned.
    pub fn pair(&self) -> f64 {
        self.pair
    }

    /// Samples that it has learned from.
    pub fn samples(&self) -> f64 {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_and_front_end_are_separated() {
        let mut learner = PrefillLearner::new(300.0, 0.0);
        for n in 0..200_u32 {
            let noise = f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 - 0.5;
            let tokens = f64::from(n % 10 + 1) * 150.0;
            let has_front_end = n % 4 > 0;
            let front = if has_front_end { 8_000.0 } else { 0.0 };
            let time = (front + tokens * 50.0) * (1.0 + 0.2 * noise);
            learner.learn(&PrefillSample { tokens, pairs: 0.0, time, has_front_end });
        }
        assert!((learner.token() / 50.0 - 1.0).abs() < 0.06, "{learner:?}");
        assert!((learner.front_end() / 8_000.0 - 1.0).abs() < 0.25, "{learner:?}");
    }

    #[test]
    fn first_samples_are_believed_over_the_guess() {
        let mut learner = PrefillLearner::new(5_000.0, 0.0);
        for _ in 0..6 {
            let (tokens, time) = (400.0, 20_000.0);
            learner.learn(&PrefillSample { tokens, pairs: 0.0, time, has_front_end: true });
        }
        let predicted = learner.front_end() + learner.token() * 400.0;
        assert!((predicted / 20_000.0 - 1.0).abs() < 0.2, "{learner:?}");
    }
}
