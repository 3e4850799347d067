//! The prompts that were sent to an engine and have no first token yet.
//!
//! An engine works in steps. A prompt that arrives during one is computed from the next one on,
//! together with all others that arrived meanwhile. A proxy sees the ends of steps, because tokens
//! come then.

use std::collections::VecDeque;

use super::front_end::Ahead;
use super::residual::Regime;

/// The time in which prefill work decays to 1/e: 10 s.
const DECAY_US: f64 = 10e6;
/// The upper bound of the share of the time spent on prefill: the rest is for the tokens of
/// streams.
pub(super) const MAX_PREFILL_SHARE: f64 = 0.95;
/// The most prompts that are followed one by one; further ones count as decayed work only.
const MAX_PROMPTS: usize = 4096;

/// Returns prefill work, or its share of the time, decayed over `passed_us` microseconds.
pub(super) fn decayed(work_us: f64, passed_us: f64) -> f64 {
    work_us * (-passed_us.max(0.0) / DECAY_US).exp()
}

/// The decayed prefill work of the last seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct DecayedWork {
    /// The work at the time of its last change.
    pub(super) work_us: f64,
    pub(super) updated_at_us: f64,
}

impl DecayedWork {
    fn add(&mut self, work_us: f64, now_us: f64) {
        let passed_us = now_us - self.updated_at_us;
        self.work_us = decayed(self.work_us, passed_us) + work_us;
        self.updated_at_us = now_us;
    }

    fn take_back(&mut self, work_us: f64, now_us: f64) {
        if work_us > 0.0 {
            self.add(-work_us, now_us);
            self.work_us = self.work_us.max(0.0);
        }
    }

    /// Returns the share of the time that prefills take at `now_us`.
    pub(super) fn share_at(self, now_us: f64) -> f64 {
        (decayed(self.work_us, now_us - self.updated_at_us) / DECAY_US).min(MAX_PREFILL_SHARE)
    }
}

/// The end of a step, or the moment at which an idle engine starts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct StepEnd {
    pub(super) at_us: f64,
    /// The number of steps that were seen to end until then.
    pub(super) steps_ended: f64,
    /// The time that the engine had stood still until then.
    pub(super) paused_us: f64,
}

/// A prompt without a first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PrefillPrompt {
    pub(super) number: u64,
    pub(super) sent_at_us: f64,
    /// Its uncached tokens, and the time that they take.
    pub(super) tokens: f64,
    pub(super) work_us: f64,
    /// The time in the front end that its length takes.
    pub(super) tokenizer_us: f64,
    /// The load before it when it was sent.
    pub(super) ahead: Ahead,
    /// The time at which it is taken to be computed, if the response comes in one piece and no
    /// first token is seen; else infinite.
    pub(super) done_at_us: f64,
    /// The prediction for it before correction, and its regime.
    pub(super) raw_ttft_us: f64,
    pub(super) regime: Regime,
    /// The wait that was learned from last.
    pub(super) learned_wait_us: f64,
    /// The step end at which the engine started to compute it.
    pub(super) first_step: Option<StepEnd>,
}

/// Tokens of prompts, and the time that they take.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PromptWork {
    /// The number of uncached tokens.
    pub tokens: f64,
    /// The time that they take beyond the steps that decode.
    pub time_us: f64,
}

impl PromptWork {
    fn add(&mut self, prompt: &PrefillPrompt, sign: f64) {
        self.tokens = (self.tokens + sign * prompt.tokens).max(0.0);
        self.time_us = (self.time_us + sign * prompt.work_us).max(0.0);
    }
}

/// The prompts of one backend, in the order in which they were sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompts {
    prompts: VecDeque<PrefillPrompt>,
    /// The number of prompts, from the front, that had arrived when the current step started; and
    /// the number of these that have a slot.
    admitted_count: usize,
    scheduled_count: usize,
    /// The tokens of the prompts that have a slot.
    scheduled_tokens: f64,
    /// The number of prompts whose response comes in one piece.
    whole_count: usize,
    in_batch: PromptWork,
    /// The part of the time of `in_batch` that is done.
    computed_us: f64,
    queued: PromptWork,
    decayed_work: DecayedWork,
}

impl Prompts {
    /// Adds a prompt that is sent. `first_step` is set for an idle engine, which starts at once.
    pub(super) fn send(&mut self, prompt: PrefillPrompt, first_step: Option<StepEnd>) {
        self.forget_done(prompt.sent_at_us);
        self.decayed_work.add(prompt.work_us, prompt.sent_at_us);
        if self.prompts.len() >= MAX_PROMPTS {
            return;
        }
        // With another prompt before it, the engine is not idle.
        let first_step = first_step.filter(|_| self.scheduled_count == self.prompts.len());
        if first_step.is_some() {
            self.admitted_count += 1;
            self.scheduled_count += 1;
            self.scheduled_tokens += prompt.tokens;
            self.in_batch.add(&prompt, 1.0);
        } else {
            self.queued.add(&prompt, 1.0);
        }
        self.whole_count += usize::from(prompt.done_at_us.is_finite());
        self.prompts.push_back(PrefillPrompt { first_step, ..prompt });
    }

    /// Removes a prompt that has its first token. It took at most the time until now, so that a
    /// cost that was believed to be higher is not taken for work of the last seconds.
    pub(super) fn remove(&mut self, number: u64, now_us: f64) -> Option<PrefillPrompt> {
        self.remove_after(number, now_us, |prompt| now_us - prompt.sent_at_us)
    }

    /// Removes a prompt that has ended without a token. It took at most the time since the engine
    /// started with it: a refused prompt took nearly none, one that waited none at all.
    pub(super) fn leave(&mut self, number: u64, now_us: f64) -> Option<PrefillPrompt> {
        let started_at_us = |prompt: &PrefillPrompt| {
            prompt.first_step.map_or(now_us, |step| step.at_us.max(prompt.sent_at_us))
        };
        self.remove_after(number, now_us, |prompt| now_us - started_at_us(prompt))
    }

    /// Removes a prompt that took at most the time that `most_us` returns.
    fn remove_after(
        &mut self,
        number: u64,
        now_us: f64,
        most_us: impl Fn(&PrefillPrompt) -> f64,
    ) -> Option<PrefillPrompt> {
        let index = self.prompts.iter().position(|one| one.number == number)?;
        let prompt = self.remove_at(index)?;
        let excess_us = (prompt.work_us - most_us(&prompt).max(0.0)).max(0.0);
        let passed_us = (now_us - prompt.sent_at_us).max(0.0);
        self.decayed_work.take_back(decayed(excess_us, passed_us), now_us);
        Some(prompt)
    }

    fn remove_at(&mut self, index: usize) -> Option<PrefillPrompt> {
        let prompt = self.prompts.remove(index)?;
        self.whole_count -= usize::from(prompt.done_at_us.is_finite());
        if index < self.scheduled_count {
            self.scheduled_count -= 1;
            self.scheduled_tokens = (self.scheduled_tokens - prompt.tokens).max(0.0);
        }
        if index < self.admitted_count {
            self.admitted_count -= 1;
            self.in_batch.add(&prompt, -1.0);
            // The work that is done was done for the first prompts.
            self.computed_us = (self.computed_us - prompt.work_us).max(0.0);
        } else {
            self.queued.add(&prompt, -1.0);
        }
        // An empty list resets the sums: rounding errors would add up.
        if self.prompts.is_empty() {
            (self.in_batch, self.queued, self.computed_us) = Default::default();
            self.scheduled_tokens = 0.0;
        } else if self.admitted_count == 0 {
            (self.in_batch, self.computed_us) = Default::default();
        }
        Some(prompt)
    }

    /// Records that steps have ended at `at_us`, after which the engine has computed
    /// `newly_computed_us` of the prompts in the batch. Prompts that had arrived are in the batch
    /// from now on.
    pub(super) fn step_ended(&mut self, at_us: f64, front_end_us: f64, newly_computed_us: f64) {
        self.forget_done(at_us);
        self.computed_us = (self.computed_us + newly_computed_us).min(self.in_batch.time_us);
        while let Some(prompt) = self.prompts.get(self.admitted_count) {
            // Without `tokenizer_us`: the front end reads a later request at the same time, and
            // that request's wait for the batch is shorter by as much.
            if prompt.sent_at_us + front_end_us > at_us {
                break;
            }
            let prompt = *prompt;
            self.queued.add(&prompt, -1.0);
            self.in_batch.add(&prompt, 1.0);
            self.admitted_count += 1;
        }
    }

    /// Starts prompts in the batch while fewer than `free_slots` have started.
    pub(super) fn start(&mut self, step: StepEnd, free_slots: f64) {
        while self.scheduled_count < self.admitted_count
            && (self.scheduled_count as f64) < free_slots
        {
            if let Some(prompt) = self.prompts.get_mut(self.scheduled_count) {
                prompt.first_step = Some(step);
                self.scheduled_tokens += prompt.tokens;
            }
            self.scheduled_count += 1;
        }
    }

    /// Removes prompts whose first tokens are not seen, once they are taken to be computed.
    pub(super) fn forget_done(&mut self, now_us: f64) {
        if self.whole_count == 0 {
            return;
        }
        let mut index = 0;
        while let Some(prompt) = self.prompts.get(index) {
            if prompt.done_at_us > now_us {
                index += 1;
            } else if self.remove_at(index).is_none() {
                return;
            }
        }
    }

    /// Returns all prompts, to be learned from while they wait.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PrefillPrompt> {
        self.prompts.iter_mut()
    }

    /// Returns the oldest prompt whose first token will be seen.
    pub(super) fn first_waiting(&self) -> Option<&PrefillPrompt> {
        self.prompts.iter().find(|one| one.done_at_us.is_infinite())
    }

    /// Returns the tokens of the prompts that the engine started with before `at_us`.
    pub(super) fn started_before(&self, at_us: f64) -> f64 {
        let latest = self.prompts.iter().take(self.scheduled_count).rev();
        let after = latest.take_while(|one| one.first_step.is_some_and(|step| step.at_us >= at_us));
        (self.scheduled_tokens - after.map(|one| one.tokens).sum::<f64>()).max(0.0)
    }

    /// Returns the number of prompts.
    pub(crate) fn count(&self) -> usize {
        self.prompts.len()
    }

    /// Returns the number of prompts that the engine computes.
    pub(crate) fn admitted_count(&self) -> usize {
        self.admitted_count
    }

    /// Returns the remaining work of the prompts that the engine computes.
    pub(crate) fn in_batch(&self) -> PromptWork {
        PromptWork { time_us: (self.in_batch.time_us - self.computed_us).max(0.0), ..self.in_batch }
    }

    /// Returns the prompts that wait for the next step.
    pub(crate) fn queued(&self) -> PromptWork {
        self.queued
    }

    /// Returns the decayed prefill work of the last seconds.
    pub(super) fn decayed_work(&self) -> DecayedWork {
        self.decayed_work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(number: u64, sent_at_us: f64) -> PrefillPrompt {
        PrefillPrompt {
            number,
            sent_at_us,
            tokens: 100.0,
            work_us: 5_000.0,
            tokenizer_us: 0.0,
            ahead: Ahead::default(),
            done_at_us: f64::INFINITY,
            raw_ttft_us: 1.0,
            regime: Regime::Prefill,
            learned_wait_us: 0.0,
            first_step: None,
        }
    }

    #[test]
    fn prompts_enter_with_the_next_step() {
        let mut prompts = Prompts::default();
        prompts.send(prompt(1, 0.0), Some(StepEnd::default()));
        prompts.send(prompt(2, 10.0), None);
        prompts.send(prompt(3, 900.0), None);
        assert_eq!((prompts.in_batch().time_us, prompts.queued().time_us), (5_000.0, 10_000.0));
        prompts.step_ended(500.0, 100.0, 2_000.0);
        let end = StepEnd { at_us: 500.0, steps_ended: 1.0, paused_us: 0.0 };
        prompts.start(end, f64::INFINITY);
        assert_eq!((prompts.in_batch().time_us, prompts.queued().time_us), (8_000.0, 5_000.0));
        assert_eq!(prompts.remove(1, 500.0).unwrap().first_step, Some(StepEnd::default()));
        assert_eq!(prompts.in_batch(), PromptWork { tokens: 100.0, time_us: 5_000.0 });
        assert_eq!(prompts.remove(2, 500.0).unwrap().first_step, Some(end));
        assert_eq!(prompts.remove(2, 500.0), None);
        assert_eq!(prompts.remove(3, 900.0).unwrap().first_step, None);
        assert_eq!((prompts.in_batch(), prompts.queued()), Default::default());
    }

    #[test]
    fn work_that_was_believed_to_take_longer_is_taken_back_when_the_prompt_leaves() {
        let mut prompts = Prompts::default();
        prompts.send(PrefillPrompt { work_us: 90e6, ..prompt(1, 0.0) }, None);
        assert!(prompts.decayed_work().share_at(1e6) > 0.9);
        prompts.remove(1, 1e6);
        let share = prompts.decayed_work().share_at(1e6);
        assert!((0.05..0.12).contains(&share), "a second of the last ten: {share}");
        prompts.send(prompt(2, 2e6), None);
        let before = prompts.decayed_work().share_at(3e6);
        prompts.remove(2, 3e6);
        assert_eq!(prompts.decayed_work().share_at(3e6), before, "it waited for other reasons");
        let without = prompts.decayed_work().share_at(9e6);
        prompts.send(PrefillPrompt { work_us: 1e6, ..prompt(3, 4e6) }, None);
        prompts.leave(3, 9e6);
        let left = prompts.decayed_work().share_at(9e6);
        assert!((left - without).abs() < 1e-9, "it waited, and left: {left} {without}");
    }

    #[test]
    fn prompts_of_whole_responses_end_by_themselves() {
        let mut prompts = Prompts::default();
        prompts.send(PrefillPrompt { done_at_us: 700.0, ..prompt(1, 0.0) }, None);
        prompts.send(prompt(2, 0.0), None);
        prompts.step_ended(600.0, 0.0, 0.0);
        assert_eq!(prompts.count(), 2);
        prompts.step_ended(700.0, 0.0, 0.0);
        assert_eq!((prompts.count(), prompts.admitted_count()), (1, 1));
        assert_eq!(prompts.in_batch().time_us, 5_000.0);
    }
}
