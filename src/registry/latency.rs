//! How long a model takes to answer on a backend, learned from its answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::forecast::Forecast;
use crate::units::{TokenCount, to_micros};

/// Measured latencies of one model on one backend, as moving averages.
#[derive(Debug, Default)]
pub struct ModelLatency {
    first_token: AtomicU32,
    answer: AtomicU32,
    /// Tokens of a stream.
    length: AtomicU32,
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

    /// Takes in the TTFT of a stream.
    pub fn learn_first_token(&self, took: Duration) {
        average(&self.first_token, to_micros(took));
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
