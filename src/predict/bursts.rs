//! First tokens that come with the end of the same step show what their prompts took together.

use super::prefill::PrefillSample;

/// The share of a step within which two times are the same.
pub(super) const SAME: f64 = 0.3;

/// First tokens that came with the end of the same step.
#[derive(Debug, Clone, Copy, Default)]
struct Burst {
    at: f64,
    /// When the engine started with their prompts, and the number of its steps then.
    start: f64,
    step: f64,
    /// The number of steps in which they were computed, as far as steps were seen to end, and how long one took
    /// without them.
    steps: f64,
    step_time: f64,
    tokens: f64,
    pairs: f64,
    count: u32,
    has_front_end: bool,
}

/// A first token, and what was known of the engine when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstToken {
    pub(super) now: f64,
    pub(super) sent_at: f64,
    /// When the engine started with the prompt, and the number of its steps then.
    pub(super) entered: (f64, f64),
    pub(super) tokens: f64,
    pub(super) pairs: f64,
    /// How long a step takes, and how many were seen to end; `None` where no stream shows them.
    pub(super) step_time: f64,
    pub(super) steps_seen: Option<f64>,
    /// Tokens of a step.
    pub(super) step_tokens: f64,
}

/// The bursts of an engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bursts {
    current: Burst,
    /// When the last burst came, and the number of the step that ended then.
    before: (f64, f64),
}

impl Bursts {
    /// Adds a first token. Returns what the burst before it shows, once it is complete.
    pub(super) fn add(&mut self, first: &FirstToken) -> Option<PrefillSample> {
        let is_new = first.now > self.current.at + SAME * first.step_time;
        let sample = if is_new { self.complete(first.step_tokens) } else { None };
        // Prompts are computed one after the other, so this one from the end of those before on.
        let is_behind = self.current.count == 0 && first.entered.0 < self.before.0;
        let (start, step) = if is_behind { self.before } else { first.entered };
        let has_front_end = start <= first.sent_at;
        let burst = &mut self.current;
        if burst.count == 0 {
            *burst = Burst { at: first.now, start, step, ..Burst::default() };
        }
        burst.has_front_end |= has_front_end;
        burst.steps = first.steps_seen.map_or(0.0, |seen| seen - burst.step);
        burst.step_time = first.step_time;
        burst.tokens += first.tokens;
        burst.pairs += first.pairs;
        burst.count += 1;
        sample
    }

    fn complete(&mut self, step_tokens: f64) -> Option<PrefillSample> {
        let burst = std::mem::take(&mut self.current);
        let Burst { at, start, step, step_time, tokens, pairs, count, has_front_end, .. } = burst;
        if count == 0 {
            return None;
        }
        self.before = (at, step + burst.steps.max(1.0));
        let steps = burst.steps.max(tokens / step_tokens).max(1.0);
        let time = at - start - steps * step_time;
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
            entered: (2_000.0, 0.0),
            tokens: 300.0,
            pairs: 0.0,
            step_time: 15_000.0,
            // No stream showed the end of the first step.
            steps_seen: None,
            step_tokens: 2048.0,
        };
        assert_eq!(bursts.add(&first), None);
        let second =
            FirstToken { now: 65_000.0, entered: (36_999.0, 1.0), steps_seen: Some(2.0), ..first };
        assert_eq!(bursts.add(&second).unwrap().time, 20_000.0);
        let third = FirstToken { now: 120_000.0, ..second };
        assert_eq!(bursts.add(&third).unwrap().time, 13_000.0);
    }
}
