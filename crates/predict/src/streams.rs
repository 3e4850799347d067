//! The ages of a backend's streams and the tokens that they may still emit, in buckets, from which
//! the ends of streams are predicted.

use penstock_api::units::floor_index;

/// The number of buckets of ages: quarter octaves of the tokens that a stream has emitted, from 4
/// to 2^17.
pub(super) const AGE_BUCKETS: usize = 60;
/// The tokens from which on a limit is as good as none.
const MAX_BOUND: f64 = 16_384.0;

/// A stream: its prompt, what it has emitted, and the most that it may emit, in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stream {
    pub(crate) prompt_tokens: f64,
    pub(crate) age_tokens: u32,
    /// Infinite if the request sets no limit.
    pub(crate) max_output_tokens: f64,
}

impl Stream {
    /// Returns the bucket of the tokens that it may still emit, if those are limited.
    fn bound(&self, age_tokens: u32) -> Option<usize> {
        let left = self.max_output_tokens - f64::from(age_tokens);
        (left < MAX_BOUND).then(|| bucket_of_tokens(left))
    }
}

/// Streams with about as many tokens left: their number, and the sum of their ages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Bounded {
    count: f64,
    age_tokens: f64,
}

/// The streams of a backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Streams {
    /// The number of streams in each bucket of ages.
    counts: [f32; AGE_BUCKETS],
    /// The streams with a limit, in buckets of the tokens that they may still emit.
    bounded: [Bounded; AGE_BUCKETS],
    /// The tokens of their prompts and outputs.
    context_tokens: f64,
    count: f64,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            counts: [0.0; AGE_BUCKETS],
            bounded: [Bounded::default(); AGE_BUCKETS],
            context_tokens: 0.0,
            count: 0.0,
        }
    }
}

/// Returns the bucket of an age, by its highest bit and the two behind it.
fn bucket_of(age_tokens: u32) -> usize {
    let age_tokens = age_tokens.max(4);
    let octave = u32::BITS - 1 - age_tokens.leading_zeros();
    let quarter = (age_tokens >> (octave - 2)) & 3;
    ((octave - 2) * 4 + quarter).min(59) as usize
}

fn bucket_of_tokens(tokens: f64) -> usize {
    bucket_of(u32::try_from(floor_index(tokens)).unwrap_or(u32::MAX))
}

/// Returns the middle of a bucket, in tokens.
pub(super) fn age_of(bucket: usize) -> f64 {
    let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
    let width = f64::from(bucket / 4).exp2();
    width * (4.5 + f64::from(bucket % 4))
}

impl Streams {
    /// Adds a stream that has started.
    pub(crate) fn add(&mut self, stream: &Stream) {
        self.change(stream.age_tokens, 1.0);
        self.change_bounded(stream, stream.age_tokens, 1.0);
        self.context_tokens += stream.prompt_tokens + f64::from(stream.age_tokens);
        self.count += 1.0;
    }

    /// Records that a stream has emitted tokens: `after` in all.
    pub(crate) fn grow(&mut self, stream: &Stream, after: u32) {
        let before = stream.age_tokens;
        self.context_tokens += f64::from(after.saturating_sub(before));
        if bucket_of(before) != bucket_of(after) {
            self.change(before, -1.0);
            self.change(after, 1.0);
        }
        if stream.max_output_tokens.is_finite() {
            self.change_bounded(stream, before, -1.0);
            self.change_bounded(stream, after, 1.0);
        }
    }

    /// Removes a stream that has ended.
    pub(crate) fn remove(&mut self, stream: &Stream) {
        self.change(stream.age_tokens, -1.0);
        self.change_bounded(stream, stream.age_tokens, -1.0);
        self.context_tokens -= stream.prompt_tokens + f64::from(stream.age_tokens);
        self.count -= 1.0;
    }

    fn change_bounded(&mut self, stream: &Stream, age_tokens: u32, by: f64) {
        let bounded = stream.bound(age_tokens).and_then(|bucket| self.bounded.get_mut(bucket));
        if let Some(bounded) = bounded {
            bounded.count += by;
            bounded.age_tokens += by * f64::from(age_tokens);
        }
    }

    fn change(&mut self, age_tokens: u32, by: f32) {
        self.counts.iter_mut().skip(bucket_of(age_tokens)).take(1).for_each(|count| *count += by);
    }

    /// Returns the number of streams.
    pub(crate) fn count(&self) -> f64 {
        self.count
    }

    /// Returns the tokens of all contexts.
    pub(crate) fn context_tokens(&self) -> f64 {
        self.context_tokens.max(0.0)
    }

    /// Returns the ages of streams, each with its number of streams.
    pub(crate) fn ages(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.buckets().map(|(bucket, count)| (age_of(bucket), count))
    }

    /// Returns the buckets of ages that have streams, each with its number of streams.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0.0);
        counts.map(|(bucket, count)| (bucket, f64::from(*count)))
    }

    /// Returns the streams with a limit: the tokens that they may still emit, the bucket of their
    /// mean age, and their number.
    pub(super) fn bounded(&self) -> impl Iterator<Item = (f64, usize, f64)> + '_ {
        let buckets = self.bounded.iter().enumerate().filter(|(_, one)| one.count > 0.5);
        buckets.map(|(bucket, one)| {
            let mean_age = one.age_tokens / one.count;
            (age_of(bucket), bucket_of_tokens(mean_age), one.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_near_the_middles_of_their_buckets() {
        for age_tokens in [5_u32, 9, 30, 100, 777, 5000, 60_000] {
            let middle = age_of(bucket_of(age_tokens));
            assert!((middle / f64::from(age_tokens) - 1.0).abs() < 0.14, "{age_tokens} {middle}");
        }
        assert_eq!((bucket_of(0), bucket_of(u32::MAX)), (0, 59));
    }

    #[test]
    fn streams_that_end_leave_nothing() {
        let mut streams = Streams::default();
        let bounded = Stream { prompt_tokens: 100.0, age_tokens: 1, max_output_tokens: 600.0 };
        let free = Stream { prompt_tokens: 50.0, max_output_tokens: f64::INFINITY, ..bounded };
        streams.add(&bounded);
        streams.add(&free);
        for age_tokens in 1..500 {
            streams.grow(&Stream { age_tokens, ..bounded }, age_tokens + 1);
        }
        assert_eq!((streams.count(), streams.context_tokens()), (2.0, 651.0));
        let left: Vec<_> = streams.bounded().collect();
        assert_eq!(left, [(age_of(bucket_of(100)), bucket_of(500), 1.0)]);
        streams.remove(&Stream { age_tokens: 500, ..bounded });
        streams.remove(&free);
        assert_eq!(streams, Streams::default());
    }
}
