//! How long a model takes to answer on a backend, learned from its answers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::forecast::Forecast;
use crate::units::{Timestamp, TokenCount, to_micros};

/// How long a peak takes to fall to 1/e: 10 s, as in Finagle.
const DECAY: f64 = 10e6;

/// Measured latencies of one model on one backend, as moving averages.
#[derive(Debug, Default)]
pub struct ModelLatency {
    first_token: AtomicU32,
    answer: AtomicU32,
    /// Tokens of a stream.
    length: AtomicU32,
    peak: Peak,
}

impl ModelLatency {
    /// The average TTFT of streams; `None` before the first.
    pub fn first_token(&self) -> Option<Duration> {
        to_duration(&self.first_token)
    }

    /// The average duration of non-streamed answers; `None` before the first.
    pub fn answer(&self) -> Option<Duration> {
        to_duration(&self.answer)
    }

    /// The average length of streams; `None` before the first.
    pub fn length(&self) -> Option<TokenCount> {
        Some(TokenCount(self.length.load(Ordering::Relaxed))).filter(|length| length.0 > 0)
    }

    /// The average for requests of a kind in microseconds; 0 before the first.
    pub fn micros(&self, streaming: bool) -> u32 {
        let average = if streaming { &self.first_token } else { &self.answer };
        average.load(Ordering::Relaxed)
    }

    /// The peak-sensitive average of the TTFT at `now`, in microseconds; `None` before the first.
    pub fn peak_micros(&self, now: Timestamp) -> Option<f64> {
        self.peak.read(now)
    }

    /// Takes in the TTFT of a stream that had its first token at `now`.
    pub fn learn_first_token(&self, took: Duration, now: Timestamp) {
        average(&self.first_token, to_micros(took));
        self.peak.learn(took, now);
    }

    /// Takes in the duration of a non-streamed answer.
    pub fn learn_answer(&self, took: Duration) {
        average(&self.answer, to_micros(took));
    }

    /// Takes in the length of a stream that came to its end.
    pub fn learn_length(&self, tokens: TokenCount) {
        average(&self.length, tokens.0.into());
    }

    /// Forgets all of it.
    pub fn forget(&self) {
        for average in [&self.first_token, &self.answer, &self.length] {
            average.store(0, Ordering::Relaxed);
        }
        self.peak.0.store(0, Ordering::Relaxed);
    }

    /// What can be expected of a request.
    pub fn forecast(&self, streaming: bool, max_tokens: Option<TokenCount>) -> Forecast {
        if !streaming {
            let answer = self.answer().unwrap_or_default();
            return Forecast { tokens: TokenCount(0), answer };
        }
        let lengths = max_tokens.into_iter().chain(self.length());
        Forecast { tokens: lengths.min().unwrap_or_default(), answer: Duration::ZERO }
    }
}

/// A moving average that follows rises at once and falls with time, also where nothing is measured: who
/// was slow once gets another try. Source: peak EWMA of Finagle's load balancers. The microseconds in
/// the upper half, below them when they were learned, in units of 1,024 us; 0 before the first.
#[derive(Debug, Default)]
struct Peak(AtomicU64);

impl Peak {
    fn read(&self, now: Timestamp) -> Option<f64> {
        let packed = self.0.load(Ordering::Relaxed);
        (packed != 0).then(|| f64::from(half(packed >> 32)) * remaining(packed, now))
    }

    fn learn(&self, took: Duration, now: Timestamp) {
        let packed = self.0.load(Ordering::Relaxed);
        let share = if packed == 0 { 0.0 } else { remaining(packed, now) };
        let old = Duration::from_micros(packed >> 32).mul_f64(share);
        let mixed = if took > old { took } else { old + took.mul_f64(1.0 - share) };
        let micros = to_micros(mixed).clamp(1, u32::MAX.into());
        // Of two that end at once one may be lost.
        self.0.store(micros << 32 | u64::from(ticks(now)), Ordering::Relaxed);
    }
}

/// The share of a value that is left of it since.
fn remaining(packed: u64, now: Timestamp) -> f64 {
    let since = ticks(now).wrapping_sub(half(packed));
    // What was learned by another thread a moment after `now` was taken is as good as new.
    let since = if since > u32::MAX / 2 { 0 } else { since };
    (-f64::from(since) * 1024.0 / DECAY).exp()
}

/// It wraps: only differences count.
fn ticks(at: Timestamp) -> u32 {
    half(at.0 >> 10)
}

/// The lower half.
fn half(packed: u64) -> u32 {
    u32::try_from(packed & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

fn to_duration(micros: &AtomicU32) -> Option<Duration> {
    match micros.load(Ordering::Relaxed) {
        0 => None,
        micros => Some(Duration::from_micros(micros.into())),
    }
}

// Exponential moving average, 4 parts old and 1 part new; the first sample is taken as it is.
fn average(average: &AtomicU32, new: u64) {
    let new = new.clamp(1, u32::MAX.into());
    let old = u64::from(average.load(Ordering::Relaxed));
    let mixed = if old == 0 { new } else { (old * 4 + new) / 5 };
    // Two attempts that end at once may lose one sample of an average.
    average.store(u32::try_from(mixed).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_followed_at_once_and_decays() {
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
