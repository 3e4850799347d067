//! Engines that emit nothing although streams run there.
//!
//! An engine that stops after first tokens would look best of all: nothing waits there, and no gap
//! between tokens is seen before clients leave. An engine that has been silent for a while is
//! expected to be silent for as long again. Once its streams have left, a single request shows
//! whether it works again; if that gets nothing either, its time is added to the silence.

/// The least silence that counts, in microseconds: 1 s. The tokens of single streams are seen in
/// windows.
const LEAST: f64 = 1e6;
/// The least silence that counts, in steps.
const LEAST_STEPS: f64 = 20.0;
/// A response without a sign is too late after this factor of the expected time, plus the least
/// silence.
const TOO_LONG: f64 = 2.0;
/// The longest silence that is expected, in microseconds: 60 s. A request is lost to an engine that
/// is still silent after it.
const MOST: f64 = 60e6;

/// The silence of an engine with streams.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Silence {
    /// The time of the last further token of a stream, or of the start of the first stream since,
    /// if none has come.
    pub since: f64,
    /// The time until which none was seen: when the last stream left. Infinite while one is there.
    pub until: f64,
}

impl Silence {
    /// Returns the remaining time of the silence at `now`. `step` is the duration of a step, `busy`
    /// the time that the prompts there explain.
    pub(super) fn rest(&self, step: f64, busy: f64, now: f64) -> f64 {
        let seen = now.min(self.until);
        let silent = seen - self.since;
        if silent < least(step) + busy {
            return 0.0;
        }
        (silent.min(MOST) - (now - seen)).max(0.0)
    }
}

/// Returns the least silence that counts, if a step takes `step`.
fn least(step: f64) -> f64 {
    LEAST.max(LEAST_STEPS * step)
}

/// Follows the silence of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Stall {
    seen: Silence,
    /// The last time at which anything came, first tokens and whole responses as well.
    alive_at: f64,
    /// The number of streams whose further tokens are seen.
    streams: u32,
}

impl Stall {
    /// Records the first token of a stream.
    pub(super) fn started(&mut self, step: f64, now: f64) {
        if self.streams == 0 {
            if !self.was_silent(step) {
                self.seen.since = now;
            }
            self.seen.until = f64::INFINITY;
        }
        self.streams += 1;
        self.alive_at = now;
    }

    /// Records a request to an engine without another one: the time without requests is no silence.
    pub(super) fn tried(&mut self, step: f64, now: f64) {
        if self.was_silent(step) {
            self.seen.since += now - self.seen.until;
            self.seen.until = now;
        }
    }

    /// Records a first token, for whose prompt the engine has worked for `work`.
    pub(super) fn computed(&mut self, work: f64, now: f64) {
        self.seen.since = (self.seen.since + work).min(now.max(self.seen.since));
    }

    /// Records a further token, or a whole response.
    pub(super) fn emitted(&mut self, now: f64) {
        self.alive_at = self.alive_at.max(now);
        // Some tokens are learned late, at the end of their stream.
        if self.seen.since.is_infinite() || now > self.seen.since {
            self.seen.since = now;
        }
    }

    /// Records the end of a stream: it is complete, or has been cut.
    pub(super) fn ended(&mut self, is_complete: bool, now: f64) {
        if is_complete {
            self.emitted(now);
        }
        self.streams = self.streams.saturating_sub(1);
        if self.streams == 0 {
            self.seen.until = now;
        }
    }

    /// Records that a client has left to which nothing had come. `expected` is the time that was
    /// predicted for its response.
    pub(super) fn left(&mut self, sent_at: f64, expected: f64, step: f64, now: f64) {
        let is_late = now - sent_at > TOO_LONG * expected + least(step);
        // If others got something meanwhile, the response is long and the engine not silent.
        if !is_late || self.alive_at > sent_at || self.streams > 0 {
            return;
        }
        if !self.was_silent(step) {
            self.seen.since = sent_at;
        }
        self.seen.until = now;
    }

    /// Forgets a silence of long ago.
    pub(super) fn expire(&mut self, now: f64) {
        if now > self.seen.until + 2.0 * MOST {
            self.forget();
        }
    }

    /// Forgets the silence: the engine has started again.
    pub(super) fn forget(&mut self) {
        self.seen.since = f64::INFINITY;
    }

    fn was_silent(&self, step: f64) -> bool {
        self.streams == 0 && self.seen.until - self.seen.since >= least(step)
    }

    /// Returns the silence that decisions read. `is_tried` is true if a request there will show
    /// whether it is over.
    pub(super) fn silence(&self, is_tried: bool, step: f64) -> Silence {
        match is_tried && self.was_silent(step) {
            true => Silence { until: f64::INFINITY, ..self.seen },
            false => self.seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: f64 = 10_000.0;

    fn rest(stall: &Stall, now: f64) -> f64 {
        stall.silence(false, STEP).rest(STEP, 0.0, now)
    }

    #[test]
    fn silent_engine_is_expected_to_be_silent_for_as_long_again() {
        let mut stall = Stall::default();
        stall.started(STEP, 1e6);
        stall.emitted(2e6);
        assert_eq!((rest(&stall, 2.9e6), rest(&stall, 3.5e6)), (0.0, 1.5e6));
        let silence = stall.silence(false, STEP);
        assert_eq!(silence.rest(STEP, 1e6, 3.5e6), 0.0, "its prompts explain it");
        assert_eq!(silence.rest(100_000.0, 0.0, 3.5e6), 0.0, "its steps explain it");
        stall.emitted(3.5e6);
        assert_eq!(rest(&stall, 4.4e6), 0.0);
        assert_eq!(rest(&stall, 1000e6), 60e6, "bounded");
    }

    #[test]
    fn silence_grows_with_each_request_that_tries() {
        let mut stall = Stall::default();
        (0..6).for_each(|_| stall.started(STEP, 10e6));
        (0..6).for_each(|_| stall.ended(false, 13e6));
        assert_eq!((rest(&stall, 14e6), rest(&stall, 16e6)), (2e6, 0.0));
        // One is sent there; the others see that.
        stall.tried(STEP, 20e6);
        assert_eq!(stall.silence(true, STEP).rest(STEP, 0.0, 20e6), 3e6);
        stall.started(STEP, 20e6);
        stall.ended(false, 23e6);
        assert_eq!((rest(&stall, 24e6), rest(&stall, 29e6)), (5e6, 0.0));
        stall.tried(STEP, 30e6);
        stall.started(STEP, 30e6);
        stall.emitted(30.1e6);
        assert_eq!(rest(&stall, 30.2e6), 0.0, "it works again");
        stall.ended(false, 30.2e6);
        assert_eq!(rest(&stall, 31.5e6), 0.0, "no streams, no silence");
        assert_eq!(stall.silence(true, STEP).rest(STEP, 0.0, 100e6), 0.0);
    }

    #[test]
    fn prompts_that_were_computed_are_no_silence() {
        let mut stall = Stall::default();
        stall.started(STEP, 10e6);
        (1..=9_u32).for_each(|n| {
            let now = 10e6 + f64::from(n) * 1e6;
            stall.computed(1e6, now);
            stall.started(STEP, now);
        });
        assert_eq!(rest(&stall, 19.5e6), 0.0);
        assert_eq!(rest(&stall, 21e6), 2e6);
        stall.computed(9e6, 21e6);
        assert_eq!(rest(&stall, 21.5e6), 0.0, "no more than the time that has passed");
    }

    #[test]
    fn clients_that_leave_without_anything_show_silence() {
        let mut stall = Stall::default();
        stall.left(10e6, 0.5e6, STEP, 11.9e6);
        assert_eq!(rest(&stall, 12e6), 0.0, "too early");
        (0..3).for_each(|_| stall.left(10e6, 0.5e6, STEP, 13e6));
        assert_eq!((rest(&stall, 13e6), rest(&stall, 16e6)), (3e6, 0.0));
        stall.tried(STEP, 17e6);
        stall.left(17e6, 0.5e6, STEP, 20e6);
        assert_eq!(rest(&stall, 20e6), 6e6);
        stall.emitted(20e6);
        assert_eq!(rest(&stall, 20e6), 0.0, "a whole response came");
        stall.left(19e6, 0.5e6, STEP, 30e6);
        assert_eq!(rest(&stall, 30e6), 0.0, "others got something meanwhile");
    }

    #[test]
    fn silence_of_long_ago_is_forgotten() {
        let mut stall = Stall::default();
        stall.started(STEP, 10e6);
        stall.ended(false, 13e6);
        stall.expire(100e6);
        assert_ne!(stall.silence(true, STEP).rest(STEP, 0.0, 100e6), 0.0);
        stall.expire(134e6);
        assert_eq!(stall.silence(true, STEP).rest(STEP, 0.0, 134e6), 0.0);
    }

    #[test]
    fn complete_streams_are_no_silence() {
        let mut stall = Stall::default();
        stall.started(STEP, 10e6);
        stall.ended(true, 13e6);
        assert_eq!(rest(&stall, 13e6), 0.0);
    }
}
