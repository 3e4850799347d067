//! The progress of the responses of one backend, and whether it is frozen. A frozen backend's pages
//! may be quick while no request gets any more bytes, because a worker behind the HTTP server
//! hangs.
//!
//! **When it is frozen.** No bytes came from it for `health.frozen_after`, and
//! - at least two requests were sent since, whose first bytes were expected within a third of the
//!   time, by the length of their prompts and the measured speed; clients that have left count if
//!   they waited for their expected first byte: otherwise impatient clients would hide the freeze,
//!   and editors that cancel nearly every request would make one; or
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

mod awaited;
mod freeze;
mod silence;
mod stall;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};
use penstock_config::HealthConfig;

use self::awaited::AwaitedWork;
use self::freeze::Freeze;
use self::silence::Silence;
pub(super) use self::stall::StallWatch;
use super::circuit_breaker::BreakerState;

/// The precision of the time of the last progress.
const RESOLUTION: Duration = Duration::from_millis(50);
/// The divisor of the silence within which the first bytes must have been expected.
const EXPECTED_PART: u32 = 3;
/// The prior time per token of a prompt: 100 tokens per second.
const ASSUMED_TOKEN_MICROS: u64 = 10_000;
/// The wait of a client for a first token that shows something before any is measured.
const ASSUMED_FIRST_TOKEN: Duration = Duration::from_secs(1);
/// The fewest tokens of a prompt from which the time per token is learned.
const MIN_TOKENS: u64 = 64;
/// The number of streams that must be silent if the engine reports no counter of tokens.
const MIN_STREAMS: u32 = 2;

/// The progress of the responses of one backend.
#[derive(Debug, Default)]
pub struct ResponseProgress {
    /// The time of the last progress of a response.
    last: AtomicU64,
    /// The time of the last bytes without tokens, such as the comments of a stream that thinks.
    last_bytes: AtomicU64,
    silence: Silence,
    awaited: AwaitedWork,
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
    freeze: Freeze,
}

/// The expected wait of a request for its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedWait {
    /// The tokens of the prompt that are probably not cached.
    pub uncached_tokens: u64,
    /// The usual time between prompt and first byte: the model's thinking, and all of a response
    /// that is not streamed. `None` if unknown: such a request is no evidence of a freeze.
    pub generation: Option<Duration>,
    /// The longest time to expect between prompt and first byte.
    pub longest: Duration,
    /// The longest recent TTFT of the model's streams on any backend; `None` before the first, and
    /// for a response that is not streamed.
    pub first_token: Option<Duration>,
}

/// A request in flight whose first byte is awaited.
#[derive(Debug)]
pub(super) struct AwaitedRequest {
    sent: Timestamp,
    /// The uncached tokens of its prompt.
    uncached_tokens: u64,
    /// Its expected wait, and that for the prompts before it, in microseconds; `None` if unknown.
    expected: Option<(u64, u64)>,
    /// The time before which a client that leaves shows nothing.
    enough: Duration,
    /// The silence after which its stream has stalled; `None` if unknown.
    stall: Option<Duration>,
    /// Its slot among the requests that may take long.
    slot: Option<usize>,
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
        self.freeze.end()
    }

    /// Records bytes of a response that carry no tokens. Returns whether that ends a freeze.
    pub(super) fn note_bytes(&self, now: Timestamp) -> bool {
        self.last_bytes.store(now.0, Ordering::Relaxed);
        self.freeze.end()
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
    pub(super) fn note_sent(
        &self,
        wait: ExpectedWait,
        ahead: u64,
        now: Timestamp,
    ) -> AwaitedRequest {
        let (per_token, last) = (self.token_micros(), self.last_sign());
        let read = wait.uncached_tokens.saturating_mul(per_token);
        let ahead = ahead.saturating_mul(per_token);
        let expected = wait.generation.map(|usual| (read.saturating_add(to_micros(usual)), ahead));
        if let Some((expected, ahead)) = expected {
            self.silence.note_sent(expected, ahead, last, now);
        }
        let prompts = Duration::from_micros(read.saturating_add(ahead));
        let measured = wait.generation.filter(|usual| !usual.is_zero()).or(wait.first_token);
        AwaitedRequest {
            sent: now,
            uncached_tokens: wait.uncached_tokens,
            expected,
            enough: prompts.saturating_add(measured.unwrap_or(ASSUMED_FIRST_TOKEN)),
            stall: wait.first_token.map(|longest| stall::limit(prompts.max(longest))),
            slot: self.awaited.add(prompts.saturating_add(wait.longest), last, now),
        }
    }

    /// The watch for a stall of the stream that responds to `request`.
    pub(super) fn watch_stall(request: &AwaitedRequest) -> StallWatch {
        StallWatch::new(request.sent, request.stall)
    }

    /// Records the first byte of a request: the last progress.
    pub(super) fn note_first_byte(&self, request: &AwaitedRequest) {
        self.learn_rate(request.uncached_tokens, self.last().since(request.sent));
        self.end_wait(request);
    }

    /// Records that the client left a request before its first byte. Returns whether that was too
    /// early to show anything.
    pub(super) fn note_left(&self, request: &AwaitedRequest, now: Timestamp) -> bool {
        let &AwaitedRequest { sent, expected, enough, .. } = request;
        let is_early = now.since(sent) < enough;
        match expected {
            Some(_) if is_early => self.silence.withdraw(sent),
            Some((expected, ahead)) => self.silence.keep(expected, ahead, self.last_sign(), sent),
            None => {}
        }
        is_early
    }

    /// Records that nothing is awaited of a request any more.
    pub(super) fn end_wait(&self, request: &AwaitedRequest) {
        if let Some(slot) = request.slot {
            self.awaited.free(slot);
        }
    }

    /// Returns whether a request in flight may take longer than it has so far, and longer than the
    /// backend has shown no life.
    pub(super) fn has_work_due_later(&self, now: Timestamp) -> bool {
        self.awaited.is_due_later(self.last_sign(), now)
    }

    pub(super) fn note_passed_check(&self, now: Timestamp) {
        self.awaited.note_check(now);
    }

    /// Learns the time per token from a first byte after `took`.
    fn learn_rate(&self, uncached_tokens: u64, took: Duration) {
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
            && (self.silence.is_overdue(config.frozen_after, self.last_sign(), now)
                || self.are_streams_silent(config, now));
        if is_frozen {
            self.freeze.begin(&config.breaker, now);
        }
        is_frozen
    }

    /// Returns whether all streams past their first token are silent, and more than one stream or
    /// the counter of work confirms it.
    fn are_streams_silent(&self, config: &HealthConfig, now: Timestamp) -> bool {
        let streams = self.streams.load(Ordering::Relaxed);
        let stands_still = self.has_worked(config.frozen_after, now) == Some(false);
        streams >= MIN_STREAMS || (streams > 0 && stands_still)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.freeze.since().is_some()
    }

    /// The start of the freeze; `None` if it is not frozen.
    pub(super) fn frozen_since(&self) -> Option<Timestamp> {
        self.freeze.since()
    }

    /// The breaker state that a request finds.
    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        self.freeze.state(now)
    }

    /// Takes the probe slot. Returns the pause before it, in microseconds.
    pub(super) fn try_take_probe(&self, now: Timestamp) -> Option<u64> {
        self.freeze.try_take_probe(now)
    }

    pub(super) fn free_probe(&self) {
        self.freeze.probe.free();
    }

    /// Undoes the longer pause after a probe that proved nothing.
    pub(super) fn set_probe_pause(&self, pause: u64) {
        self.freeze.set_pause(pause);
    }
}

#[cfg(test)]
mod tests;
