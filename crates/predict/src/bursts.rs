//! Bursts of first tokens: those that come with the end of the same step show what their prompts
//! took together.

use super::prefill::PrefillSample;
use super::prompts::StepEnd;

/// The share of a step within which two times are the same.
pub(super) const SAME: f64 = 0.3;

/// The largest share of a complete burst's tokens that prompts without a first token may have: the
/// part of those that was computed took some of the time.
const UNFINISHED: f64 = 0.5;
/// The most bursts that are taken together.
const MOST: u32 = 16;

/// First tokens that came with the end of the same step, or of steps in which the same prompts were
/// computed.
#[derive(Debug, Clone, Copy, Default)]
struct Burst {
    at: f64,
    /// The step end at which the engine started with their prompts.
    start: StepEnd,
    /// The number of the last step that was counted.
    step: f64,
    /// The time of the steps that were seen to end, without prompts, and their number.
    step_time: f64,
    steps: f64,
    /// The duration of one step.
    each: f64,
    tokens: f64,
    pairs: f64,
    count: u32,
    bursts: u32,
    /// Tokens of prompts that the engine has started with, and that have no first token yet.
    unfinished: f64,
    has_front_end: bool,
}

/// A first token, and what was known of the engine when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstToken {
    pub(super) now: f64,
    pub(super) sent_at: f64,
    /// The step end at which the engine started with the prompt.
    pub(super) started: StepEnd,
    pub(super) tokens: f64,
    pub(super) pairs: f64,
    /// The duration of a step, and the number that were seen to end; `None` where no stream shows
    /// them.
    pub(super) step_time: f64,
    pub(super) steps_seen: Option<f64>,
    /// The most tokens of a step.
    pub(super) step_tokens: f64,
    /// Tokens of prompts that the engine started with before, and that have no first token yet.
    pub(super) unfinished: f64,
}

/// The bursts of an engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bursts {
    current: Burst,
    /// The end of the last burst.
    before: StepEnd,
}

impl Bursts {
    /// Adds a first token. Returns the sample of the burst before it, once that is complete.
    pub(super) fn add(&mut self, first: &FirstToken) -> Option<PrefillSample> {
        let is_new = first.now > self.current.at + SAME * first.step_time;
        let sample =
            if is_new && !self.goes_on() { self.complete(first.step_tokens) } else { None };
        // Prompts are computed one after the other: this one starts at the end of those before.
        let is_behind = first.started.at < self.before.at;
        let start = if is_behind { self.before } else { first.started };
        let burst = &mut self.current;
        if burst.count == 0 {
            let none = StepEnd { at: f64::INFINITY, ..start };
            *burst = Burst { start: none, step: start.number, ..Burst::default() };
        }
        burst.bursts += u32::from(is_new);
        let mut steps = 0.0;
        if start.at < burst.start.at {
            steps += (burst.start.number - start.number).max(0.0);
            burst.start = start;
            burst.has_front_end = start.at <= first.sent_at;
        }
        if let Some(seen) = first.steps_seen {
            steps += (seen - burst.step).max(0.0);
            burst.step = seen;
        }
        burst.steps += steps;
        burst.step_time += steps * first.step_time;
        burst.each = first.step_time;
        burst.at = first.now;
        burst.tokens += first.tokens;
        burst.pairs += first.pairs;
        burst.count += 1;
        burst.unfinished = first.unfinished;
        sample
    }

    /// Returns whether prompts that were computed at the same time have no first token yet.
    fn goes_on(&self) -> bool {
        let Burst { unfinished, tokens, bursts, .. } = self.current;
        unfinished > UNFINISHED * tokens && bursts < MOST
    }

    /// Discards an incomplete burst, because a prompt has left that was being computed: it is
    /// unknown what took how long.
    pub(super) fn discard_unfinished(&mut self) {
        if !self.goes_on() {
            return;
        }
        let Burst { at, step, .. } = std::mem::take(&mut self.current);
        self.before = StepEnd { at, number: step };
    }

    fn complete(&mut self, step_tokens: f64) -> Option<PrefillSample> {
        let Burst {
            at,
            start,
            step,
            step_time,
            steps,
            each,
            tokens,
            pairs,
            count,
            has_front_end,
            ..
        } = std::mem::take(&mut self.current);
        if count == 0 {
            return None;
        }
        self.before = StepEnd { at, number: step + (1.0 - steps).max(0.0) };
        let unseen = (tokens / step_tokens).max(1.0) - steps;
        let time = at - start.at - step_time - unseen.max(0.0) * each;
        Some(PrefillSample { tokens, pairs, time, has_front_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_behind_the_first_one_took_one_step() {
        let mut bursts = Bursts::default();
        let first = FirstToken {
            now: 37_000.0,
            sent_at: 2_000.0,
            started: StepEnd { at: 2_000.0, number: 0.0 },
            tokens: 300.0,
            pairs: 0.0,
            step_time: 15_000.0,
            // No stream showed the end of the first step.
            steps_seen: None,
            step_tokens: 2048.0,
            unfinished: 0.0,
        };
        assert_eq!(bursts.add(&first), None);
        let second = FirstToken {
            now: 65_000.0,
            started: StepEnd { at: 36_999.0, number: 1.0 },
            steps_seen: Some(2.0),
            ..first
        };
        assert_eq!(bursts.add(&second).unwrap().time, 20_000.0);
        let third = FirstToken { now: 120_000.0, ..second };
        assert_eq!(bursts.add(&third).unwrap().time, 13_000.0);
    }

    fn first_token(now: f64, started: f64, tokens: f64, unfinished: f64) -> FirstToken {
        FirstToken {
            now,
            sent_at: started,
            started: StepEnd { at: started, number: 0.0 },
            tokens,
            pairs: 0.0,
            step_time: 1_000.0,
            steps_seen: None,
            step_tokens: 2048.0,
            unfinished,
        }
    }

    #[test]
    fn prompts_that_were_computed_together_are_taken_together() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.add(&first_token(500_000.0, 0.0, 60.0, 800.0)), None);
        assert_eq!(bursts.add(&first_token(860_000.0, 0.0, 800.0, 0.0)), None, "it goes on");
        let sample = bursts.add(&first_token(2e6, 1.9e6, 60.0, 0.0)).unwrap();
        assert_eq!((sample.tokens, sample.time), (860.0, 859_000.0));
    }

    #[test]
    fn prompt_that_leaves_takes_what_is_not_known_with_it() {
        let mut bursts = Bursts::default();
        bursts.add(&first_token(500_000.0, 0.0, 60.0, 800.0));
        bursts.discard_unfinished();
        assert_eq!(bursts.add(&first_token(2e6, 1.9e6, 60.0, 0.0)), None);
        bursts.discard_unfinished();
        assert_eq!(
            bursts.add(&first_token(3e6, 2.9e6, 60.0, 0.0)).unwrap().tokens,
            60.0,
            "complete"
        );
    }

    #[test]
    fn endless_prompts_are_learned_from_as_well() {
        let mut bursts = Bursts::default();
        let mut samples = 0;
        for n in 0..100_u32 {
            let now = f64::from(n + 1) * 1e5;
            samples += u32::from(bursts.add(&first_token(now, now - 2e5, 60.0, 5_000.0)).is_some());
        }
        assert_eq!(samples, 99 / MOST);
    }
}
