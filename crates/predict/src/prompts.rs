//! The prompts that were sent to an engine and have no first token yet.
//!
//! An engine works in steps. A prompt that arrives during one is computed from the next one on,
//! together with all others that arrived meanwhile. A proxy sees the ends of steps, because tokens
//! come then.

use std::collections::VecDeque;

use super::front_end::Ahead;
use super::residual::Regime;

/// The time in which prefill work decays to 1/e: 10 s.
const DECAY: f64 = 10e6;
/// The upper bound of the share of the time spent on prefill: the rest is for the tokens of
/// streams.
const MOST_SHARE: f64 = 0.95;
/// The most prompts that are followed one by one; further ones count as recent work only.
const MOST: usize = 4096;

/// Returns prefill work, or its share of the time, decayed over `passed` microseconds.
pub(super) fn decayed(work: f64, passed: f64) -> f64 {
    work * (-passed.max(0.0) / DECAY).exp()
}

/// Returns the share of the time that prefills took, if their decayed work was `recent` at
/// `changed`.
pub(super) fn share_at(recent: f64, changed: f64, now: f64) -> f64 {
    (decayed(recent, now - changed) / DECAY).min(MOST_SHARE)
}

/// The end of a step, or the moment at which an idle engine starts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct StepEnd {
    pub(super) at: f64,
    /// The number of steps that were seen to end until then.
    pub(super) number: f64,
}

/// A prompt without a first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prompt {
    pub(super) number: u64,
    pub(super) sent_at: f64,
    /// Its uncached tokens, and the time that they take.
    pub(super) tokens: f64,
    pub(super) work: f64,
    /// The load before it when it was sent.
    pub(super) ahead: Ahead,
    /// The time at which it is taken to be computed, if the response comes in one piece and no
    /// first token is seen; else infinite.
    pub(super) done_at: f64,
    /// The prediction for it before correction, and its regime.
    pub(super) raw: f64,
    pub(super) regime: Regime,
    /// The wait that was learned from last.
    pub(super) learned: f64,
    /// The step end at which the engine started to compute it.
    pub(super) started: Option<StepEnd>,
}

/// Tokens of prompts, and the time that they take.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// The number of uncached tokens.
    pub tokens: f64,
    /// The time that they take beyond the steps that decode.
    pub time: f64,
}

impl Work {
    fn add(&mut self, prompt: &Prompt, sign: f64) {
        self.tokens = (self.tokens + sign * prompt.tokens).max(0.0);
        self.time = (self.time + sign * prompt.work).max(0.0);
    }
}

/// The prompts of one backend, in the order in which they were sent.
#[derive(Debug, Clone, Default)]
pub struct Prompts {
    prompts: VecDeque<Prompt>,
    /// The number of prompts, from the front, that had arrived when the current step started; and
    /// the number of these that have a slot.
    entered: usize,
    started: usize,
    /// The tokens of the prompts that have a slot.
    started_tokens: f64,
    /// The number of prompts whose response comes in one piece.
    whole: usize,
    inside: Work,
    /// The part of the time of `inside` that is done.
    done: f64,
    outside: Work,
    /// The decayed prefill work of the last seconds, and the time of its last change.
    recent: f64,
    changed: f64,
}

impl Prompts {
    /// Adds a prompt that is sent. `enters` is set for an idle engine, which starts at once.
    pub(super) fn send(&mut self, prompt: Prompt, enters: Option<StepEnd>) {
        self.forget_done(prompt.sent_at);
        self.recent = decayed(self.recent, prompt.sent_at - self.changed) + prompt.work;
        self.changed = prompt.sent_at;
        if self.prompts.len() >= MOST {
            return;
        }
        let enters = enters.filter(|_| self.started == self.prompts.len());
        if enters.is_some() {
            self.entered += 1;
            self.started += 1;
            self.started_tokens += prompt.tokens;
            self.inside.add(&prompt, 1.0);
        } else {
            self.outside.add(&prompt, 1.0);
        }
        self.whole += usize::from(prompt.done_at.is_finite());
        self.prompts.push_back(Prompt { started: enters, ..prompt });
    }

    /// Removes a prompt that has its first token, or has left.
    pub(super) fn remove(&mut self, number: u64) -> Option<Prompt> {
        let index = self.prompts.iter().position(|one| one.number == number)?;
        self.remove_at(index)
    }

    fn remove_at(&mut self, index: usize) -> Option<Prompt> {
        let prompt = self.prompts.remove(index)?;
        self.whole -= usize::from(prompt.done_at.is_finite());
        if index < self.started {
            self.started -= 1;
            self.started_tokens = (self.started_tokens - prompt.tokens).max(0.0);
        }
        if index < self.entered {
            self.entered -= 1;
            self.inside.add(&prompt, -1.0);
            // The work that is done was done for the first prompts.
            self.done = (self.done - prompt.work).max(0.0);
        } else {
            self.outside.add(&prompt, -1.0);
        }
        if self.prompts.is_empty() {
            (self.inside, self.outside, self.done) = Default::default();
            self.started_tokens = 0.0;
        } else if self.entered == 0 {
            (self.inside, self.done) = Default::default();
        }
        Some(prompt)
    }

    /// Records that steps have ended at `at`, after which the engine has computed `computed` of the
    /// prompts inside. Prompts that had arrived are inside from now on.
    pub(super) fn step_ended(&mut self, at: f64, front_end: f64, computed: f64) {
        self.forget_done(at);
        self.done = (self.done + computed).min(self.inside.time);
        while let Some(prompt) = self.prompts.get(self.entered) {
            if prompt.sent_at + front_end > at {
                break;
            }
            let prompt = *prompt;
            self.outside.add(&prompt, -1.0);
            self.inside.add(&prompt, 1.0);
            self.entered += 1;
        }
    }

    /// Starts prompts inside while fewer than `room` have started.
    pub(super) fn start(&mut self, now: StepEnd, room: f64) {
        while self.started < self.entered && (self.started as f64) < room {
            if let Some(prompt) = self.prompts.get_mut(self.started) {
                prompt.started = Some(now);
                self.started_tokens += prompt.tokens;
            }
            self.started += 1;
        }
    }

    /// Removes prompts whose first tokens are not seen, once they are taken to be computed.
    pub(super) fn forget_done(&mut self, now: f64) {
        if self.whole == 0 {
            return;
        }
        let mut index = 0;
        while let Some(prompt) = self.prompts.get(index) {
            if prompt.done_at > now {
                index += 1;
            } else if self.remove_at(index).is_none() {
                return;
            }
        }
    }

    /// Returns all prompts, to be learned from while they wait.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Prompt> {
        self.prompts.iter_mut()
    }

    /// Returns the oldest prompt whose first token will be seen.
    pub(super) fn first_waiting(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|one| one.done_at.is_infinite())
    }

    /// Returns the tokens of the prompts that the engine started with before `at`.
    pub(super) fn started_before(&self, at: f64) -> f64 {
        let latest = self.prompts.iter().take(self.started).rev();
        let after = latest.take_while(|one| one.started.is_some_and(|started| started.at >= at));
        (self.started_tokens - after.map(|one| one.tokens).sum::<f64>()).max(0.0)
    }

    /// Returns the number of prompts.
    pub fn count(&self) -> usize {
        self.prompts.len()
    }

    /// Returns the number of prompts that the engine computes.
    pub fn entered(&self) -> usize {
        self.entered
    }

    /// Returns the remaining work of the prompts that the engine computes.
    pub fn inside(&self) -> Work {
        Work { time: (self.inside.time - self.done).max(0.0), ..self.inside }
    }

    /// Returns the prompts that wait for the next step.
    pub fn outside(&self) -> Work {
        self.outside
    }

    /// Returns the decayed prefill work of the last seconds, and the time of its last change.
    pub fn recent(&self) -> (f64, f64) {
        (self.recent, self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(number: u64, sent_at: f64) -> Prompt {
        Prompt {
            number,
            sent_at,
            tokens: 100.0,
            work: 5_000.0,
            ahead: Ahead::default(),
            done_at: f64::INFINITY,
            raw: 1.0,
            regime: Regime::Prefill,
            learned: 0.0,
            started: None,
        }
    }

    #[test]
    fn prompts_enter_with_the_next_step() {
        let mut prompts = Prompts::default();
        prompts.send(prompt(1, 0.0), Some(StepEnd { at: 0.0, number: 0.0 }));
        prompts.send(prompt(2, 10.0), None);
        prompts.send(prompt(3, 900.0), None);
        assert_eq!((prompts.inside().time, prompts.outside().time), (5_000.0, 10_000.0));
        prompts.step_ended(500.0, 100.0, 2_000.0);
        let end = StepEnd { at: 500.0, number: 1.0 };
        prompts.start(end, f64::INFINITY);
        assert_eq!((prompts.inside().time, prompts.outside().time), (8_000.0, 5_000.0));
        assert_eq!(prompts.remove(1).unwrap().started, Some(StepEnd { at: 0.0, number: 0.0 }));
        assert_eq!(prompts.inside(), Work { tokens: 100.0, time: 5_000.0 });
        assert_eq!(prompts.remove(2).unwrap().started, Some(end));
        assert_eq!(prompts.remove(2), None);
        assert_eq!(prompts.remove(3).unwrap().started, None);
        assert_eq!((prompts.inside(), prompts.outside()), Default::default());
    }

    #[test]
    fn prompts_of_whole_responses_end_by_themselves() {
        let mut prompts = Prompts::default();
        prompts.send(Prompt { done_at: 700.0, ..prompt(1, 0.0) }, None);
        prompts.send(prompt(2, 0.0), None);
        prompts.step_ended(600.0, 0.0, 0.0);
        assert_eq!(prompts.count(), 2);
        prompts.step_ended(700.0, 0.0, 0.0);
        assert_eq!((prompts.count(), prompts.entered()), (1, 1));
        assert_eq!(prompts.inside().time, 5_000.0);
    }
}
