//! The lengths of outputs, learned from those that ended and those that still run.

use penstock_api::units::{floor_index, narrow};
use serde::{Deserialize, Serialize};

/// The number of buckets of lengths.
const BUCKETS: usize = 129;
/// The growth of the weight from one request to the next: about the last thousand count.
const GROWTH: f64 = 1.0 / 0.999;
/// The weight of a request at which all weights are scaled down.
const MAX_WEIGHT: f64 = 1e9;
/// The share of new outputs at which the survival is computed again.
const REFRESH_SHARE: f64 = 0.02;
/// The largest number of known outputs: the sum of all weights, divided by that of the last.
const MAX_OUTPUTS: f64 = 1000.0;
/// The prior: the number of outputs, with a mean of some 250 tokens, that count before the first.
const PRIOR_OUTPUTS: f64 = 4.0;

/// Returns the shortest length of a bucket: eighths of an octave from 1 to 65,536.
fn start_of(bucket: usize) -> f64 {
    (f64::from(u32::try_from(bucket).unwrap_or(u32::MAX)) / 8.0).exp2()
}

fn bucket_of(tokens: f64) -> usize {
    floor_index(tokens.max(1.0).log2() * 8.0).min(BUCKETS - 1)
}

/// The position of a length in the buckets. To compute it takes a logarithm and two powers, which
/// tables save.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BucketPosition {
    bucket: usize,
    /// The part of the bucket below the length.
    part: f64,
}

impl BucketPosition {
    /// Returns the position of a length.
    pub(crate) fn of(tokens: f64) -> Self {
        let bucket = bucket_of(tokens);
        let (from, to) = (start_of(bucket), start_of(bucket + 1));
        Self { bucket, part: ((tokens - from) / (to - from)).clamp(0.0, 1.0) }
    }

    fn value(self, survival: &Survival) -> f64 {
        let at = |bucket: usize| survival.get(bucket).copied().unwrap_or(0.0);
        at(self.bucket) + self.part * (at(self.bucket + 1) - at(self.bucket))
    }
}

/// Computes the survival from the outputs that ended in each bucket, of those that came so far.
fn survival_of(ended: impl Iterator<Item = f64>, there: impl Iterator<Item = f64>) -> Survival {
    let (mut survival, mut share) = ([0.0; BUCKETS + 1], 1.0);
    for ((ended, there), place) in ended.zip(there).zip(&mut survival) {
        *place = share;
        // No output has come this far, but the survival must still fall.
        share *= if there > 1e-9 { 1.0 - ended / there } else { 0.5 };
    }
    // Longer outputs are taken to end with the last bucket.
    survival
}

/// The share of outputs that are longer than a number of tokens (a survival function), by the
/// estimator of Kaplan and Meier: for each bucket, the share of the outputs in it that end there. A
/// running output counts in the buckets that it has passed: otherwise long outputs, which end late,
/// would be missed.
///
/// A second survival is that without limits. In it, an output that ended at the limit of its
/// request has passed: it says nothing of when one with a larger limit ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Counts", into = "Counts")]
pub(crate) struct OutputLengths {
    ended: [f64; BUCKETS],
    /// The outputs among `ended` that ended at the limit of their requests.
    limited: [f64; BUCKETS],
    passed: [f64; BUCKETS],
    /// The weight of the next output.
    weight: f64,
    /// The outputs that have passed each bucket and still run.
    running: [f64; BUCKETS],
    /// The survival at the start of each bucket; computed when enough was learned.
    survival: Survival,
    /// The survival without limits.
    unlimited: Survival,
    mean_tokens: f64,
    /// The number of outputs that were learned, at most [`MAX_OUTPUTS`], and of those since the
    /// survival was computed.
    output_count: f64,
    new_count: f64,
}

/// The survival at the start of each bucket, and at the end of the last one.
type Survival = [f64; BUCKETS + 1];

/// The stored form. For each bucket: the number of outputs that ended there, of those that passed
/// it, and of those that ended there at the limit of their requests (absent in older states).
#[derive(Serialize, Deserialize)]
struct Counts(Vec<Vec<f32>>);

impl From<OutputLengths> for Counts {
    fn from(lengths: OutputLengths) -> Self {
        let counts = lengths.ended.iter().zip(&lengths.passed).zip(&lengths.limited);
        let share = |count: &f64| narrow(count / lengths.weight);
        Self(counts.map(|((ended, passed), at)| [ended, passed, at].map(share).into()).collect())
    }
}

impl From<Counts> for OutputLengths {
    fn from(counts: Counts) -> Self {
        let mut lengths = Self::default();
        let places = lengths.ended.iter_mut().zip(&mut lengths.passed).zip(&mut lengths.limited);
        for (((ended, passed), limited), counts) in places.zip(counts.0) {
            let count = |index: usize| counts.get(index).copied().unwrap_or(0.0).into();
            (*ended, *passed, *limited) = (count(0), count(1), count(2));
        }
        lengths.output_count = MAX_OUTPUTS.min(lengths.ended.iter().sum());
        lengths.refresh();
        lengths
    }
}

impl Default for OutputLengths {
    fn default() -> Self {
        // Geometric around the mean: the same hazard per token everywhere.
        let mut lengths = Self {
            ended: [0.0; BUCKETS],
            limited: [0.0; BUCKETS],
            passed: [0.0; BUCKETS],
            weight: 1.0,
            running: [0.0; BUCKETS],
            survival: [0.0; BUCKETS + 1],
            unlimited: [0.0; BUCKETS + 1],
            mean_tokens: 0.0,
            output_count: 0.0,
            new_count: 0.0,
        };
        for bucket in 0..BUCKETS {
            let share = |tokens: f64| (-tokens / 250.0).exp();
            let (from, to) = (share(start_of(bucket) - 1.0), share(start_of(bucket + 1) - 1.0));
            if let (Some(ended), Some(passed)) =
                (lengths.ended.get_mut(bucket), lengths.passed.get_mut(bucket))
            {
                *ended = PRIOR_OUTPUTS * (from - to);
                *passed = PRIOR_OUTPUTS * to;
            }
        }
        lengths.refresh();
        lengths
    }
}

impl OutputLengths {
    /// Learns from an output that has ended, of a request whose limit is `max_tokens` (infinite if
    /// it has none).
    pub(crate) fn learn(&mut self, tokens: f64, max_tokens: f64) {
        let at = bucket_of(tokens);
        let weight = self.next_weight();
        self.ended.iter_mut().skip(at).take(1).for_each(|one| *one += weight);
        // Engines that report no usage are counted by events, which may be one less.
        if tokens + 1.0 >= max_tokens {
            self.limited.iter_mut().skip(at).take(1).for_each(|one| *one += weight);
        }
        self.passed.iter_mut().take(at).for_each(|one| *one += weight);
        self.learned();
    }

    /// Learns from an output that was cut by the client or a failure when it had `tokens` tokens:
    /// it would have been longer.
    pub(crate) fn learn_cut(&mut self, tokens: f64) {
        let weight = self.next_weight();
        self.passed.iter_mut().take(bucket_of(tokens)).for_each(|one| *one += weight);
        self.learned();
    }

    /// Takes outputs that still run into account: ages, each with its number of outputs. Those of
    /// the call before no longer count.
    pub(crate) fn see_running(&mut self, ages: impl Iterator<Item = (f64, f64)>) {
        self.running = [0.0; BUCKETS];
        for (age_tokens, count) in ages {
            self.running.iter_mut().take(bucket_of(age_tokens)).for_each(|one| *one += count);
        }
        self.refresh();
    }

    /// Returns the weight of the next output. Later outputs count more, instead of earlier ones
    /// less: that is one number to change.
    fn next_weight(&mut self) -> f64 {
        self.weight *= GROWTH;
        if self.weight > MAX_WEIGHT {
            let share = 1.0 / self.weight;
            let counts = self.ended.iter_mut().chain(&mut self.limited).chain(&mut self.passed);
            counts.for_each(|one| *one *= share);
            self.weight = 1.0;
        }
        self.weight
    }

    fn learned(&mut self) {
        self.output_count = (self.output_count + 1.0).min(MAX_OUTPUTS);
        self.new_count += 1.0;
        if self.new_count >= REFRESH_SHARE * self.output_count {
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        self.new_count = 0.0;
        let weight = self.weight;
        let counts = self.ended.iter().zip(&self.passed).zip(&self.running);
        let there = counts.map(|((ended, passed), running)| ended + passed + running * weight);
        let unlimited = self.ended.iter().zip(&self.limited).map(|(all, limited)| all - limited);
        self.unlimited = survival_of(unlimited, there.clone());
        self.survival = survival_of(self.ended.iter().copied(), there);
        let areas = self.survival.windows(2).enumerate().map(|(bucket, ends)| {
            let width = start_of(bucket + 1) - start_of(bucket);
            ends.iter().sum::<f64>() * 0.5 * width
        });
        // The area starts at a length of 1, which every output has.
        self.mean_tokens = areas.sum::<f64>() + 1.0;
    }

    /// Returns the share of outputs with more than `tokens` tokens.
    #[cfg(test)]
    pub(crate) fn survival(&self, tokens: f64) -> f64 {
        self.survival_at(&BucketPosition::of(tokens))
    }

    /// Returns the share of outputs that are longer than at `position`.
    pub(crate) fn survival_at(&self, position: &BucketPosition) -> f64 {
        position.value(&self.survival)
    }

    /// Returns the share of outputs that would be longer than at `position` without the limits of
    /// their requests.
    pub(crate) fn unlimited_at(&self, position: &BucketPosition) -> f64 {
        position.value(&self.unlimited)
    }

    /// Returns the share of outputs with more than `age_tokens` tokens that end within `more`
    /// further ones.
    #[cfg(test)]
    pub(crate) fn ends_within(&self, age_tokens: f64, more: f64) -> f64 {
        let now = self.survival(age_tokens);
        if now <= 1e-9 { 1.0 } else { 1.0 - self.survival(age_tokens + more) / now }
    }

    /// Returns the mean length.
    pub(crate) fn mean_tokens(&self) -> f64 {
        self.mean_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_learned_and_forgotten() {
        let mut lengths = OutputLengths::default();
        assert!((150.0..350.0).contains(&lengths.mean_tokens()), "{}", lengths.mean_tokens());
        for n in 0..4000_u32 {
            lengths.learn(f64::from(n % 100 + 1), f64::INFINITY);
        }
        assert!((45.0..60.0).contains(&lengths.mean_tokens()), "{}", lengths.mean_tokens());
        assert!((0.4..0.6).contains(&lengths.survival(50.0)), "{}", lengths.survival(50.0));
        assert!(lengths.survival(200.0) < 0.01);
        assert!((0.35..0.65).contains(&lengths.ends_within(60.0, 20.0)));
        for _ in 0..4000 {
            lengths.learn(1000.0, f64::INFINITY);
        }
        assert!((800.0..1300.0).contains(&lengths.mean_tokens()), "{}", lengths.mean_tokens());
    }

    #[test]
    fn outputs_that_still_run_show_that_they_are_long() {
        let mut lengths = OutputLengths::default();
        lengths.see_running(std::iter::once((500.0, 50.0)));
        assert!(lengths.survival(450.0) > 0.85, "{}", lengths.survival(450.0));
        lengths.see_running(std::iter::empty());
        assert_eq!(lengths, OutputLengths::default());
    }

    #[test]
    fn outputs_that_were_cut_count_as_long_ones() {
        let (mut cut, mut without) = (OutputLengths::default(), OutputLengths::default());
        for _ in 0..2000 {
            for lengths in [&mut cut, &mut without] {
                lengths.learn(100.0, f64::INFINITY);
            }
            cut.learn_cut(400.0);
        }
        assert!(cut.survival(150.0) > 0.4 && without.survival(150.0) < 0.05);
    }

    #[test]
    fn limits_of_requests_do_not_end_those_with_larger_ones() {
        let mut lengths = OutputLengths::default();
        (0..2000).for_each(|n| lengths.learn(f64::from(n % 100 + 20), f64::from(n % 100 + 20)));
        let at = |tokens| BucketPosition::of(tokens);
        assert!(lengths.survival(100.0) < 0.3 && lengths.unlimited_at(&at(100.0)) > 0.95);
        assert!((60.0..80.0).contains(&lengths.mean_tokens()), "{}", lengths.mean_tokens());
        let stored = serde_json::to_string(&lengths).unwrap();
        let read: OutputLengths = serde_json::from_str(&stored).unwrap();
        assert!((read.unlimited_at(&at(100.0)) - lengths.unlimited_at(&at(100.0))).abs() < 0.01);
        // States of an earlier version hold pairs.
        let pairs: OutputLengths = serde_json::from_str("[[1.0, 0.0], [1.0, 2.0]]").unwrap();
        assert_eq!(pairs.survival, pairs.unlimited);
    }
}
