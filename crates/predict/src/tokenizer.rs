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
/// The least share of a prompt that is cached if its time says something: that of a computed prompt
/// says more of the cost of computing it.
const MIN_CACHED_SHARE: f64 = 0.5;
/// The largest time per token of a sample, as a share of that of computing a token: a prompt that
/// takes longer had less cached than believed.
const MAX_TOKEN_SHARE: f64 = 0.5;

/// A first token of a request that was alone with the streams of its engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TokenizerSample {
    /// The tokens of the prompt, and those of them that were believed to be cached.
    pub(super) prompt_tokens: f64,
    pub(super) cached_tokens: f64,
    /// The time to the first token beyond the prediction without a tokenizer.
    pub(super) time_us: f64,
    /// That prediction.
    pub(super) predicted_us: f64,
    /// The time that a token takes to be computed.
    pub(super) token_us: f64,
}

/// Linear least squares with forgetting on `time_us = constant + prompt_tokens x token_us`,
/// relative to the predicted time. The constant is not used: it is an error of the other terms.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TokenizerLearner {
    /// The weighted sums of 1, tokens, squared tokens, times, and products of tokens and times.
    weight: f64,
    tokens: f64,
    squares: f64,
    times: f64,
    products: f64,
}

impl TokenizerLearner {
    /// Learns from one sample, if most of the prompt was cached.
    pub(super) fn learn(&mut self, sample: &TokenizerSample) {
        let TokenizerSample { prompt_tokens, cached_tokens, time_us, predicted_us, token_us } =
            *sample;
        let is_useful = cached_tokens >= MIN_CACHED_SHARE * prompt_tokens
            && time_us <= (MAX_TOKEN_SHARE * token_us).max(PRIOR_TOKEN_US) * prompt_tokens;
        if !is_useful || !time_us.is_finite() || predicted_us <= 0.0 {
            return;
        }
        let weight = (NOISE * predicted_us).powi(-2);
        let add = |sum: &mut f64, value: f64| *sum = *sum * FORGETTING + weight * value;
        add(&mut self.weight, 1.0);
        add(&mut self.tokens, prompt_tokens);
        add(&mut self.squares, prompt_tokens * prompt_tokens);
        add(&mut self.times, time_us);
        add(&mut self.products, prompt_tokens * time_us);
    }

    /// Returns the time per token of a prompt, in microseconds; 0 before anything is known.
    pub(crate) fn token_us(&self) -> f64 {
        if self.weight <= 0.0 {
            return 0.0;
        }
        let covariance = self.products - self.tokens * self.times / self.weight;
        let variance = self.squares - self.tokens * self.tokens / self.weight;
        // The prior: prompts of one length show no slope.
        (covariance / (variance + PRIOR_TOKEN_US.powi(-2))).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of which all but 400 tokens are cached, on an engine that computes them in 20 ms.
    fn sample(prompt_tokens: f64, time_us: f64) -> TokenizerSample {
        TokenizerSample {
            prompt_tokens,
            cached_tokens: prompt_tokens - 400.0,
            time_us,
            predicted_us: 40_000.0,
            token_us: 45.0,
        }
    }

    fn learned(samples: impl Iterator<Item = TokenizerSample>) -> f64 {
        let mut learner = TokenizerLearner::default();
        samples.for_each(|one| learner.learn(&one));
        learner.token_us()
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
        assert_eq!(TokenizerLearner::default().token_us(), 0.0);
        assert!(learned((0..60).map(|_| sample(8_000.0, 24_000.0))) < 0.01);
        let computed = (1..60_u32).map(|n| {
            let tokens = f64::from(n) * 500.0;
            TokenizerSample { cached_tokens: 0.0, ..sample(tokens, 3.0 * tokens) }
        });
        assert_eq!(learned(computed), 0.0);
        // The engine had nothing of them cached.
        let evicted = (1..60_u32).map(|n| sample(f64::from(n) * 500.0, f64::from(n) * 22_000.0));
        assert_eq!(learned(evicted), 0.0);
        // Shorter with longer prompts: chance.
        let inverse = (1..60_u32).map(|n| sample(f64::from(n) * 500.0, 60_000.0 / f64::from(n)));
        assert_eq!(learned(inverse), 0.0);
    }
}
