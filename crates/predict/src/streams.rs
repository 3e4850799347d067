//! The ages of a backend's streams, in buckets, from which the ends of streams are predicted.

/// The number of buckets of ages: quarter octaves of the tokens that a stream has emitted, from 4
/// to 2^17.
pub(super) const AGE_BUCKETS: usize = 60;

/// The streams of a backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Streams {
    /// The number of streams in each bucket of ages.
    counts: [f32; AGE_BUCKETS],
    /// The tokens of their prompts and outputs.
    context_tokens: f64,
    count: f64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { counts: [0.0; AGE_BUCKETS], context_tokens: 0.0, count: 0.0 }
    }
}

/// Returns the bucket of an age, by its highest bit and the two behind it.
fn bucket_of(age_tokens: u32) -> usize {
    let age_tokens = age_tokens.max(4);
    let octave = u32::BITS - 1 - age_tokens.leading_zeros();
    let quarter = (age_tokens >> (octave - 2)) & 3;
    ((octave - 2) * 4 + quarter).min(59) as usize
}

/// Returns the middle of a bucket, in tokens.
pub(super) fn age_of(bucket: usize) -> f64 {
    let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
    let width = f64::from(bucket / 4).exp2();
    width * (4.5 + f64::from(bucket % 4))
}

impl Streams {
    /// Adds a stream that has started.
    pub(crate) fn add(&mut self, prompt_tokens: f64, age_tokens: u32) {
        self.change(age_tokens, 1.0);
        self.context_tokens += prompt_tokens + f64::from(age_tokens);
        self.count += 1.0;
    }

    /// Records that a stream has emitted tokens: from `before` to `after`.
    pub(crate) fn grow(&mut self, before: u32, after: u32) {
        self.context_tokens += f64::from(after.saturating_sub(before));
        if bucket_of(before) != bucket_of(after) {
            self.change(before, -1.0);
            self.change(after, 1.0);
        }
    }

    /// Removes a stream that has ended.
    pub(crate) fn remove(&mut self, prompt_tokens: f64, age_tokens: u32) {
        self.change(age_tokens, -1.0);
        self.context_tokens -= prompt_tokens + f64::from(age_tokens);
        self.count -= 1.0;
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
        streams.add(100.0, 1);
        streams.add(50.0, 1);
        for age_tokens in 1..500 {
            streams.grow(age_tokens, age_tokens + 1);
        }
        assert_eq!((streams.count(), streams.context_tokens()), (2.0, 651.0));
        streams.remove(100.0, 500);
        streams.remove(50.0, 1);
        assert_eq!(streams, Streams::default());
    }
}
