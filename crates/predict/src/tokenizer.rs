//! The time that a prompt takes before an engine, by its length: the template, the tokenizer and
//! the hashes of its blocks pass over the whole prompt, cached or not. For agents, whose prompts
//! are long and mostly cached, it is a large part of the time to the first token.

use serde::{Deserialize, Serialize};

/// The factor by which the weight of a sample falls with each later sample.
const FORGETTING: f64 = 0.99;
/// The standard deviation of a sample, as a share of the predicted time: the phase of the step, and
/// errors of the other costs.
const NOISE: f64 = 0.3;
/// The prior standard deviation of the time per token, in microseconds. Tokenizers of Hugging Face
/// take 1 to 5 µs per token.
const PRIOR_TOKEN_US: f64 = 5.0;
/// The prior standard deviation of the error of the time in which a prompt is computed, as a share.
const PRIOR_WORK_ERROR: f64 = 1.0;
/// The least share of a prompt that is cached if its time says something: that of a computed prompt
/// says more of the cost of computing it.
const MIN_CACHED_SHARE: f64 = 0.5;
/// The largest time per token, as a share of that of computing one: a prompt that takes longer had
/// less cached than believed.
const MAX_TOKEN_SHARE: f64 = 0.5;
/// The number of standard deviations by which a sample may be off.
const MAX_DEVIATIONS: f64 = 3.0;
/// The number of first samples that may be off by more.
const FIRST_SAMPLES: f64 = 8.0;
/// The least share of a believed time in which a first token can come.
const MIN_BELIEVED_SHARE: f64 = 0.5;
/// The share of its weight that learned state keeps as a prior.
const PRIOR_WEIGHT: f64 = 0.1;

/// A first token of a request that was alone with the streams of its engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TokenizerSample {
    /// The tokens of the prompt, and those of them that were believed to be cached.
    pub(super) prompt_tokens: f64,
    pub(super) cached_tokens: f64,
    /// The predicted time in which the engine computes the others.
    pub(super) work_us: f64,
    /// The time to the first token beyond the prediction without a tokenizer.
    pub(super) time_us: f64,
    /// That prediction.
    pub(super) predicted_us: f64,
    /// The time that a token takes to be computed.
    pub(super) token_us: f64,
}

/// Linear least squares with forgetting on `time_us = constant + prompt_tokens x token_us +
/// work_us x work_error`, relative to the predicted time. Neither the constant nor `work_error` is
/// used: they are errors of the other terms, and must not become a time of the tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerLearner {
    /// The number of samples, decayed as the sums are.
    samples: f64,
    /// The weighted sums of 1, tokens, squared tokens, times, and products of tokens and times.
    weight: f64,
    tokens: f64,
    squares: f64,
    times: f64,
    products: f64,
    /// The sums of the work, of its squares, and of its products with tokens and with times.
    work: [f64; 4],
}

/// A line through the samples.
#[derive(Debug, Clone, Copy)]
struct Fit {
    constant_us: f64,
    token_us: f64,
    work_error: f64,
}

impl TokenizerLearner {
    /// Learns from one sample, if most of the prompt was cached.
    pub(super) fn learn(&mut self, sample: &TokenizerSample) {
        let TokenizerSample { prompt_tokens, cached_tokens, work_us, .. } = *sample;
        let TokenizerSample { time_us, predicted_us, token_us, .. } = *sample;
        let noise_us = NOISE * predicted_us;
        // With room for the noise: without it, long times of short prompts would be left out and
        // short ones not, and that alone would be a slope.
        let max_us = max_token_us(token_us) * prompt_tokens + MAX_DEVIATIONS * noise_us;
        let is_useful = cached_tokens >= MIN_CACHED_SHARE * prompt_tokens && time_us <= max_us;
        let is_plausible = predicted_us + time_us >= MIN_BELIEVED_SHARE * predicted_us;
        if !is_useful || !is_plausible || !time_us.is_finite() || predicted_us <= 0.0 {
            return;
        }
        // One long prompt that was cached in part would outweigh hundreds of short ones.
        let time_us = match self.fit(token_us).filter(|_| self.samples >= FIRST_SAMPLES) {
            None => time_us,
            Some(Fit { constant_us, token_us, work_error }) => {
                let fitted_us = constant_us + token_us * prompt_tokens + work_error * work_us;
                time_us
                    .max(fitted_us - MAX_DEVIATIONS * noise_us)
                    .min(fitted_us + MAX_DEVIATIONS * noise_us)
            }
        };
        let weight = noise_us.powi(-2);
        self.samples = self.samples * FORGETTING + 1.0;
        let add = |sum: &mut f64, value: f64| *sum = *sum * FORGETTING + weight * value;
        add(&mut self.weight, 1.0);
        add(&mut self.tokens, prompt_tokens);
        add(&mut self.squares, prompt_tokens * prompt_tokens);
        add(&mut self.times, time_us);
        add(&mut self.products, prompt_tokens * time_us);
        let of_work = [1.0, work_us, prompt_tokens, time_us];
        self.work.iter_mut().zip(of_work).for_each(|(sum, value)| add(sum, work_us * value));
    }

    /// Learns from the time to any first token that was predicted to come after `tokenizer_us` and
    /// `rest_us`: if it came long before the tokenizer could be done, the engine has changed. A
    /// belief that is too large keeps away the requests that would correct it little by little. A
    /// time that the rest does not explain either, as of a cached response, shows nothing.
    pub(super) fn bound(&mut self, tokenizer_us: f64, rest_us: f64, ttft_us: f64) {
        let is_early = ttft_us < MIN_BELIEVED_SHARE * tokenizer_us;
        if is_early && ttft_us >= MIN_BELIEVED_SHARE * rest_us {
            *self = Self::default();
        }
    }

    /// Returns the time per token of a prompt, in microseconds, on an engine that computes a token
    /// in `computed_us`; 0 before anything is known.
    pub(crate) fn token_us(&self, computed_us: f64) -> f64 {
        self.fit(computed_us).map_or(0.0, |fit| fit.token_us)
    }

    /// Returns the line through the samples; `None` before there are any. The priors of both slopes
    /// are 0, so prompts of one length show none.
    fn fit(&self, computed_us: f64) -> Option<Fit> {
        if self.weight <= 0.0 {
            return None;
        }
        let covariance = |products: f64, one: f64, other: f64| products - one * other / self.weight;
        let [work, work_squares, work_tokens, work_times] = self.work;
        let variance = covariance(self.squares, self.tokens, self.tokens) + PRIOR_TOKEN_US.powi(-2);
        let work_variance = covariance(work_squares, work, work) + PRIOR_WORK_ERROR.powi(-2);
        let both = covariance(work_tokens, work, self.tokens);
        let times = covariance(self.products, self.tokens, self.times);
        let work_times = covariance(work_times, work, self.times);
        let slope_us =
            (times * work_variance - work_times * both) / (variance * work_variance - both * both);
        let token_us = slope_us.max(0.0).min(max_token_us(computed_us));
        let work_error = (work_times - token_us * both) / work_variance;
        let constant_us = (self.times - token_us * self.tokens - work_error * work) / self.weight;
        Some(Fit { constant_us, token_us, work_error })
    }

    /// Keeps what was learned as a prior for a new version of the engine, or for another backend.
    pub(super) fn demote_to_prior(&mut self) {
        let Self { samples, weight, tokens, squares, times, products, work } = self;
        // The first samples are of another engine.
        *samples = 0.0;
        let sums = [weight, tokens, squares, times, products].into_iter().chain(work);
        sums.for_each(|sum| *sum *= PRIOR_WEIGHT);
    }
}

/// Returns the largest time per token, on an engine that computes one in `computed_us`.
fn max_token_us(computed_us: f64) -> f64 {
    (MAX_TOKEN_SHARE * computed_us).max(PRIOR_TOKEN_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of which all but 400 tokens are cached, on an engine that computes them in 20 ms.
    fn sample(prompt_tokens: f64, time_us: f64) -> TokenizerSample {
        TokenizerSample {
            prompt_tokens,
            cached_tokens: prompt_tokens - 400.0,
            work_us: 20_000.0,
            time_us,
            predicted_us: 40_000.0,
            token_us: 45.0,
        }
    }

    fn learned(samples: impl Iterator<Item = TokenizerSample>) -> f64 {
        let mut learner = TokenizerLearner::default();
        samples.for_each(|one| learner.learn(&one));
        learner.token_us(45.0)
    }

    #[test]
    fn slope_is_found_beside_a_constant_and_noise() {
        let samples = (0..60_u32).map(|n| {
            let tokens = 2_000.0 + f64::from(n * 7 % 30) * 1_000.0;
            sample(tokens, 5_000.0 + 3.0 * tokens + f64::from(n % 5) * 4_000.0)
        });
        let found = learned(samples);
        assert!((2.7..=3.3).contains(&found), "{found}");
    }

    #[test]
    fn nothing_is_learned_from_one_length_or_computed_prompts() {
        assert_eq!(TokenizerLearner::default().token_us(45.0), 0.0);
        assert!(learned((0..60).map(|_| sample(8_000.0, 24_000.0))) < 0.01);
        let computed = (1..60_u32).map(|n| {
            let tokens = f64::from(n) * 500.0;
            TokenizerSample {
                cached_tokens: 0.0,
                work_us: 3.0 * tokens,
                ..sample(tokens, 3.0 * tokens)
            }
        });
        assert_eq!(learned(computed), 0.0);
        // The engine had nothing of them cached.
        let evicted = (8..60_u32).map(|n| sample(f64::from(n) * 500.0, f64::from(n) * 32_000.0));
        assert_eq!(learned(evicted), 0.0);
        // Shorter with longer prompts: chance.
        let inverse = (1..60_u32).map(|n| sample(f64::from(n) * 500.0, 60_000.0 / f64::from(n)));
        assert_eq!(learned(inverse), 0.0);
    }

    /// Noise that is as large as that of the learner, of many short prompts.
    #[test]
    fn noise_is_no_slope() {
        let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 32_768.0 - 1.0;
        let samples = (0..400_u32).map(|n| TokenizerSample {
            prompt_tokens: 100.0 + f64::from(n * 7 % 190) * 10.0,
            cached_tokens: 100.0 + f64::from(n * 7 % 190) * 10.0,
            ..sample(0.0, 20_000.0 * noise(n))
        });
        let found = learned(samples);
        assert!(found < 1.5, "{found}");
    }

    #[test]
    fn one_long_prompt_that_was_cached_in_part_changes_little() {
        let honest = (0..300_u32).map(|n| sample(2_000.0 + f64::from(n * 7 % 180) * 100.0, 0.0));
        let long = sample(128_000.0, 2_500_000.0);
        let found = learned(honest.chain([long]));
        assert!(found < 1.0, "{found}");
        // The largest slope is bounded as well.
        let steep = (0..200_u32).map(|n| match n % 2 {
            0 => TokenizerSample { predicted_us: 100_000.0, ..sample(1_000.0, -95_000.0) },
            _ => TokenizerSample { predicted_us: 100_000.0, ..sample(2_000.0, 40_000.0) },
        });
        assert!(learned(steep) <= 22.5);
    }

    /// Prompts that grow with what is new in them, on an engine whose new tokens take 20 µs longer
    /// than believed.
    #[test]
    fn error_of_computing_is_no_slope() {
        let samples = (0..200_u32).map(|n| {
            let uncached = 100.0 + f64::from(n * 7 % 30) * 60.0;
            let tokens = 4.0 * uncached + f64::from(n * 11 % 17) * 100.0;
            let work_us = 40.0 * uncached;
            TokenizerSample { work_us, ..sample(tokens, 0.5 * work_us) }
        });
        let found = learned(samples);
        assert!(found < 0.5, "{found}");
    }

    #[test]
    fn first_token_before_the_tokenizer_is_done_shows_a_change() {
        let mut learner = TokenizerLearner::default();
        for n in 0..60_u32 {
            let tokens = 2_000.0 + f64::from(n * 7 % 30) * 1_000.0;
            learner.learn(&sample(tokens, 3.0 * tokens));
        }
        learner.bound(24_000.0, 15_000.0, 12_500.0);
        // The response itself was cached, by a gateway.
        learner.bound(24_000.0, 15_000.0, 7_000.0);
        learner.learn(&sample(30_000.0, -39_000.0));
        assert!((2.9..=3.0).contains(&learner.token_us(45.0)), "{learner:?}");
        learner.bound(24_000.0, 15_000.0, 11_500.0);
        assert_eq!(learner.token_us(45.0), 0.0);
    }
}
