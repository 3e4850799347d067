//! The progress of the responses of one backend, and whether it is frozen. A frozen backend's pages
//! may be quick while no request gets any more bytes, because a worker behind the HTTP server
//! hangs.
//!
//! **When it is frozen.** No bytes came from it for `health.frozen_after`, and
//! - at least two requests were sent since, whose first bytes were expected within a third of the
//!   time, by the length of their prompts and the measured speed; clients that have left still
//!   count, or impatient clients would hide the freeze; or
//! - every stream past its first token is silent, and there are two of them or the engine's own
//!   counter of tokens stands still.
//!
//! A long prefill is expected to take long, a request that loads its model proves nothing, and an
//! engine whose counter of tokens advances is at work for some client.
//!
//! **The consequence.** Other backends are preferred for `breaker.open`, and then one request at a
//! time probes. The first byte of any request ends the freeze at once.
//!
//! **What would break it.** Progress that is not reported. All fields are relaxed: a lost update of
//! two requests at one moment delays a verdict by a request or makes it from one less.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};
use penstock_config::HealthConfig;

use super::circuit_breaker::BreakerState;

/// The precision of the time of the last progress.
const RESOLUTION: Duration = Duration::from_millis(50);
/// The divisor of the silence within which the first bytes must have been expected.
const EXPECTED_PART: u32 = 3;
/// The prior time per token of a prompt: 100 tokens per second.
const ASSUMED_TOKEN_MICROS: u64 = 10_000;
/// The fewest tokens of a prompt from which the time per token is learned.
const MIN_TOKENS: u64 = 64;
/// The number of streams that must be silent if the engine reports no counter of tokens.
const MIN_STREAMS: u32 = 2;

/// The first two requests that wait for their first byte since the last progress, in the order they
/// were sent.
#[derive(Debug, Default)]
struct Silence {
    /// The start of the first request; older than the last progress if there is none.
    first_sent: AtomicU64,
    /// The start of the second request, in the same way.
    second_sent: AtomicU64,
    /// The latest expected time of the first bytes of both, in microseconds from the first start.
    expected: AtomicU64,
}

/// The progress of the responses of one backend.
#[derive(Debug, Default)]
pub struct ResponseProgress {
    /// The time of the last progress of a response.
    last: AtomicU64,
    /// The time of the last bytes without tokens, such as the comments of a stream that thinks.
    last_bytes: AtomicU64,
    silence: Silence,
    /// The time per token of prompts, in microseconds, a moving average; 0 before the first.
    token_micros: AtomicU64,
    /// The streams in flight past their first token.
    streams: AtomicU32,
    /// The requests in flight that load their model.
    loads: AtomicU32,
    /// The last value of the engine's counter of work, and the times at which it was read and
    /// moved.
    work: AtomicU64,
    work_seen_at: AtomicU64,
    work_moved_at: AtomicU64,
    frozen: Frozen,
}

/// The verdict and its probes.
#[derive(Debug, Default)]
struct Frozen {
    /// The start of the freeze; 0 while it is not frozen.
    since: AtomicU64,
    /// The time from which the next request may probe.
    until: AtomicU64,
    /// The pause after the next probe, and the longest pause, in microseconds.
    pause: AtomicU64,
    max_pause: AtomicU64,
    probing: AtomicBool,
}

/// The expected wait of a request for its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedWait {
    /// The tokens of the prompt that are probably not cached.
    pub uncached_tokens: u64,
    /// The time between prompt and first byte: the model's thinking, and all of a response that is
    /// not streamed.
    pub generation: Duration,
}

impl ResponseProgress {
    /// Records progress of a response: tokens or a whole response arrived. Returns whether that
    /// ends a freeze.
    pub(super) fn note(&self, now: Timestamp) -> bool {
        // Stored a few times a second at most, because every stream of the backend writes here.
        if now.since(self.last()) < RESOLUTION {
            return false;
        }
        self.last.store(now.0, Ordering::Relaxed);
        self.frozen.since.load(Ordering::Relaxed) != 0 && self.thaw()
    }

    /// Records bytes of a response that carry no tokens. Returns whether that ends a freeze.
    pub(super) fn note_bytes(&self, now: Timestamp) -> bool {
        self.last_bytes.store(now.0, Ordering::Relaxed);
        self.frozen.since.load(Ordering::Relaxed) != 0 && self.thaw()
    }

    /// The time of the last bytes of any response.
    fn last_sign(&self) -> Timestamp {
        self.last().max(Timestamp(self.last_bytes.load(Ordering::Relaxed)))
    }

    /// The time of the last progress of a response, to within a twentieth of a second.
    pub(super) fn last(&self) -> Timestamp {
        Timestamp(self.last.load(Ordering::Relaxed))
    }

    /// Records that a request was sent. `ahead` is the number of tokens of the prompts that waited
    /// before it.
    pub(super) fn note_sent(&self, wait: ExpectedWait, ahead: u64, now: Timestamp) {
        let read_micros = wait.uncached_tokens.saturating_mul(self.token_micros());
        let expected = read_micros.saturating_add(to_micros(wait.generation));
        let (silence, last) = (&self.silence, self.last_sign().0);
        let is_since = |sent: &AtomicU64| sent.load(Ordering::Relaxed) > last;
        if !is_since(&silence.first_sent) {
            let ahead = ahead.saturating_mul(self.token_micros());
            silence.expected.store(expected.saturating_add(ahead), Ordering::Relaxed);
            silence.first_sent.store(now.0, Ordering::Relaxed);
        } else if !is_since(&silence.second_sent) {
            // Engines read prompts one after the other.
            let before = silence.expected.load(Ordering::Relaxed);
            silence.expected.store(before.saturating_add(expected), Ordering::Relaxed);
            silence.second_sent.store(now.0, Ordering::Relaxed);
        }
    }

    /// Records the first byte of a request after `took`, for a prompt of `uncached_tokens`.
    pub(super) fn note_first_byte(&self, uncached_tokens: u64, took: Duration) {
        if uncached_tokens < MIN_TOKENS {
            return;
        }
        let measured = (to_micros(took) / uncached_tokens).max(1);
        let known = self.token_micros.load(Ordering::Relaxed);
        let mixed = if known == 0 { measured } else { (known * 4 + measured) / 5 };
        self.token_micros.store(mixed.max(1), Ordering::Relaxed);
    }

    fn token_micros(&self) -> u64 {
        match self.token_micros.load(Ordering::Relaxed) {
            0 => ASSUMED_TOKEN_MICROS,
            known => known,
        }
    }

    pub(super) fn begin_stream(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn begin_load(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_load(&self) {
        self.loads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records the engine's own counter of work.
    pub(super) fn note_work(&self, work: f64, now: Timestamp) {
        let bits = work.to_bits();
        if self.work.swap(bits, Ordering::Relaxed) != bits {
            self.work_moved_at.store(now.0, Ordering::Relaxed);
        }
        self.work_seen_at.store(now.0, Ordering::Relaxed);
    }

    /// Returns whether the engine's counter of work moved within `time`; `None` if the engine
    /// reports none.
    fn has_worked(&self, time: Duration, now: Timestamp) -> Option<bool> {
        let seen = Timestamp(self.work_seen_at.load(Ordering::Relaxed));
        let moved = Timestamp(self.work_moved_at.load(Ordering::Relaxed));
        (seen.0 != 0 && now.since(seen) < time).then(|| now.since(moved) < time)
    }

    /// Judges whether the backend is frozen, with `in_flight` requests. Returns whether it has just
    /// become so.
    pub(super) fn judge(&self, in_flight: u32, config: &HealthConfig, now: Timestamp) -> bool {
        if self.is_frozen() || config.frozen_after.is_zero() || in_flight == 0 {
            return false;
        }
        let is_frozen = self.loads.load(Ordering::Relaxed) == 0
            && now.since(self.last_sign()) >= config.frozen_after
            && self.has_worked(config.frozen_after, now) != Some(true)
            && (self.is_overdue(config.frozen_after, now) || self.are_streams_silent(config, now));
        if is_frozen {
            let breaker = &config.breaker;
            self.frozen.pause.store(to_micros(breaker.open), Ordering::Relaxed);
            self.frozen.max_pause.store(to_micros(breaker.max_open), Ordering::Relaxed);
            self.wait_for_probe(now);
            self.frozen.since.store(now.0, Ordering::Relaxed);
        }
        is_frozen
    }

    /// Returns whether the first bytes of two requests are long overdue.
    fn is_overdue(&self, time: Duration, now: Timestamp) -> bool {
        let Silence { first_sent, second_sent, expected } = &self.silence;
        let last = self.last_sign().0;
        let waited = |sent: &AtomicU64| {
            let sent = sent.load(Ordering::Relaxed);
            (sent > last).then(|| now.since(Timestamp(sent)))
        };
        let expected = Duration::from_micros(expected.load(Ordering::Relaxed));
        // The second request gets a fair part of the time, too.
        waited(second_sent).is_some_and(|waited| waited >= time / 2)
            && waited(first_sent)
                .is_some_and(|waited| waited >= time && expected <= waited / EXPECTED_PART)
    }

    /// Returns whether all streams past their first token are silent, and more than one stream or
    /// the counter of work confirms it.
    fn are_streams_silent(&self, config: &HealthConfig, now: Timestamp) -> bool {
        let streams = self.streams.load(Ordering::Relaxed);
        let stands_still = self.has_worked(config.frozen_after, now) == Some(false);
        streams >= MIN_STREAMS || (streams > 0 && stands_still)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.since.load(Ordering::Relaxed) != 0
    }

    /// The start of the freeze; `None` if it is not frozen.
    pub(super) fn frozen_since(&self) -> Option<Timestamp> {
        Some(Timestamp(self.frozen.since.load(Ordering::Relaxed))).filter(|since| since.0 != 0)
    }

    /// The breaker state that a request finds.
    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        let Frozen { until, probing, .. } = &self.frozen;
        match self.is_frozen() {
            false => BreakerState::Closed,
            true if until.load(Ordering::Relaxed) <= now.0 && !probing.load(Ordering::Relaxed) => {
                BreakerState::HalfOpen
            }
            true => BreakerState::Open,
        }
    }

    /// Takes the probe slot. The next probe waits for this one, and for a longer pause each time.
    pub(super) fn try_take_probe(&self, now: Timestamp) -> bool {
        let is_taken = !self.frozen.probing.swap(true, Ordering::AcqRel);
        if is_taken {
            self.wait_for_probe(now);
        }
        is_taken
    }

    pub(super) fn free_probe(&self) {
        self.frozen.probing.store(false, Ordering::Release);
    }

    fn wait_for_probe(&self, now: Timestamp) {
        let Frozen { until, pause, max_pause, .. } = &self.frozen;
        let wait = pause.load(Ordering::Relaxed);
        until.store(now.0.saturating_add(wait), Ordering::Relaxed);
        let longer = wait.saturating_mul(2).min(max_pause.load(Ordering::Relaxed));
        pause.store(longer, Ordering::Relaxed);
    }

    /// Ends a freeze. Returns whether there was one.
    pub(super) fn thaw(&self) -> bool {
        self.frozen.since.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Timestamp {
        Timestamp(0).after(SECOND.mul_f64(seconds + 1.0))
    }

    fn wait(uncached_tokens: u64) -> ExpectedWait {
        ExpectedWait { uncached_tokens, generation: Duration::ZERO }
    }

    fn is_frozen(progress: &ResponseProgress, seconds: f64) -> bool {
        progress.judge(2, &HealthConfig::default(), at(seconds));
        progress.is_frozen()
    }

    #[test]
    fn two_short_prompts_without_a_byte_for_ten_seconds_are_a_freeze() {
        let progress = ResponseProgress::default();
        progress.note_sent(wait(10), 0, at(0.0));
        assert!(!is_frozen(&progress, 30.0), "one request may be anything");
        let progress = ResponseProgress::default();
        progress.note_sent(wait(10), 0, at(0.0));
        progress.note_sent(wait(10), 0, at(1.0));
        assert!(!is_frozen(&progress, 9.9));
        assert!(is_frozen(&progress, 10.0));
        assert_eq!(progress.state(at(11.9)), BreakerState::Open);
        assert_eq!(progress.state(at(12.0)), BreakerState::HalfOpen);
        assert!(progress.try_take_probe(at(12.0)));
        progress.free_probe();
        assert_eq!(progress.state(at(15.9)), BreakerState::Open, "4 s after the last probe");
        assert!(progress.note(at(16.0)), "the first byte ends it");
        assert_eq!(progress.state(at(16.0)), BreakerState::Closed);
        assert!(!is_frozen(&progress, 40.0), "nothing was sent since");
    }

    #[test]
    fn long_prompts_whole_responses_and_loads_take_their_time() {
        let progress = ResponseProgress::default();
        progress.note_sent(wait(500), 0, at(0.0));
        progress.note_sent(wait(10), 0, at(0.0));
        assert!(!is_frozen(&progress, 15.2), "510 tokens at 100 tokens/s take 5.1 s");
        assert!(is_frozen(&progress, 15.4), "a third of the silence");
        let progress = ResponseProgress::default();
        progress.note_first_byte(1000, SECOND);
        progress.note_sent(wait(500), 0, at(0.0));
        progress.note_sent(wait(10), 0, at(0.0));
        assert!(is_frozen(&progress, 10.0), "at 1000 tokens/s");
        let progress = ResponseProgress::default();
        let whole = ExpectedWait { uncached_tokens: 10, generation: SECOND * 20 };
        progress.note_sent(whole, 0, at(0.0));
        progress.note_sent(whole, 0, at(0.0));
        assert!(!is_frozen(&progress, 120.0), "whole responses that take 20 s");
        let progress = ResponseProgress::default();
        progress.begin_load();
        progress.note_sent(wait(10), 0, at(0.0));
        progress.note_sent(wait(10), 0, at(0.0));
        assert!(!is_frozen(&progress, 60.0), "the model is loaded");
        progress.end_load();
        assert!(is_frozen(&progress, 60.0));
    }

    #[test]
    fn progress_and_the_engines_own_counter_are_life() {
        let progress = ResponseProgress::default();
        progress.note_sent(wait(10), 0, at(0.0));
        progress.note_sent(wait(10), 0, at(0.0));
        progress.note(at(4.0));
        assert!(!is_frozen(&progress, 30.0), "the requests before it got it, or may have");
        progress.note_sent(wait(10), 0, at(30.0));
        progress.note_sent(wait(10), 0, at(30.0));
        progress.note_work(7.0, at(35.0));
        assert!(!is_frozen(&progress, 40.0), "the counter moved");
        progress.note_work(7.0, at(44.0));
        assert!(is_frozen(&progress, 45.0), "it stands still");
    }

    #[test]
    fn bytes_without_tokens_are_life_and_no_progress() {
        let progress = ResponseProgress::default();
        progress.note(at(0.0));
        progress.note_sent(wait(10), 0, at(1.0));
        progress.note_sent(wait(10), 0, at(1.0));
        progress.note_bytes(at(20.0));
        assert_eq!(progress.last(), at(0.0));
        assert!(!is_frozen(&progress, 60.0), "the requests before it got it, or may have");
        progress.note_sent(wait(10), 0, at(60.0));
        progress.note_sent(wait(10), 0, at(60.0));
        assert!(is_frozen(&progress, 70.0));
        assert!(progress.note_bytes(at(71.0)), "the next comment ends it");
    }

    #[test]
    fn silent_streams_are_a_freeze_where_a_second_one_or_the_counter_confirms_it() {
        let progress = ResponseProgress::default();
        progress.note(at(0.0));
        progress.begin_stream();
        assert!(!is_frozen(&progress, 30.0), "one stream");
        progress.begin_stream();
        assert!(is_frozen(&progress, 30.0));
        progress.note(at(31.0));
        progress.end_stream();
        assert!(!is_frozen(&progress, 45.0));
        progress.note_work(5.0, at(32.0));
        progress.note_work(5.0, at(45.0));
        assert!(is_frozen(&progress, 45.0), "its counter of tokens stands still");
        assert!(
            !ResponseProgress::default().judge(2, &HealthConfig::default(), at(90.0)),
            "nothing is known"
        );
    }
}
