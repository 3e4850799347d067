//! The most tokens that an engine computes in one step, from the steps that prompts take.
//!
//! vLLM, SGLang and TensorRT-LLM split a longer prompt into parts of this size, and no engine
//! reports it. While other streams emit tokens, the ends of its steps are seen, so that they can be
//! counted.

use penstock_api::units::floor_index;

/// The step size of an engine that has shown no other: the default of vLLM.
pub(super) const DEFAULT_STEP_TOKENS: f64 = 2048.0;
/// The sizes that are distinguished: powers of two, as engines are configured, and those between.
const SIZES: [f64; 13] = [
    256.0, 384.0, 512.0, 768.0, 1024.0, 1536.0, 2048.0, 3072.0, 4096.0, 6144.0, 8192.0, 12288.0,
    16384.0,
];
/// The error with which every size but the first one starts. The error of the first one exceeds it
/// after two prompts that took twice as many steps as the first size explains.
const PRIOR_ERROR: f64 = 0.75;
/// The factor by which errors fall with each later sample.
const FORGETTING: f64 = 0.98;
/// The weight of a sample in the mean number of steps.
const MEAN_GAIN: f64 = 0.05;
/// The largest error of a size in relation to that of the first one; of a smaller size also to that
/// of the mean number of steps. Before a hosted API steps do not depend on the tokens, so that no
/// size explains them.
const MAX_ERROR_SHARE: f64 = 0.7;

/// The steps that the prompts of a burst took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PromptSteps {
    /// The number of tokens that were computed.
    pub tokens: f64,
    /// The number of steps that were seen to end meanwhile.
    pub steps: f64,
}

/// The size of steps under which prompts took the number of steps that was seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepSizeLearner {
    /// The decayed sum of the relative errors of each size.
    errors: [f64; SIZES.len()],
    /// The first size and its error.
    first_tokens: f64,
    first_error: f64,
    /// The mean number of steps, decayed, and the error of taking it for every prompt.
    mean_steps: f64,
    mean_error: f64,
}

impl Default for StepSizeLearner {
    fn default() -> Self {
        Self::new(DEFAULT_STEP_TOKENS)
    }
}

impl StepSizeLearner {
    /// Starts with the size that is nearest to `step_tokens`.
    pub(crate) fn new(step_tokens: f64) -> Self {
        let distances = SIZES.map(|size| (size / step_tokens.max(1.0)).ln().abs());
        let nearest = distances.iter().copied().fold(f64::INFINITY, f64::min);
        let errors = distances.map(|one| if one == nearest { 0.0 } else { PRIOR_ERROR });
        Self {
            errors,
            first_tokens: step_tokens,
            first_error: 0.0,
            mean_steps: 1.0,
            mean_error: 0.0,
        }
    }

    /// Learns from prompts that were computed beside `stream_count` streams, each of which takes a
    /// token of every step.
    pub(crate) fn learn(&mut self, seen: &PromptSteps, stream_count: f64) {
        let expected = SIZES.map(|size| steps_of(seen.tokens, size - stream_count));
        // Prompts that fit into the smallest step say nothing.
        if expected.iter().all(|steps| *steps <= 1.0) || seen.steps < 1.0 {
            return;
        }
        let add = |error: &mut f64, steps: f64| {
            *error = *error * FORGETTING + (steps - seen.steps).abs() / steps.max(seen.steps);
        };
        for (error, steps) in self.errors.iter_mut().zip(expected) {
            add(error, steps);
        }
        add(&mut self.mean_error, self.mean_steps);
        self.mean_steps += MEAN_GAIN * (seen.steps - self.mean_steps);
        add(&mut self.first_error, steps_of(seen.tokens, self.first_tokens - stream_count));
    }

    /// Returns the size that explains best what was seen, in tokens: the smallest of those, or the
    /// first size if none is much better.
    pub(crate) fn step_tokens(&self) -> f64 {
        let sizes = SIZES.iter().zip(self.errors);
        let good = sizes.filter(|(size, error)| {
            let mean_error =
                if **size < self.first_tokens { self.mean_error } else { f64::INFINITY };
            *error <= MAX_ERROR_SHARE * self.first_error.min(mean_error)
        });
        good.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(self.first_tokens, |(size, _)| *size)
    }
}

/// Returns the number of steps that tokens take if each has room for `room` of them: at least one.
pub(super) fn steps_of(tokens: f64, room: f64) -> f64 {
    let steps = (tokens / room.max(1.0)).max(1.0);
    // `ceil` is a call on processors of the baseline, and every prediction needs it.
    let whole = floor_index(steps) as f64;
    if whole < steps { whole + 1.0 } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(size: f64, prompts: &[f64]) -> f64 {
        let mut learner = StepSizeLearner::default();
        for (index, tokens) in prompts.iter().cycle().take(40).enumerate() {
            // Every third prompt seems to take a step more: it came just after one had started.
            let noise = f64::from(u8::from(index % 3 == 0));
            let steps = steps_of(*tokens, size - 10.0) + noise;
            learner.learn(&PromptSteps { tokens: *tokens, steps }, 10.0);
        }
        learner.step_tokens()
    }

    #[test]
    fn size_is_learned_from_prompts_that_take_several_steps() {
        let prompts = [700.0, 1_800.0, 3_500.0, 120.0, 9_000.0];
        for size in [512.0, 1_024.0, 2_048.0, 4_096.0] {
            assert_eq!(learned(size, &prompts), size);
        }
    }

    #[test]
    fn prompts_that_fit_into_any_step_leave_the_default() {
        assert_eq!(learned(512.0, &[60.0, 200.0, 240.0]), DEFAULT_STEP_TOKENS);
    }

    #[test]
    fn larger_step_shows_in_prompts_that_take_only_one() {
        assert!(learned(16_384.0, &[6_000.0, 3_000.0]) >= 6_144.0);
    }

    #[test]
    fn engine_without_steps_keeps_the_default() {
        let mut learner = StepSizeLearner::default();
        for tokens in [300.0, 2_000.0, 900.0, 5_000.0].into_iter().cycle().take(100) {
            learner.learn(&PromptSteps { tokens, steps: 50.0 }, 10.0);
        }
        assert_eq!(learner.step_tokens(), DEFAULT_STEP_TOKENS);
    }

    #[test]
    fn change_is_followed() {
        let mut learner = StepSizeLearner::new(512.0);
        for _ in 0..12 {
            learner.learn(&PromptSteps { tokens: 4_000.0, steps: 2.0 }, 10.0);
        }
        assert_eq!(learner.step_tokens(), 2_048.0);
    }
}
