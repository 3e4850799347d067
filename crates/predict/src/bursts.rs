//! Bursts of first tokens: those that come with the end of the same step show what their prompts
//! took together.

use super::prefill::PrefillSample;
use super::prompts::StepEnd;
use super::step_size::{PromptSteps, steps_of};

/// The share of a step within which two times are the same.
pub(super) const SAME_STEP_SHARE: f64 = 0.3;

/// The noise of a step as a share of its duration: it lasts a little longer or shorter than
/// predicted, and its end is seen late.
const STEP_NOISE: f64 = 0.15;
/// The largest share of a complete burst's tokens that prompts without a first token may have: the
/// part of those that was computed took some of the time.
const MAX_UNFINISHED_SHARE: f64 = 0.5;
/// The most bursts that are taken together.
const MAX_BURSTS: u32 = 16;

/// First tokens that came with the end of the same step, or of steps in which the same prompts were
/// computed.
#[derive(Debug, Clone, Copy, Default)]
struct Burst {
    at_us: f64,
    /// The step end at which the engine started with their prompts.
    first_step: StepEnd,
    /// The number of the last step that was counted.
    steps_ended: f64,
    /// The time for which the engine had stood still.
    paused_us: f64,
    /// The time of the steps that were seen to end, without prompts, and their number.
    steps_us: f64,
    step_count: f64,
    /// True if no stream showed the ends of steps before some first token.
    has_unseen_steps: bool,
    /// The duration of one step.
    step_us: f64,
    tokens: f64,
    pairs: f64,
    first_token_count: u32,
    merged_bursts: u32,
    /// Tokens of prompts that the engine has started with, and that have no first token yet.
    unfinished_tokens: f64,
    has_front_end: bool,
    /// The time of the first prompt in the front end by its length, if `has_front_end`.
    tokenizer_us: f64,
}

/// A first token, and what was known of the engine when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstToken {
    pub(super) now_us: f64,
    pub(super) sent_at_us: f64,
    /// The time of the prompt in the front end by its length.
    pub(super) tokenizer_us: f64,
    /// The step end at which the engine started with the prompt.
    pub(super) first_step: StepEnd,
    pub(super) tokens: f64,
    pub(super) pairs: f64,
    /// The duration of a step, and the number that were seen to end; `None` where no stream shows
    /// them.
    pub(super) step_us: f64,
    pub(super) steps_ended: Option<f64>,
    /// The most tokens of a step.
    pub(super) step_tokens: f64,
    /// The time for which the engine has stood still until now.
    pub(super) paused_us: f64,
    /// Tokens of prompts that the engine started with before, and that have no first token yet.
    pub(super) unfinished_tokens: f64,
}

/// The time and the steps of the prompts of a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BurstSample {
    /// Their time beyond the steps.
    pub(super) prefill: PrefillSample,
    /// Their steps, where streams showed them.
    pub(super) steps: Option<PromptSteps>,
}

/// The bursts of an engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bursts {
    current: Burst,
    /// The end of the last burst.
    previous_end: StepEnd,
}

impl Bursts {
    /// Adds a first token. Returns the sample of the burst before it, once that is complete.
    pub(super) fn add(&mut self, first: &FirstToken) -> Option<BurstSample> {
        let is_new = first.now_us > self.current.at_us + SAME_STEP_SHARE * first.step_us;
        let sample =
            if is_new && !self.goes_on() { self.complete(first.step_tokens) } else { None };
        // Prompts are computed one after the other: this one starts at the end of those before.
        let is_behind = first.first_step.at_us < self.previous_end.at_us;
        let start = if is_behind { self.previous_end } else { first.first_step };
        let burst = &mut self.current;
        if burst.first_token_count == 0 {
            // Later than any start, so that the comparison below takes the start.
            let none = StepEnd { at_us: f64::INFINITY, ..start };
            *burst = Burst { first_step: none, steps_ended: start.steps_ended, ..Burst::default() };
        }
        burst.merged_bursts += u32::from(is_new);
        let mut step_count = 0.0;
        if start.at_us < burst.first_step.at_us {
            step_count += (burst.first_step.steps_ended - start.steps_ended).max(0.0);
            burst.first_step = start;
            // An idle engine starts when the request is sent: the time contains the front end.
            burst.has_front_end = start.at_us <= first.sent_at_us;
            burst.tokenizer_us = if burst.has_front_end { first.tokenizer_us } else { 0.0 };
        }
        if let Some(seen) = first.steps_ended {
            step_count += (seen - burst.steps_ended).max(0.0);
            burst.steps_ended = seen;
        }
        burst.has_unseen_steps |= first.steps_ended.is_none();
        burst.step_count += step_count;
        burst.steps_us += step_count * first.step_us;
        burst.step_us = first.step_us;
        (burst.at_us, burst.paused_us) = (first.now_us, first.paused_us);
        burst.tokens += first.tokens;
        burst.pairs += first.pairs;
        burst.first_token_count += 1;
        burst.unfinished_tokens = first.unfinished_tokens;
        sample
    }

    /// Returns whether prompts that were computed at the same time have no first token yet.
    fn goes_on(&self) -> bool {
        let Burst { unfinished_tokens, tokens, merged_bursts, .. } = self.current;
        unfinished_tokens > MAX_UNFINISHED_SHARE * tokens && merged_bursts < MAX_BURSTS
    }

    /// Discards an incomplete burst, because a prompt has left that was being computed: it is
    /// unknown what took how long.
    pub(super) fn discard_unfinished(&mut self) {
        if !self.goes_on() {
            return;
        }
        let Burst { at_us, steps_ended, paused_us, .. } = std::mem::take(&mut self.current);
        self.previous_end = StepEnd { at_us, steps_ended, paused_us };
    }

    fn complete(&mut self, step_tokens: f64) -> Option<BurstSample> {
        let Burst {
            at_us,
            first_step,
            steps_ended,
            paused_us,
            steps_us,
            step_count,
            has_unseen_steps,
            step_us,
            tokens,
            pairs,
            first_token_count,
            has_front_end,
            tokenizer_us,
            ..
        } = std::mem::take(&mut self.current);
        if first_token_count == 0 {
            return None;
        }
        // At least one step has ended with the burst, seen or not.
        self.previous_end =
            StepEnd { at_us, steps_ended: steps_ended + (1.0 - step_count).max(0.0), paused_us };
        let unseen_steps = steps_of(tokens, step_tokens) - step_count;
        let passed_us =
            at_us - first_step.at_us - tokenizer_us - (paused_us - first_step.paused_us);
        let time_us = passed_us - steps_us - unseen_steps.max(0.0) * step_us;
        let noise_us = STEP_NOISE * step_us * (step_count + unseen_steps.max(0.0)).sqrt();
        Some(BurstSample {
            prefill: PrefillSample { tokens, pairs, time_us, noise_us, has_front_end },
            steps: (!has_unseen_steps).then_some(PromptSteps { tokens, steps: step_count }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_behind_the_first_one_took_one_step() {
        let mut bursts = Bursts::default();
        let first = FirstToken {
            now_us: 37_000.0,
            sent_at_us: 2_000.0,
            tokenizer_us: 0.0,
            first_step: StepEnd { at_us: 2_000.0, steps_ended: 0.0, paused_us: 0.0 },
            tokens: 300.0,
            pairs: 0.0,
            step_us: 15_000.0,
            // No stream showed the end of the first step.
            steps_ended: None,
            step_tokens: 2048.0,
            paused_us: 0.0,
            unfinished_tokens: 0.0,
        };
        assert_eq!(bursts.add(&first), None);
        let second = FirstToken {
            now_us: 65_000.0,
            first_step: StepEnd { at_us: 36_999.0, steps_ended: 1.0, paused_us: 0.0 },
            steps_ended: Some(2.0),
            ..first
        };
        assert_eq!(bursts.add(&second).unwrap().prefill.time_us, 20_000.0);
        let third = FirstToken { now_us: 120_000.0, ..second };
        assert_eq!(bursts.add(&third).unwrap().prefill.time_us, 13_000.0);
    }

    fn first_token(
        now_us: f64,
        started_at: f64,
        tokens: f64,
        unfinished_tokens: f64,
    ) -> FirstToken {
        FirstToken {
            now_us,
            sent_at_us: started_at,
            tokenizer_us: 0.0,
            first_step: StepEnd { at_us: started_at, steps_ended: 0.0, paused_us: 0.0 },
            tokens,
            pairs: 0.0,
            step_us: 1_000.0,
            steps_ended: None,
            step_tokens: 2048.0,
            paused_us: 0.0,
            unfinished_tokens,
        }
    }

    #[test]
    fn prompts_that_were_computed_together_are_taken_together() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.add(&first_token(500_000.0, 0.0, 60.0, 800.0)), None);
        assert_eq!(bursts.add(&first_token(860_000.0, 0.0, 800.0, 0.0)), None, "it goes on");
        let sample = bursts.add(&first_token(2e6, 1.9e6, 60.0, 0.0)).unwrap().prefill;
        assert_eq!((sample.tokens, sample.time_us), (860.0, 859_000.0));
    }

    #[test]
    fn cancelled_prompt_discards_the_unfinished_burst() {
        let mut bursts = Bursts::default();
        bursts.add(&first_token(500_000.0, 0.0, 60.0, 800.0));
        bursts.discard_unfinished();
        assert_eq!(bursts.add(&first_token(2e6, 1.9e6, 60.0, 0.0)), None);
        bursts.discard_unfinished();
        assert_eq!(
            bursts.add(&first_token(3e6, 2.9e6, 60.0, 0.0)).unwrap().prefill.tokens,
            60.0,
            "complete"
        );
    }

    #[test]
    fn endless_prompts_are_learned_from_as_well() {
        let mut bursts = Bursts::default();
        let mut samples = 0;
        for n in 0..100_u32 {
            let now_us = f64::from(n + 1) * 1e5;
            samples +=
                u32::from(bursts.add(&first_token(now_us, now_us - 2e5, 60.0, 5_000.0)).is_some());
        }
        assert_eq!(samples, 99 / MAX_BURSTS);
    }
}
