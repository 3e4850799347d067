//! The linear model of step duration.

/// The linear model of a step's duration: `base + per_token P + per_decode D + per_context K +
/// per_pair A`. `P` is the number of new prompt tokens, `D` that of decoding requests, `K` that of
/// tokens in their contexts. `A` is the number of attention pairs of the prompt chunks: `n (s +
/// n/2)` for a chunk of `n` tokens after `s`. All coefficients are in picoseconds.
///
/// Source: the shape is that of the regression models of vLLM simulators (BLIS, Vidur, Dynamo's
/// mocker), without their per-request constants. On three recorded vLLM 0.19 runs it predicts mean
/// latencies within 4 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTime {
    /// The cost of every step: reading weights, launching kernels, running the scheduler.
    pub base: u64,
    /// The cost of a new prompt token.
    pub per_token: u64,
    /// The cost of a decoding request.
    pub per_decode: u64,
    /// The cost of a token in the context of a decoding request.
    pub per_context: u64,
    /// The cost of a pair of tokens in the attention of a prompt chunk.
    pub per_pair: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepWork {
    /// The number of new prompt tokens.
    pub prompt_tokens: u64,
    /// The number of decoding requests.
    pub decodes: u64,
    /// The number of tokens in their contexts.
    pub context: u64,
    /// Twice the number of attention pairs of the prompt chunks, which is an integer.
    pub double_pairs: u64,
}

impl StepWork {
    /// Adds a chunk of `tokens` tokens to a prompt of which `computed` are done.
    pub fn add_chunk(&mut self, computed: u32, tokens: u32) {
        let (computed, tokens) = (u64::from(computed), u64::from(tokens));
        self.prompt_tokens += tokens;
        self.double_pairs += tokens * (2 * computed + tokens);
    }
}

impl StepTime {
    /// Converts coefficients in convenient units: milliseconds per step, microseconds per prompt
    /// token and per decoding request, microseconds per 1,000 tokens of context and per million
    /// attention pairs.
    pub fn of_coefficients([base_ms, token_us, decode_us, context_us, pair_us]: [f64; 5]) -> Self {
        Self {
            base: picoseconds(base_ms * 1e-3),
            per_token: picoseconds(token_us * 1e-6),
            per_decode: picoseconds(decode_us * 1e-6),
            per_context: picoseconds(context_us * 1e-9),
            per_pair: picoseconds(pair_us * 1e-12),
        }
    }

    /// Returns the duration of one step.
    pub fn of(&self, work: &StepWork) -> u64 {
        self.base
            + self.per_token * work.prompt_tokens
            + self.per_decode * work.decodes
            + self.per_context * work.context
            + self.per_pair * work.double_pairs / 2
    }

    /// Returns the duration of `steps` steps in which `decodes` requests decode, whose contexts
    /// have `context` tokens at first. Each step lengthens every context by one token, so the sum
    /// is an arithmetic series.
    pub fn of_steps(&self, steps: u64, decodes: u64, context: u64) -> u64 {
        let first = self.of(&StepWork { decodes, context, ..StepWork::default() });
        let growth = self.per_context * decodes;
        steps * first + growth * (steps * steps.saturating_sub(1) / 2)
    }
}

/// Converts seconds to whole picoseconds.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and times after the start are not negative"
)]
pub fn picoseconds(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

#[cfg(test)]
mod tests {
    use super::super::StepModel;
    use super::*;

    #[test]
    fn series_is_the_sum_of_its_steps() {
        let time = StepTime { base: 7, per_token: 11, per_decode: 3, per_context: 5, per_pair: 2 };
        let mut sum = 0;
        for steps in 0..50 {
            assert_eq!(time.of_steps(steps, 4, 100), sum);
            sum +=
                time.of(&StepWork { decodes: 4, context: 100 + 4 * steps, ..StepWork::default() });
            let model = StepModel::from(time);
            assert_eq!(model.steps_within(sum, 1000, 4, 100), steps + 1);
            assert_eq!(model.steps_within(sum - 1, 1000, 4, 100), steps + 1);
            assert_eq!(model.steps_within(sum + 1, 1000, 4, 100), steps + 2);
        }
    }

    #[test]
    fn chunks_of_a_prompt_have_its_pairs() {
        let mut whole = StepWork::default();
        whole.add_chunk(0, 100);
        let mut parts = StepWork::default();
        parts.add_chunk(0, 30);
        parts.add_chunk(30, 70);
        assert_eq!(whole, parts);
        assert_eq!(whole.double_pairs, 100 * 100);
    }
}
