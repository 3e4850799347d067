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
}

/// The share of outputs that are longer than a number of tokens (a survival function), by the
/// estimator of Kaplan and Meier: for each bucket, the share of the outputs in it that end there.
/// An output that still runs counts in the buckets that it has passed, so that long outputs are not
/// missed because they end late.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Counts", into = "Counts")]
pub(crate) struct OutputLengths {
    ended: [f64; BUCKETS],
    passed: [f64; BUCKETS],
    /// The weight of the next output.
    weight: f64,
    /// The outputs that have passed each bucket and still run.
    running: [f64; BUCKETS],
    /// The survival at the start of each bucket; computed when enough was learned.
    survival: [f64; BUCKETS + 1],
    mean_tokens: f64,
    /// The number of outputs that were learned, at most [`MAX_OUTPUTS`], and of those since the
    /// survival was computed.
    output_count: f64,
    new_count: f64,
}

/// The stored form: for each bucket the numbers of outputs that ended there and that passed it.
#[derive(Serialize, Deserialize)]
struct Counts(Vec<(f32, f32)>);

impl From<OutputLengths> for Counts {
    fn from(lengths: OutputLengths) -> Self {
        let both = lengths.ended.iter().zip(&lengths.passed);
        let share = |count: f64| narrow(count / lengths.weight);
        Self(both.map(|(ended, passed)| (share(*ended), share(*passed))).collect())
    }
}

impl From<Counts> for OutputLengths {
    fn from(counts: Counts) -> Self {
        let mut lengths = Self::default();
        let places = lengths.ended.iter_mut().zip(&mut lengths.passed);
        for ((ended, passed), count) in places.zip(counts.0) {
            (*ended, *passed) = (count.0.into(), count.1.into());
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
            passed: [0.0; BUCKETS],
            weight: 1.0,
            running: [0.0; BUCKETS],
            survival: [0.0; BUCKETS + 1],
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
    /// Learns from an output that has ended.
    pub(crate) fn learn(&mut self, tokens: f64) {
        let at = bucket_of(tokens);
        let weight = self.next_weight();
        self.ended.iter_mut().skip(at).take(1).for_each(|one| *one += weight);
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
            self.ended.iter_mut().chain(&mut self.passed).for_each(|one| *one *= share);
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
        let mut survival = 1.0;
        let mut mean = 0.0;
        let weight = self.weight;
        let there = self.passed.iter().zip(&self.running);
        let there = there.map(|(passed, running)| passed + running * weight);
        let mut start = start_of(0);
        let counts = self.ended.iter().zip(there).enumerate();
        for ((bucket, (ended, passed)), place) in counts.zip(&mut self.survival) {
            *place = survival;
            let there = ended + passed;
            // No output has come this far, but the survival must still fall.
            let next = if there > 1e-9 { survival * (1.0 - ended / there) } else { survival * 0.5 };
            let end = start_of(bucket + 1);
            mean += (survival + next) * 0.5 * (end - start);
            start = end;
            survival = next;
        }
        // Longer outputs are taken to end with the last bucket.
        if let Some(last) = self.survival.last_mut() {
            *last = 0.0;
        }
        // The sum above starts at a length of 1, which every output has.
        self.mean_tokens = mean + 1.0;
    }

    /// Returns the share of outputs with more than `tokens` tokens.
    #[cfg(test)]
    pub(crate) fn survival(&self, tokens: f64) -> f64 {
        self.survival_at(&BucketPosition::of(tokens))
    }

    /// Returns the share of outputs that are longer than at `position`.
    pub(crate) fn survival_at(&self, position: &BucketPosition) -> f64 {
        let BucketPosition { bucket, part } = *position;
        let (above, below) = (
            self.survival.get(bucket).copied().unwrap_or(0.0),
            self.survival.get(bucket + 1).copied().unwrap_or(0.0),
        );
        above + part * (below - above)
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
            lengths.learn(f64::from(n % 100 + 1));
        }
        assert!((45.0..60.0).contains(&lengths.mean_tokens()), "{}", lengths.mean_tokens());
        assert!((0.4..0.6).contains(&lengths.survival(50.0)), "{}", lengths.survival(50.0));
        assert!(lengths.survival(200.0) < 0.01);
        assert!((0.35..0.65).contains(&lengths.ends_within(60.0, 20.0)));
        for _ in 0..4000 {
            lengths.learn(1000.0);
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
                lengths.learn(100.0);
            }
            cut.learn_cut(400.0);
        }
        assert!(cut.survival(150.0) > 0.4 && without.survival(150.0) < 0.05);
    }
}
