//! The ages of a backend's streams and the steps at which they reach their limits, from which the
//! ends of streams are predicted.

use penstock_api::units::floor_index;

/// The number of buckets of ages: quarter octaves of the tokens that a stream has emitted, from 4
/// to 2^17.
pub(super) const AGE_BUCKETS: usize = 60;
/// The most streams with a limit that are followed one by one: each learned token searches them.
/// Further ones are taken to end as those without a limit do.
const MAX_LIMITED: usize = 1024;
/// The tokens from which on a limit is as good as none.
const MAX_LEFT: f64 = 16_384.0;

/// A stream: its prompt, what it has emitted, and the most that it may emit, in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stream {
    /// The number of its request on the backend.
    pub(crate) number: u64,
    pub(crate) prompt_tokens: f64,
    pub(crate) age_tokens: u32,
    /// Infinite if the request sets no limit.
    pub(crate) max_output_tokens: f64,
}

/// A stream with a limit. A step emits a token of each stream, so that steps are its clock: between
/// the tokens that are learned of it, its age and what it may still emit follow from the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limited {
    number: u64,
    /// The step with which it has emitted its first token, and that of the last that it may emit.
    first_step: f64,
    last_step: f64,
}

impl Limited {
    /// Returns the stream by its state after `steps_ended` steps, if its limit is near enough.
    fn of(stream: &Stream, steps_ended: f64) -> Option<Self> {
        let age_tokens = f64::from(stream.age_tokens);
        let left_tokens = stream.max_output_tokens - age_tokens;
        (left_tokens < MAX_LEFT).then_some(Self {
            number: stream.number,
            first_step: steps_ended - age_tokens,
            last_step: steps_ended + left_tokens,
        })
    }
}

/// The age of a stream with a limit, and the tokens that it may still emit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitedStream {
    pub(super) age_tokens: u32,
    pub(super) left_tokens: f64,
}

/// The streams of a backend.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Streams {
    /// The number of streams in each bucket of ages.
    counts: [f32; AGE_BUCKETS],
    /// The streams with a limit, in no order.
    limited: Vec<Limited>,
    /// The tokens of their prompts and outputs.
    context_tokens: f64,
    count: f64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { counts: [0.0; AGE_BUCKETS], limited: Vec::new(), context_tokens: 0.0, count: 0.0 }
    }
}

/// Returns the bucket of an age, by its highest bit and the two behind it.
pub(super) fn bucket_of(age_tokens: u32) -> usize {
    // Below that the quarters of an octave are no whole tokens.
    let age_tokens = age_tokens.max(4);
    let octave = u32::BITS - 1 - age_tokens.leading_zeros();
    let quarter = (age_tokens >> (octave - 2)) & 3;
    ((octave - 2) * 4 + quarter).min(59) as usize
}

/// Returns the middle of a bucket, in tokens.
pub(super) fn age_tokens_of(bucket: usize) -> f64 {
    let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
    let width = f64::from(bucket / 4).exp2();
    width * (4.5 + f64::from(bucket % 4))
}

impl Streams {
    /// Adds a stream that has started, after `steps_ended` steps of the engine.
    pub(crate) fn add(&mut self, stream: &Stream, steps_ended: f64) {
        self.change(stream.age_tokens, 1.0);
        if self.limited.len() < MAX_LIMITED {
            self.limited.extend(Limited::of(stream, steps_ended));
        }
        self.context_tokens += stream.prompt_tokens + f64::from(stream.age_tokens);
        self.count += 1.0;
    }

    /// Records that a stream has emitted tokens: `after` in all.
    pub(crate) fn grow(&mut self, stream: &Stream, after: u32, steps_ended: f64) {
        let before = stream.age_tokens;
        self.context_tokens += f64::from(after.saturating_sub(before));
        // Most tokens leave a stream in its bucket.
        if bucket_of(before) != bucket_of(after) {
            self.change(before, -1.0);
            self.change(after, 1.0);
        }
        if stream.max_output_tokens.is_finite()
            && let Some(known) = self.limited.iter_mut().find(|one| one.number == stream.number)
            && let Some(now) = Limited::of(&Stream { age_tokens: after, ..*stream }, steps_ended)
        {
            *known = now;
        }
    }

    /// Removes a stream that has ended.
    pub(crate) fn remove(&mut self, stream: &Stream) {
        self.change(stream.age_tokens, -1.0);
        if let Some(index) = self.limited.iter().position(|one| one.number == stream.number) {
            self.limited.swap_remove(index);
        }
        self.context_tokens -= stream.prompt_tokens + f64::from(stream.age_tokens);
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
        // Sums and differences of floats may end a little below zero.
        self.context_tokens.max(0.0)
    }

    /// Returns the ages of streams, each with its number of streams.
    pub(crate) fn ages(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.buckets().map(|(bucket, count)| (age_tokens_of(bucket), count))
    }

    /// Returns the buckets of ages that have streams, each with its number of streams.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0.0);
        counts.map(|(bucket, count)| (bucket, f64::from(*count)))
    }

    /// Returns the streams with a limit as they are after `steps_ended` steps.
    pub(super) fn limited(&self, steps_ended: f64) -> impl Iterator<Item = LimitedStream> + '_ {
        self.limited.iter().map(move |one| LimitedStream {
            age_tokens: u32::try_from(floor_index(steps_ended - one.first_step))
                .unwrap_or(u32::MAX),
            left_tokens: (one.last_step - steps_ended).max(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_near_the_middles_of_their_buckets() {
        for age_tokens in [5_u32, 9, 30, 100, 777, 5000, 60_000] {
            let middle_tokens = age_tokens_of(bucket_of(age_tokens));
            assert!(
                (middle_tokens / f64::from(age_tokens) - 1.0).abs() < 0.14,
                "{age_tokens} {middle_tokens}"
            );
        }
        assert_eq!((bucket_of(0), bucket_of(u32::MAX)), (0, 59));
    }

    #[test]
    fn streams_that_end_leave_nothing() {
        let mut streams = Streams::default();
        let limited =
            Stream { number: 1, prompt_tokens: 100.0, age_tokens: 1, max_output_tokens: 600.0 };
        let free =
            Stream { number: 2, prompt_tokens: 50.0, max_output_tokens: f64::INFINITY, ..limited };
        streams.add(&limited, 0.0);
        streams.add(&free, 0.0);
        for age_tokens in 1..500 {
            streams.grow(&Stream { age_tokens, ..limited }, age_tokens + 1, f64::from(age_tokens));
        }
        assert_eq!((streams.count(), streams.context_tokens()), (2.0, 651.0));
        let left: Vec<_> = streams.limited(510.0).collect();
        assert_eq!(left, [LimitedStream { age_tokens: 511, left_tokens: 89.0 }]);
        streams.remove(&Stream { age_tokens: 500, ..limited });
        streams.remove(&free);
        assert_eq!(streams, Streams::default());
    }
}
