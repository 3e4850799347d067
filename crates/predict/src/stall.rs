//! Engines that emit nothing although streams run there.
//!
//! An engine that stops after first tokens would look best of all: nothing waits there, and no gap
//! between tokens is seen before clients leave. An engine that has been silent for a while is
//! expected to be silent for as long again. Once its streams have left, a single request shows
//! whether it works again; if that gets nothing either, its time is added to the silence.

/// The least silence that counts, in microseconds: 1 s. The tokens of single streams are seen in
/// windows.
const MIN_SILENCE_US: f64 = 1e6;
/// The least silence that counts, in steps.
const MIN_SILENCE_STEPS: f64 = 20.0;
/// A response without a sign is too late after this factor of the expected time, plus the least
/// silence.
const LATE_FACTOR: f64 = 2.0;
/// The longest silence that is expected, in microseconds: 60 s. A request is lost to an engine that
/// is still silent after it.
const MAX_SILENCE_US: f64 = 60e6;

/// The silence of an engine with streams.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct StreamSilence {
    /// The time of the last further token of a stream, or of the start of the first stream since,
    /// if none has come.
    pub since_us: f64,
    /// The time until which none was seen: when the last stream left. Infinite while one is there.
    pub until_us: f64,
}

impl StreamSilence {
    /// Returns the remaining time of the silence at `now_us`. `step_us` is the duration of a step,
    /// `busy_us` the time that the prompts there explain.
    pub(super) fn remaining_us(&self, step_us: f64, busy_us: f64, now_us: f64) -> f64 {
        let seen_at_us = now_us.min(self.until_us);
        let silent_us = seen_at_us - self.since_us;
        if silent_us < min_silence_us(step_us) + busy_us {
            return 0.0;
        }
        (silent_us.min(MAX_SILENCE_US) - (now_us - seen_at_us)).max(0.0)
    }
}

/// Returns the least silence that counts, if a step takes `step_us`.
fn min_silence_us(step_us: f64) -> f64 {
    MIN_SILENCE_US.max(MIN_SILENCE_STEPS * step_us)
}

/// Follows the silence of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Stall {
    silence: StreamSilence,
    /// The last time at which anything came, first tokens and whole responses as well.
    alive_at_us: f64,
    /// The number of streams whose further tokens are seen.
    stream_count: u32,
}

impl Stall {
    /// Records the first token of a stream.
    pub(super) fn started(&mut self, step_us: f64, now_us: f64) {
        if self.stream_count == 0 {
            if !self.was_silent(step_us) {
                self.silence.since_us = now_us;
            }
            self.silence.until_us = f64::INFINITY;
        }
        self.stream_count += 1;
        self.alive_at_us = now_us;
    }

    /// Records a request to an engine without another one: the time without requests is no silence.
    pub(super) fn tried(&mut self, step_us: f64, now_us: f64) {
        if self.was_silent(step_us) {
            self.silence.since_us += now_us - self.silence.until_us;
            self.silence.until_us = now_us;
        }
    }

    /// Records a first token, for whose prompt the engine has worked for `work_us`.
    pub(super) fn computed(&mut self, work_us: f64, now_us: f64) {
        self.silence.since_us =
            (self.silence.since_us + work_us).min(now_us.max(self.silence.since_us));
    }

    /// Records a further token, or a whole response.
    pub(super) fn emitted(&mut self, now_us: f64) {
        self.alive_at_us = self.alive_at_us.max(now_us);
        // Some tokens are learned late, at the end of their stream.
        if self.silence.since_us.is_infinite() || now_us > self.silence.since_us {
            self.silence.since_us = now_us;
        }
    }

    /// Records the end of a stream: it is complete, or has been cut.
    pub(super) fn ended(&mut self, is_complete: bool, now_us: f64) {
        if is_complete {
            self.emitted(now_us);
        }
        self.stream_count = self.stream_count.saturating_sub(1);
        if self.stream_count == 0 {
            self.silence.until_us = now_us;
        }
    }

    /// Records that a client has left to which nothing had come. `expected_us` is the time that was
    /// predicted for its response.
    pub(super) fn left(&mut self, sent_at_us: f64, expected_us: f64, step_us: f64, now_us: f64) {
        let is_late = now_us - sent_at_us > LATE_FACTOR * expected_us + min_silence_us(step_us);
        // If others got something meanwhile, the response is long and the engine not silent.
        if !is_late || self.alive_at_us > sent_at_us || self.stream_count > 0 {
            return;
        }
        if !self.was_silent(step_us) {
            self.silence.since_us = sent_at_us;
        }
        self.silence.until_us = now_us;
    }

    /// Forgets a silence of long ago.
    pub(super) fn expire(&mut self, now_us: f64) {
        if now_us > self.silence.until_us + 2.0 * MAX_SILENCE_US {
            self.forget();
        }
    }

    /// Forgets the silence: the engine has started again.
    pub(super) fn forget(&mut self) {
        self.silence.since_us = f64::INFINITY;
    }

    fn was_silent(&self, step_us: f64) -> bool {
        self.stream_count == 0
            && self.silence.until_us - self.silence.since_us >= min_silence_us(step_us)
    }

    /// Returns the silence that decisions read. `is_tried` is true if a request there will show
    /// whether it is over.
    pub(super) fn silence(&self, is_tried: bool, step_us: f64) -> StreamSilence {
        match is_tried && self.was_silent(step_us) {
            true => StreamSilence { until_us: f64::INFINITY, ..self.silence },
            false => self.silence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: f64 = 10_000.0;

    fn rest_us(stall: &Stall, now_us: f64) -> f64 {
        stall.silence(false, STEP).remaining_us(STEP, 0.0, now_us)
    }

    #[test]
    fn silent_engine_is_expected_to_be_silent_for_as_long_again() {
        let mut stall = Stall::default();
        stall.started(STEP, 1e6);
        stall.emitted(2e6);
        assert_eq!((rest_us(&stall, 2.9e6), rest_us(&stall, 3.5e6)), (0.0, 1.5e6));
        let silence = stall.silence(false, STEP);
        assert_eq!(silence.remaining_us(STEP, 1e6, 3.5e6), 0.0, "its prompts explain it");
        assert_eq!(silence.remaining_us(100_000.0, 0.0, 3.5e6), 0.0, "its steps explain it");
        stall.emitted(3.5e6);
        assert_eq!(rest_us(&stall, 4.4e6), 0.0);
        assert_eq!(rest_us(&stall, 1000e6), 60e6, "bounded");
    }

    #[test]
    fn silence_grows_with_each_request_that_tries() {
        let mut stall = Stall::default();
        (0..6).for_each(|_| stall.started(STEP, 10e6));
        (0..6).for_each(|_| stall.ended(false, 13e6));
        assert_eq!((rest_us(&stall, 14e6), rest_us(&stall, 16e6)), (2e6, 0.0));
        // One is sent there; the others see that.
        stall.tried(STEP, 20e6);
        assert_eq!(stall.silence(true, STEP).remaining_us(STEP, 0.0, 20e6), 3e6);
        stall.started(STEP, 20e6);
        stall.ended(false, 23e6);
        assert_eq!((rest_us(&stall, 24e6), rest_us(&stall, 29e6)), (5e6, 0.0));
        stall.tried(STEP, 30e6);
        stall.started(STEP, 30e6);
        stall.emitted(30.1e6);
        assert_eq!(rest_us(&stall, 30.2e6), 0.0, "it works again");
        stall.ended(false, 30.2e6);
        assert_eq!(rest_us(&stall, 31.5e6), 0.0, "no streams, no silence");
        assert_eq!(stall.silence(true, STEP).remaining_us(STEP, 0.0, 100e6), 0.0);
    }

    #[test]
    fn computing_prompts_is_no_stall() {
        let mut stall = Stall::default();
        stall.started(STEP, 10e6);
        (1..=9_u32).for_each(|n| {
            let now_us = 10e6 + f64::from(n) * 1e6;
            stall.computed(1e6, now_us);
            stall.started(STEP, now_us);
        });
        assert_eq!(rest_us(&stall, 19.5e6), 0.0);
        assert_eq!(rest_us(&stall, 21e6), 2e6);
        stall.computed(9e6, 21e6);
        assert_eq!(rest_us(&stall, 21.5e6), 0.0, "no more than the time that has passed");
    }

    #[test]
    fn disconnects_before_the_first_token_indicate_a_stall() {
        let mut stall = Stall::default();
        stall.left(10e6, 0.5e6, STEP, 11.9e6);
        assert_eq!(rest_us(&stall, 12e6), 0.0, "too early");
        (0..3).for_each(|_| stall.left(10e6, 0.5e6, STEP, 13e6));
        assert_eq!((rest_us(&stall, 13e6), rest_us(&stall, 16e6)), (3e6, 0.0));
        stall.tried(STEP, 17e6);
        stall.left(17e6, 0.5e6, STEP, 20e6);
        assert_eq!(rest_us(&stall, 20e6), 6e6);
        stall.emitted(20e6);
        assert_eq!(rest_us(&stall, 20e6), 0.0, "a whole response came");
        stall.left(19e6, 0.5e6, STEP, 30e6);
        assert_eq!(rest_us(&stall, 30e6), 0.0, "others got something meanwhile");
    }

    #[test]
    fn silence_of_long_ago_is_forgotten() {
        let mut stall = Stall::default();
        stall.started(STEP, 10e6);
        stall.ended(false, 13e6);
        stall.expire(100e6);
        assert_ne!(stall.silence(true, STEP).remaining_us(STEP, 0.0, 100e6), 0.0);
        stall.expire(134e6);
        assert_eq!(stall.silence(true, STEP).remaining_us(STEP, 0.0, 134e6), 0.0);
    }

    #[test]
    fn complete_streams_are_no_silence() {
        let mut stall = Stall::default();
        stall.started(STEP, 10e6);
        stall.ended(true, 13e6);
        assert_eq!(rest_us(&stall, 13e6), 0.0);
    }
}
