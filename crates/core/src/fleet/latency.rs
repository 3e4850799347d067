//! The latencies of a model on a backend, learned from its responses.
//!
//! All averages are single atomics, written by the attempts that end and read by every decision. An
//! update is a load, a computation and a store: of two attempts that end at the same moment one
//! sample may be lost. That makes the average slightly older, never wrong, and costs no lock and no
//! retry loop.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{Timestamp, TokenCount, lower_half, to_micros};

use super::drain_estimate::ExpectedResponse;
use super::durations::Durations;
use super::event_tokens::{EventTokens, TokenCounter};
use super::learned_context::LearnedContext;
use super::outcome::Outcome;

/// The time in which a peak falls to 1/e of its value: 10 s, as in Finagle.
const DECAY_MICROS: f64 = 10e6;
/// Microseconds per tick, the unit of a sample's time: 32 bits of ticks wrap after 50 days.
const TICK_MICROS: u32 = 1024;
/// The half-life of an average in ticks, as a power of two: 1.05 s.
const HALF_LIFE_BITS: u32 = 10;
/// The upper bound of a latency in the strategy `smart`, where its formula ends. An average must
/// start to age from here: otherwise a slower backend would be avoided for longer.
const MAX_COUNTED: u32 = 1_000_000;

/// The latencies of one model on one backend, as moving averages, and its context.
#[derive(Debug, Default)]
pub struct ModelLatency {
    first_token: Average,
    response: Average,
    stream_tokens: AtomicU32,
    event_tokens: EventTokens,
    peak: Peak,
    /// The durations of its responses, streams and others.
    pub durations: Durations,
    /// Its context length, learned from prompts refused for their length.
    pub context: LearnedContext,
}

impl ModelLatency {
    /// The average TTFT of streams; `None` before the first.
    pub fn first_token(&self) -> Option<Duration> {
        self.first_token.value()
    }

    /// The average duration of responses that are not streamed; `None` before the first.
    pub fn response(&self) -> Option<Duration> {
        self.response.value()
    }

    /// The average length of streams; `None` before the first.
    pub fn length(&self) -> Option<TokenCount> {
        Some(TokenCount(self.stream_tokens.load(Ordering::Relaxed))).filter(|length| length.0 > 0)
    }

    /// The average for streams or other responses at `now`, in microseconds. Starts at a second at
    /// most and halves with each half-life since the last sample; 0 before the first.
    #[inline(always)]
    pub fn aged_micros(&self, streaming: bool, now: Timestamp) -> u32 {
        let average = if streaming { &self.first_token } else { &self.response };
        average.aged(now)
    }

    /// The peak-sensitive average of the TTFT at `now`, in microseconds; `None` before the first.
    pub fn peak_micros(&self, now: Timestamp) -> Option<f64> {
        self.peak.read(now)
    }

    /// Records the TTFT of a stream whose first token arrived at `now`.
    pub fn learn_first_token(&self, took: Duration, now: Timestamp) {
        self.first_token.learn(took, now);
        self.peak.learn(took, now);
    }

    /// Records the duration of a response that was not streamed and ended at `now`.
    pub fn learn_response(&self, took: Duration, now: Timestamp) {
        self.response.learn(took, now);
    }

    /// Records a stream that ended with `outcome`; only a complete one teaches. `counted` is its
    /// number of tokens, if the engine reports it.
    pub fn learn_stream(&self, outcome: Outcome, counter: TokenCounter, counted: Option<u32>) {
        if outcome != Outcome::Ok {
            return;
        }
        self.learn_length(counter.total());
        if let Some(counted) = counted {
            self.event_tokens.learn(counted, counter.events());
        }
    }

    /// Records the length of a complete stream.
    pub fn learn_length(&self, tokens: TokenCount) {
        let old = self.stream_tokens.load(Ordering::Relaxed);
        // Four parts old and one part new, like the other averages.
        let mixed =
            if old == 0 { tokens.0.into() } else { (u64::from(old) * 4 + u64::from(tokens.0)) / 5 };
        let mixed = u32::try_from(mixed).unwrap_or(u32::MAX).max(1);
        self.stream_tokens.store(mixed, Ordering::Relaxed);
    }

    /// Returns a counter for the tokens of a stream.
    pub fn token_counter(&self) -> TokenCounter {
        TokenCounter::new(self.event_tokens.value())
    }

    /// Forgets everything after a restart of the engine.
    pub fn forget(&self) {
        self.stream_tokens.store(0, Ordering::Relaxed);
        self.event_tokens.forget();
        self.context.forget();
        for packed in [&self.first_token.0, &self.response.0, &self.peak.0] {
            packed.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the expected size of the response to a request.
    pub fn expect(&self, streaming: bool, max_tokens: Option<TokenCount>) -> ExpectedResponse {
        // Zero means unknown in each.
        let usual = self.durations.usual().unwrap_or_default();
        if !streaming {
            let duration = self.response().unwrap_or_default();
            return ExpectedResponse { duration, usual, ..Default::default() };
        }
        // The lesser: a client's limit is often far above what comes.
        let lengths = max_tokens.into_iter().chain(self.length());
        let tokens = lengths.min().unwrap_or_default();
        ExpectedResponse { tokens, usual, ..Default::default() }
    }
}

/// An exponential moving average that ages: without new samples its value halves with each
/// half-life, and a new sample gets more weight the older the average is. A backend that was slow
/// is therefore tried again and judged by its new samples. A decision reads it for every candidate,
/// so ageing is shifts and one multiplication: linear between two halvings.
///
/// Its time is that of the sample learned last, which after a long stream is the time of a first
/// token long ago. Found in simulation: with the time of the latest first token instead, `smart`
/// avoids backends for longer by what they did before, and of chats at 0.85 of the capacity 70
/// points fewer are in time.
///
/// Packed as [`Peak`] is.
#[derive(Debug, Default)]
struct Average(AtomicU64);

impl Average {
    fn value(&self) -> Option<Duration> {
        let packed = self.0.load(Ordering::Relaxed);
        (packed != 0).then(|| Duration::from_micros(packed >> 32))
    }

    #[inline(always)]
    fn aged(&self, now: Timestamp) -> u32 {
        let packed = self.0.load(Ordering::Relaxed);
        // A branch, because many backends have no sample of this kind, which is predictable.
        if packed == 0 {
            return 0;
        }
        halve(lower_half(packed >> 32).min(MAX_COUNTED), elapsed_ticks(packed, now))
    }

    /// Mixes four parts old and one part new, the old part aged; the first sample counts as it is.
    fn learn(&self, took: Duration, now: Timestamp) {
        // A weight in fixed point, because `halve` works on whole numbers.
        const OLD: u32 = 5 << 16;
        let packed = self.0.load(Ordering::Relaxed);
        // An old average counts less: after a long pause the first sample is nearly all of it.
        let weight = if packed == 0 { 0 } else { halve(OLD / 5 * 4, elapsed_ticks(packed, now)) };
        let share = f64::from(weight) / f64::from(OLD);
        let old = Duration::from_micros(packed >> 32);
        self.0.store(pack(old.mul_f64(share) + took.mul_f64(1.0 - share), now), Ordering::Relaxed);
    }
}

/// Returns `value` aged by `ticks`.
#[inline(always)]
fn halve(value: u32, ticks: u32) -> u32 {
    let whole = value.checked_shr(ticks >> HALF_LIFE_BITS).unwrap_or(0);
    let part = ticks & ((1 << HALF_LIFE_BITS) - 1);
    whole - lower_half((u64::from(whole) * u64::from(part)) >> (HALF_LIFE_BITS + 1))
}

/// A moving average that follows a rise at once and decays with time, even without samples: a
/// backend that was slow once is tried again. Source: the peak EWMA of Finagle's load balancers.
///
/// Value and time are packed into one atomic, because the decay is wrong unless both belong to the
/// same sample. The upper 32 bits hold microseconds, the lower 32 bits the tick at which they were
/// learned; 0 before the first sample. Ticks wrap, so only their differences mean anything. A
/// difference of nearly the whole range is a sample from after `now`.
#[derive(Debug, Default)]
struct Peak(AtomicU64);

impl Peak {
    fn read(&self, now: Timestamp) -> Option<f64> {
        let packed = self.0.load(Ordering::Relaxed);
        (packed != 0).then(|| f64::from(lower_half(packed >> 32)) * remaining(packed, now))
    }

    fn learn(&self, took: Duration, now: Timestamp) {
        let packed = self.0.load(Ordering::Relaxed);
        let share = if packed == 0 { 0.0 } else { remaining(packed, now) };
        let old = Duration::from_micros(packed >> 32).mul_f64(share);
        // Up at once and down slowly: a peak is meant to repel requests.
        let mixed = if took > old { took } else { old + took.mul_f64(1.0 - share) };
        self.0.store(pack(mixed, now), Ordering::Relaxed);
    }
}

/// The remaining fraction of a peak at `now`.
fn remaining(packed: u64, now: Timestamp) -> f64 {
    let elapsed = f64::from(elapsed_ticks(packed, now));
    (-elapsed * f64::from(TICK_MICROS) / DECAY_MICROS).exp()
}

/// A duration and the tick at which it was learned, as one number.
fn pack(took: Duration, now: Timestamp) -> u64 {
    // At least 1: a value of 0 at tick 0 would read as "no sample".
    let micros = to_micros(took).clamp(1, u32::MAX.into());
    micros << 32 | u64::from(ticks(now))
}

/// The most ticks by which a sample may be later than the time it is read at, or than a sample that
/// is learned after it: a day. More would be the age of one from weeks ago.
const MAX_LEAD_TICKS: u32 = 84_375_000;

/// The ticks between a sample and `now`.
#[inline(always)]
fn elapsed_ticks(packed: u64, now: Timestamp) -> u32 {
    let elapsed = ticks(now).wrapping_sub(lower_half(packed));
    // Another thread may have learned it a moment after this decision read `now`; and the first
    // token of a stream is learned when the stream ends, after those of later ones.
    if elapsed > u32::MAX - MAX_LEAD_TICKS { 0 } else { elapsed }
}

#[inline(always)]
fn ticks(at: Timestamp) -> u32 {
    lower_half(at.0 / u64::from(TICK_MICROS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_counts_half_after_each_half_life() {
        let latency = ModelLatency::default();
        let half_life = u64::from(TICK_MICROS) << HALF_LIFE_BITS;
        let at = |halves: u64| Timestamp(half_life * halves / 2);
        assert_eq!(latency.aged_micros(false, at(2)), 0);
        latency.learn_response(Duration::from_millis(800), at(2));
        let aged = [2, 3, 4, 6].map(|halves| latency.aged_micros(false, at(halves)) / 1000);
        assert_eq!(aged, [800, 600, 400, 200]);
        assert_eq!(latency.response(), Some(Duration::from_millis(800)), "shown as it was");
        latency.learn_response(Duration::from_secs(60), at(2));
        assert_eq!(latency.aged_micros(false, at(2)), 1_000_000, "a second at most");
        for halves in [200, 10_000_000, 30_000_000] {
            assert_eq!(latency.aged_micros(false, at(halves)), 0, "forgotten");
        }
        assert_eq!(latency.aged_micros(true, at(2)), 0, "streams are averaged by themselves");
    }

    #[test]
    fn only_complete_streams_teach_lengths() {
        let latency = ModelLatency::default();
        let stream = |outcome, events| {
            let mut counter = latency.token_counter();
            counter.count(events);
            latency.learn_stream(outcome, counter, None);
            latency.length()
        };
        assert_eq!(stream(Outcome::Ok, 100), Some(TokenCount(100)));
        for outcome in [Outcome::Fault, Outcome::Empty, Outcome::Client] {
            assert_eq!(stream(outcome, 1), Some(TokenCount(100)), "{outcome:?}");
        }
        assert_eq!(stream(Outcome::Ok, 50), Some(TokenCount(90)));
    }

    #[test]
    fn samples_replace_an_old_average() {
        let latency = ModelLatency::default();
        let (then, now) = (Timestamp(1_000_000), Timestamp(20_000_000));
        latency.learn_first_token(Duration::from_secs(9), then);
        latency.learn_first_token(Duration::from_millis(50), then);
        assert!(latency.first_token().is_some_and(|took| took > Duration::from_secs(7)));
        latency.learn_first_token(Duration::from_millis(50), now);
        let millis = latency.first_token().map(|took| took.as_millis());
        assert!(millis.is_some_and(|millis| (50..52).contains(&millis)), "{millis:?}");
    }

    #[test]
    fn first_token_of_a_long_stream_mixes_with_those_of_later_ones() {
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        let latency = ModelLatency::default();
        for second in 1..=20 {
            latency.learn_first_token(Duration::from_millis(10), at(second));
        }
        // A stream of twelve seconds ends: its first token is older than the last sample.
        latency.learn_first_token(Duration::from_millis(900), at(8));
        let mixed = latency.first_token().unwrap();
        assert!(mixed < Duration::from_millis(200), "{mixed:?}");
    }

    #[test]
    fn peak_follows_a_rise_at_once_and_decays() {
        let latency = ModelLatency::default();
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        assert_eq!(latency.peak_micros(at(1)), None);
        latency.learn_first_token(Duration::from_secs(1), at(1));
        let millis = |seconds| latency.peak_micros(at(seconds)).unwrap() / 1e3;
        assert!((millis(1) - 1000.0).abs() < 1.0, "{}", millis(1));
        assert!((millis(11) - 1000.0 / std::f64::consts::E).abs() < 2.0, "{}", millis(11));
        assert!(millis(0) <= 1000.1, "a moment before is now");
        latency.learn_first_token(Duration::from_millis(10), at(11));
        let between = millis(11);
        assert!(between > 370.0 && between < 378.0, "{between}");
        latency.learn_first_token(Duration::from_millis(500), at(11));
        assert!((millis(11) - 500.0).abs() < 1.0, "{}", millis(11));
        latency.forget();
        assert_eq!(latency.peak_micros(at(11)), None);
    }
}
