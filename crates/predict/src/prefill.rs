//! The cost of a prompt token, and the time before the first step of a request.

use serde::{Deserialize, Serialize};

use super::coefficients::{Vec3, dot};

/// The unit of tokens in the regression.
const TOKENS_UNIT: f64 = 512.0;
/// The unit of pairs.
const PAIRS_UNIT: f64 = 1e6;
/// The factor by which the weight of a sample falls with each later sample.
const FORGETTING: f64 = 0.985;
/// The variance of the relative error of a sample: the phase of the step, and noise.
const NOISE: f64 = 0.02;
/// The least expected time, in milliseconds: below it the noise of the network counts more.
const MIN_EXPECTED_MS: f64 = 2.0;
/// The prior variance of the front end, in milliseconds squared.
const FRONT_END_VARIANCE: f64 = 400.0;
/// The prior standard deviation of the cost of a pair: the cost of a token, divided by this number
/// of tokens. CPUs are as slow with attention as with all else: a prompt of 770 tokens took 1.7
/// times as long per token there as one of 60.
const PRIOR_PAIR_TOKENS: f64 = 2000.0;
/// The largest cost of a pair: the cost of a token, divided by this number of tokens, as on a CPU.
/// Otherwise short prompts that waited for something else would make long ones seem to take
/// minutes.
const MAX_PAIR_TOKENS: f64 = 500.0;
/// The largest variance that a sample adds.
const MAX_VARIANCE: f64 = 1e7;
/// The factor by which a sample may be off.
const OUTLIER_FACTOR: f64 = 3.0;
/// The number of first samples that may be off by more.
const FIRST_SAMPLES: f64 = 10.0;
/// The factor by which one of the first samples must exceed its prediction to show that the prior
/// is wrong. The standard deviation of the cost is then at least this share of the cost that the
/// sample shows.
const WRONG_PRIOR_FACTOR: f64 = 10.0;
const PRIOR_DEVIATION: f64 = 0.1;
/// The fewest tokens by which a wrong prior shows in the cost of a token. A prompt of a few new
/// tokens waits for other reasons: the engine has less of it cached than believed, or computes
/// other prompts.
const MIN_TOKENS: f64 = 12.0;

/// The time that prompts took beyond the steps that would have passed anyway.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PrefillSample {
    /// The number of tokens that were computed.
    pub tokens: f64,
    /// The number of pairs of tokens between which they have attention.
    pub pairs: f64,
    /// The time that they took, in microseconds; below 0 if the steps were shorter than predicted.
    pub time_us: f64,
    /// The noise in it of the steps that would have passed anyway: a standard deviation.
    pub noise_us: f64,
    /// True if the time includes what lies before the first step.
    pub has_front_end: bool,
}

/// Recursive least squares with forgetting on `time_us = front end + tokens x cost + pairs x pair`,
/// relative to the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PrefillLearner {
    /// The costs in milliseconds: of what lies before the engine, of [`TOKENS_UNIT`] tokens, of
    /// [`PAIRS_UNIT`] pairs.
    weights: Vec3,
    covariance: [Vec3; 3],
    #[serde(rename = "samples")]
    sample_count: f64,
}

impl PrefillLearner {
    /// Starts with a cost per token and per pair, in microseconds, and no front end.
    pub(crate) fn new(token_us: f64, pair_us: f64) -> Self {
        let weights = [0.0, token_us * TOKENS_UNIT / 1000.0, pair_us * PAIRS_UNIT / 1000.0];
        let [_, cost, _] = weights;
        Self {
            weights,
            covariance: [
                [FRONT_END_VARIANCE, 0.0, 0.0],
                [0.0, (2.0 * cost).powi(2).max(100.0), 0.0],
                [0.0, 0.0, pair_variance(token_us)],
            ],
            sample_count: 0.0,
        }
    }

    /// Keeps what was learned as a prior; the front end stays as it is, because it is no part of
    /// the engine.
    // The samples are no first ones again: a learned cost is never wrong by as much as a guess, and
    // a single odd sample would replace it.
    pub(crate) fn demote_to_prior(&mut self) {
        let (front_end_us, sample_count) = (self.weights[0], self.sample_count);
        *self = Self::new(self.token_us(), self.pair_us());
        self.weights[0] = front_end_us;
        self.sample_count = sample_count.min(FIRST_SAMPLES);
    }

    /// Learns from one sample.
    pub(crate) fn learn(&mut self, sample: &PrefillSample) {
        let PrefillSample { tokens, pairs, time_us, noise_us, has_front_end } = *sample;
        // A single infinite time would spoil the weights for good.
        if !(tokens > 0.0 && time_us.is_finite()) {
            return;
        }
        let front = if has_front_end { 1.0 } else { 0.0 };
        let counts = [front, tokens / TOKENS_UNIT, pairs / PAIRS_UNIT];
        let expected_ms = dot(&counts, &self.weights).max(MIN_EXPECTED_MS);
        let noise_ms = noise_us / 1000.0;
        let mut took_ms = (time_us / 1000.0).max(-noise_ms);
        if self.sample_count >= FIRST_SAMPLES {
            // After a pause of the engine, prompts seem to take ten times as long, or no time.
            let (least_ms, most_ms) = (expected_ms / OUTLIER_FACTOR, expected_ms * OUTLIER_FACTOR);
            // Without room for the noise short prompts beside long steps would all be at a bound,
            // and the cost would follow it down.
            let room_ms = noise_ms.min(expected_ms);
            took_ms = took_ms.clamp(least_ms - room_ms, most_ms + room_ms);
        } else if took_ms > expected_ms * WRONG_PRIOR_FACTOR {
            let enough_tokens = tokens.max(MIN_TOKENS);
            let deviation = PRIOR_DEVIATION * took_ms * TOKENS_UNIT / enough_tokens;
            self.covariance[1][1] += deviation.powi(2).min(MAX_VARIANCE);
            // The front end may be the reason as well.
            self.covariance[0][0] += (front * PRIOR_DEVIATION * took_ms).powi(2).min(MAX_VARIANCE);
            self.covariance[2][2] += pair_variance(took_ms * 1000.0 / enough_tokens);
        }
        // A prompt that a step caught just as it started took less than the steps; that is noise.
        // Without the noise in the scale, of two times that are off by as much the shorter one
        // would count more, and the costs would be too low.
        let scale = took_ms.max(expected_ms / OUTLIER_FACTOR).hypot(noise_ms);
        let regressors = counts.map(|one| one / scale);
        let residual = took_ms / scale - dot(&regressors, &self.weights);
        let px: Vec3 = self.covariance.map(|row| dot(&row, &regressors));
        let total = NOISE + dot(&regressors, &px);
        for (weight, gain) in self.weights.iter_mut().zip(&px) {
            *weight = (*weight + gain / total * residual).max(0.0);
        }
        // Weights below 0 are cut off; without this bound the others would grow to make up for it.
        let (found_ms, max_ms) = (dot(&counts, &self.weights), took_ms.max(expected_ms));
        if found_ms > max_ms {
            self.weights.iter_mut().for_each(|weight| *weight *= max_ms / found_ms);
        }
        self.bound_pair(&counts);
        subtract_outer(&mut self.covariance, &px, 1.0 / total);
        // Only the direction of the sample is forgotten: with prompts of one length the variance of
        // the cost of a token would grow without end. Source: Bittanti, Bolzern and Campi,
        // "Recursive least-squares identification algorithms with incomplete excitation" (1990).
        let left: Vec3 = self.covariance.map(|row| dot(&row, &regressors));
        let seen = dot(&regressors, &left);
        if seen > 0.0 {
            subtract_outer(&mut self.covariance, &left, (1.0 - 1.0 / FORGETTING) / seen);
        }
        self.sample_count += 1.0;
    }

    /// Bounds the cost of a pair. The excess becomes a cost of tokens, so that a prompt of `counts`
    /// takes as long as before.
    fn bound_pair(&mut self, counts: &Vec3) {
        const MAX_RATIO: f64 = PAIRS_UNIT / TOKENS_UNIT / MAX_PAIR_TOKENS;
        let ([_, tokens, pairs], [_, token, pair]) = (counts, self.weights);
        if pair > MAX_RATIO * token {
            let token = (token * tokens + pair * pairs) / (tokens + MAX_RATIO * pairs);
            (self.weights[1], self.weights[2]) = (token, MAX_RATIO * token);
        }
    }

    /// Sets the time before the first step, in microseconds.
    pub(super) fn set_front_end(&mut self, time_us: f64) {
        self.weights[0] = time_us / 1000.0;
    }

    /// Bounds the time before the first step from above, in microseconds.
    pub(super) fn bound_front_end(&mut self, time_us: f64) {
        self.weights[0] = self.weights[0].min((time_us / 1000.0).max(0.0));
    }

    /// Returns the time before the first step of a request.
    pub(crate) fn front_end_us(&self) -> f64 {
        self.weights[0] * 1000.0
    }

    /// Returns the cost of a token.
    pub(crate) fn token_us(&self) -> f64 {
        self.weights[1] * 1000.0 / TOKENS_UNIT
    }

    /// Returns the cost of a pair of tokens.
    pub(crate) fn pair_us(&self) -> f64 {
        self.weights[2] * 1000.0 / PAIRS_UNIT
    }
}

/// Returns the variance of the cost of [`PAIRS_UNIT`] pairs, in milliseconds squared, if a token
/// costs `token_us` microseconds.
fn pair_variance(token_us: f64) -> f64 {
    (token_us / PRIOR_PAIR_TOKENS * PAIRS_UNIT / 1000.0).powi(2)
}

/// Subtracts `factor` times the outer product of `p` with itself from a covariance.
fn subtract_outer(covariance: &mut [Vec3; 3], p: &Vec3, factor: f64) {
    for (row, left) in covariance.iter_mut().zip(p) {
        for (one, right) in row.iter_mut().zip(p) {
            *one -= left * right * factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample without noise from steps.
    fn sample(tokens: f64, pairs: f64, time_us: f64, has_front_end: bool) -> PrefillSample {
        PrefillSample { tokens, pairs, time_us, noise_us: 0.0, has_front_end }
    }

    /// Returns evenly distributed numbers from -0.5 to 0.5, the same in each run.
    fn noise(n: u32) -> f64 {
        f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 - 0.5
    }

    #[test]
    fn cost_and_front_end_are_separated() {
        let mut learner = PrefillLearner::new(300.0, 0.0);
        for n in 0..200_u32 {
            let noise = noise(n);
            let tokens = f64::from(n % 10 + 1) * 150.0;
            let has_front_end = n % 4 > 0;
            let front = if has_front_end { 8_000.0 } else { 0.0 };
            let time_us = (front + tokens * 50.0) * (1.0 + 0.2 * noise);
            learner.learn(&sample(tokens, 0.0, time_us, has_front_end));
        }
        assert!((learner.token_us() / 50.0 - 1.0).abs() < 0.06, "{learner:?}");
        assert!((learner.front_end_us() / 8_000.0 - 1.0).abs() < 0.25, "{learner:?}");
    }

    #[test]
    fn engines_far_slower_than_the_guess_are_learned_in_a_few_prompts() {
        let mut learner = PrefillLearner::new(20.0, 0.0);
        let took = |tokens: f64| 45_000.0 + tokens * 10_500.0;
        let mut learn = |tokens: f64, time_us: f64| {
            learner.learn(&sample(tokens, 0.0, time_us, true));
            learner.front_end_us() + learner.token_us() * tokens
        };
        let prompts = [12.0, 74.0, 12.0, 24.0, 49.0, 24.0, 74.0, 12.0, 24.0, 49.0];
        for (n, tokens) in prompts.into_iter().enumerate() {
            let predicted = learn(tokens, took(tokens));
            assert!(n < 3 || (predicted / took(tokens) - 1.0).abs() < 0.3, "{n}: {predicted}");
        }
        // The engine was stopped: one prompt takes ten times as long, the next ones seem to take no
        // time.
        for (tokens, time_us) in [(49.0, 5_700_000.0), (12.0, -6_500.0)] {
            learn(tokens, time_us);
        }
        for tokens in prompts {
            let predicted = learn(tokens, took(tokens));
            assert!((predicted / took(tokens) - 1.0).abs() < 0.35, "{tokens}: {predicted}");
        }
    }

    #[test]
    fn prompts_of_one_length_are_predicted_for_ever() {
        for lengths in [[12.0; 2], [100.0; 2], [100.0, 101.0], [500.0, 600.0], [20_000.0; 2]] {
            let mut learner = PrefillLearner::new(20.0, 0.000_8);
            for n in 0..20_000_u32 {
                let noise = noise(n);
                let tokens = lengths[usize::from(noise > 0.0)];
                let pairs = tokens * tokens / 2.0;
                let time_us = (9_000.0 + tokens * 50.0) * (1.0 + 0.2 * noise);
                let has_front_end = n % 3 > 0;
                learner.learn(&sample(tokens, pairs, time_us, has_front_end));
            }
            for tokens in lengths {
                let found = learner.front_end_us()
                    + learner.token_us() * tokens
                    + learner.pair_us() * tokens * tokens / 2.0;
                assert!((found / (9_000.0 + tokens * 50.0) - 1.0).abs() < 0.2, "{learner:?}");
            }
        }
    }

    #[test]
    fn first_samples_are_believed_over_the_guess() {
        let mut learner = PrefillLearner::new(5_000.0, 0.0);
        for _ in 0..6 {
            let (tokens, time_us) = (400.0, 20_000.0);
            learner.learn(&sample(tokens, 0.0, time_us, true));
        }
        let predicted = learner.front_end_us() + learner.token_us() * 400.0;
        assert!((predicted / 20_000.0 - 1.0).abs() < 0.2, "{learner:?}");
    }

    /// An engine that has less of a prompt cached than believed seems to take long for a few
    /// tokens.
    #[test]
    fn few_tokens_that_took_long_do_not_make_all_tokens_dear() {
        let mut learner = PrefillLearner::new(60.0, 0.0);
        let mut learn = |tokens: f64, time_us: f64, demotes: bool| {
            if demotes {
                learner.demote_to_prior();
            }
            let pairs = tokens * 1_500.0;
            learner.learn(&sample(tokens, pairs, time_us, true));
            let (token_us, pair_us) = (learner.token_us(), learner.pair_us());
            learner.front_end_us() + token_us * 1_000.0 + pair_us * 1_500_000.0
        };
        for n in 0..40_u32 {
            let tokens = f64::from(100 + n % 7 * 150);
            learn(tokens, 20_000.0 + tokens * 100.0, false);
        }
        let predicted = learn(5.0, 700_000.0, true);
        assert!(predicted < 500_000.0, "1,000 tokens take 120 ms: {predicted}");
        for _ in 0..4 {
            learn(5.0, 700_000.0, false);
        }
        let predicted = learn(300.0, 50_000.0, false);
        assert!(predicted < 500_000.0, "{predicted}");
    }

    /// Behind the prompts of peers, which are not seen, short ones seem to take as long as long
    /// ones.
    #[test]
    fn short_prompts_that_waited_make_long_ones_take_seconds_and_not_minutes() {
        let mut learner = PrefillLearner::new(60.0, 0.000_5);
        for n in 0..40_u32 {
            let tokens = f64::from(20 + n * 7 % 60);
            let time_us = if n % 4 == 0 { 400_000.0 } else { tokens * 50.0 + 500.0 };
            let pairs = tokens * tokens / 2.0;
            learner.learn(&PrefillSample {
                tokens,
                pairs,
                time_us,
                noise_us: 0.0,
                has_front_end: n % 2 == 0,
            });
            assert!(
                learner.pair_us() <= learner.token_us() / MAX_PAIR_TOKENS * 1.001,
                "{learner:?}"
            );
        }
        let tokens = 12_000.0;
        let predicted = learner.token_us() * tokens + learner.pair_us() * tokens * tokens / 2.0;
        assert!(predicted < 15e6, "{predicted} {learner:?}");
    }

    #[test]
    fn short_prompts_beside_long_steps_cost_what_they_take() {
        let mut learner = PrefillLearner::new(60.0, 0.0);
        for n in 0..2000_u32 {
            let noise = noise(n);
            let tokens = f64::from(n % 6 + 1) * 50.0;
            // The end of a step of 36 ms is off by up to 9 ms.
            let time_us = tokens * 100.0 + 18_000.0 * noise;
            learner.learn(&PrefillSample {
                tokens,
                pairs: tokens * 1_000.0,
                time_us,
                noise_us: 5_400.0,
                has_front_end: false,
            });
        }
        let cost_us = learner.token_us() + 1_000.0 * learner.pair_us();
        assert!((cost_us / 100.0 - 1.0).abs() < 0.2, "{cost_us} {learner:?}");
    }
}
