//! How fast a model responds on a backend, learned from its responses.
//!
//! All averages are single atomics, written by the attempts that end and read by every decision. An
//! update is a load, a computation and a store: of two attempts that end in the same moment one sample
//! may be lost. That keeps the average slightly older, never wrong, and costs no lock and no retry loop.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::drain_estimate::ExpectedResponse;
use crate::units::{Timestamp, TokenCount, to_micros};

/// The time in which a peak falls to 1/e of its value: 10 s, as in Finagle.
const DECAY_MICROS: f64 = 10e6;
/// Microseconds per tick, the unit of a peak's time: 32 bits of ticks wrap after 50 days.
const TICK_MICROS: u32 = 1024;

/// Measured latencies of one model on one backend, as moving averages; 0 before the first sample.
#[derive(Debug, Default)]
pub struct ModelLatency {
    first_token_micros: AtomicU32,
    response_micros: AtomicU32,
    stream_tokens: AtomicU32,
    peak: Peak,
}

impl ModelLatency {
    /// The average TTFT of streams; `None` before the first.
    pub fn first_token(&self) -> Option<Duration> {
        to_duration(&self.first_token_micros)
    }

    /// The average duration of responses that are not streamed; `None` before the first.
    pub fn response(&self) -> Option<Duration> {
        to_duration(&self.response_micros)
    }

    /// The average length of streams; `None` before the first.
    pub fn length(&self) -> Option<TokenCount> {
        Some(TokenCount(self.stream_tokens.load(Ordering::Relaxed))).filter(|length| length.0 > 0)
    }

    /// The average for streams or other responses in microseconds; 0 before the first.
    pub fn micros(&self, streaming: bool) -> u32 {
        let average = if streaming { &self.first_token_micros } else { &self.response_micros };
        average.load(Ordering::Relaxed)
    }

    /// The peak-sensitive average of the TTFT at `now`, in microseconds; `None` before the first.
    pub fn peak_micros(&self, now: Timestamp) -> Option<f64> {
        self.peak.read(now)
    }

    /// Records the TTFT of a stream whose first token arrived at `now`.
    pub fn learn_first_token(&self, took: Duration, now: Timestamp) {
        average(&self.first_token_micros, to_micros(took));
        self.peak.learn(took, now);
    }

    /// Records the duration of a response that was not streamed.
    pub fn learn_response(&self, took: Duration) {
        average(&self.response_micros, to_micros(took));
    }

    /// Records the length of a stream that ended properly.
    pub fn learn_length(&self, tokens: TokenCount) {
        average(&self.stream_tokens, tokens.0.into());
    }

    /// Forgets everything: the engine restarted.
    pub fn forget(&self) {
        for average in [&self.first_token_micros, &self.response_micros, &self.stream_tokens] {
            average.store(0, Ordering::Relaxed);
        }
        self.peak.0.store(0, Ordering::Relaxed);
    }

    /// What to expect of the response to a request.
    pub fn expect(&self, streaming: bool, max_tokens: Option<TokenCount>) -> ExpectedResponse {
        if !streaming {
            // Zero stands for unknown there.
            let duration = self.response().unwrap_or_default();
            return ExpectedResponse { tokens: TokenCount(0), duration };
        }
        let lengths = max_tokens.into_iter().chain(self.length());
        ExpectedResponse { tokens: lengths.min().unwrap_or_default(), duration: Duration::ZERO }
    }
}

/// A moving average that follows a rise at once and decays with time, also while nothing is measured:
/// a backend that was slow once is tried again. Source: the peak EWMA of Finagle's load balancers.
///
/// Value and time are packed into one atomic, because the decay is wrong unless both belong to the same
/// sample: the upper 32 bits hold microseconds, the lower 32 bits the tick at which they were learned;
/// 0 before the first sample. Ticks wrap, so only their differences mean anything, and a difference in
/// the upper half of the range is a sample from a moment after `now`.
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
        let mixed = if took > old { took } else { old + took.mul_f64(1.0 - share) };
        // At least 1: a value of 0 at tick 0 would read as "no sample".
        let micros = to_micros(mixed).clamp(1, u32::MAX.into());
        self.0.store(micros << 32 | u64::from(ticks(now)), Ordering::Relaxed);
    }
}

/// The share of a peak that is left at `now`.
fn remaining(packed: u64, now: Timestamp) -> f64 {
    let elapsed = ticks(now).wrapping_sub(lower_half(packed));
    // Another thread may have learned it a moment after `now` was taken.
    let elapsed = if elapsed > u32::MAX / 2 { 0 } else { elapsed };
    (-f64::from(elapsed) * f64::from(TICK_MICROS) / DECAY_MICROS).exp()
}

fn ticks(at: Timestamp) -> u32 {
    lower_half(at.0 / u64::from(TICK_MICROS))
}

fn lower_half(packed: u64) -> u32 {
    u32::try_from(packed & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

fn to_duration(micros: &AtomicU32) -> Option<Duration> {
    match micros.load(Ordering::Relaxed) {
        0 => None,
        micros => Some(Duration::from_micros(micros.into())),
    }
}

/// Exponential moving average, 4 parts old and 1 part new; the first sample counts as it is.
fn average(average: &AtomicU32, new: u64) {
    let new = new.clamp(1, u32::MAX.into());
    let old = u64::from(average.load(Ordering::Relaxed));
    let mixed = if old == 0 { new } else { (old * 4 + new) / 5 };
    average.store(u32::try_from(mixed).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

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
