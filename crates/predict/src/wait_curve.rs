//! The time until enough streams have ended, by their ages and the lengths of earlier outputs.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use penstock_api::units::{floor_index, narrow};

use super::output_lengths::{BucketPosition, OutputLengths};
use super::streams::{AGE_BUCKETS, LimitedStream, Streams, age_tokens_of, bucket_of};

/// The number of points at which the curve is computed, in tokens: sixths of an octave up to 2^14.
const GRID: usize = 85;

/// The share of a backend's streams that must have ended before their successors are counted.
const MIN_ENDED_SHARE: f32 = 0.25;

fn tokens_at(point: usize) -> f64 {
    (f64::from(u32::try_from(point).unwrap_or(u32::MAX)) / 6.0).exp2()
}

/// The positions at which a curve reads the survival and itself. They are the same for every curve,
/// and powers and logarithms for each were four fifths of a simulation with predictions.
static POSITIONS: LazyLock<Positions> = LazyLock::new(Positions::new);

struct Positions {
    /// The position of each bucket of ages, and those of the points after it.
    ages: Vec<(BucketPosition, [BucketPosition; GRID])>,
    /// The positions of the points themselves.
    points: [BucketPosition; GRID],
    /// For each point: the grid positions of the tokens from each earlier one.
    between: Vec<Vec<GridPosition>>,
}

impl Positions {
    fn new() -> Self {
        let after = |age: f64| std::array::from_fn(|at| BucketPosition::of(age + tokens_at(at)));
        let ages = (0..AGE_BUCKETS).map(age_tokens_of);
        let between = |point: usize| {
            let tokens = (0..point).map(|start| tokens_at(point) - tokens_at(start));
            tokens.map(GridPosition::of).collect()
        };
        Self {
            ages: ages.map(|age| (BucketPosition::of(age), after(age))).collect(),
            points: after(0.0),
            between: (0..GRID).map(between).collect(),
        }
    }
}

/// Returns the first point with at least `tokens` tokens.
fn first_point_from(tokens: f64) -> usize {
    floor_index((tokens.max(1.0).log2() * 6.0).ceil())
}

/// The position of a number of tokens between two points.
#[derive(Debug, Clone, Copy)]
struct GridPosition {
    point: usize,
    part: f32,
}

impl GridPosition {
    fn of(tokens: f64) -> Self {
        let point = floor_index((tokens.max(1.0).log2() * 6.0).min(84.0)).min(GRID - 2);
        let (from, to) = (tokens_at(point), tokens_at(point + 1));
        Self { point, part: narrow(((tokens - from) / (to - from)).clamp(0.0, 1.0)) }
    }

    /// Returns the value at this position, interpolated between those of the points on both sides.
    fn value(self, at: impl Fn(usize) -> f32) -> f32 {
        let from = at(self.point);
        from + self.part * (at(self.point + 1) - from)
    }
}

/// The number of streams that will have ended, by the tokens that each emits meanwhile. Computed
/// about once a second; decisions read it without a lock, and correct it by the time that has
/// passed since.
#[derive(Debug)]
pub struct WaitCurve {
    ended: [AtomicU32; GRID],
    /// The time at which it was computed.
    computed_at_us: AtomicU64,
}

impl Default for WaitCurve {
    fn default() -> Self {
        Self {
            ended: std::array::from_fn(|_| AtomicU32::new(0)),
            computed_at_us: AtomicU64::new(0),
        }
    }
}

impl WaitCurve {
    /// Computes it at `now_us`, after `steps_ended` steps of the engine.
    pub(crate) fn compute(
        &self,
        lengths: &OutputLengths,
        streams: &Streams,
        steps_ended: f64,
        now_us: f64,
    ) {
        let mut ended = [0.0_f32; GRID];
        let positions = &*POSITIONS;
        // Limits end streams below, each at its own.
        for (bucket, count) in streams.buckets() {
            let Some((age, points)) = positions.ages.get(bucket) else { continue };
            let alive = lengths.unlimited_at(age);
            for (sum, point) in ended.iter_mut().zip(points) {
                let later = lengths.unlimited_at(point);
                let share = if alive <= 1e-9 { 1.0 } else { 1.0 - later / alive };
                *sum += narrow(share * count);
            }
        }
        // Those that would run on reach their limit.
        for LimitedStream { age_tokens, left_tokens } in streams.limited(steps_ended) {
            let Some((age, points)) = positions.ages.get(bucket_of(age_tokens)) else { continue };
            let alive = lengths.unlimited_at(age);
            let from = first_point_from(left_tokens);
            for (sum, point) in ended.iter_mut().zip(points).skip(from) {
                let share = if alive > 1e-9 { lengths.unlimited_at(point) / alive } else { 0.0 };
                *sum += narrow(share);
            }
        }
        let mut fresh = [0.0; GRID];
        for (share, point) in fresh.iter_mut().zip(&positions.points) {
            *share = narrow(1.0 - lengths.survival_at(point));
        }
        let own = ended;
        add_later_generations(&mut ended, &own, &fresh, narrow(streams.count()) * MIN_ENDED_SHARE);
        for (place, sum) in self.ended.iter().zip(ended) {
            // Relaxed: a reader may see points of two curves, which are a second apart.
            place.store(sum.to_bits(), Ordering::Relaxed);
        }
        self.computed_at_us.store(now_us.to_bits(), Ordering::Relaxed);
    }

    /// Returns the tokens that each stream emits from `now_us` until `needed_streams` streams have
    /// ended, if each emits one in `step_us`; `None` while the curve has not been computed.
    pub(crate) fn tokens_until(
        &self,
        needed_streams: f64,
        step_us: f64,
        now_us: f64,
    ) -> Option<f64> {
        if self.at_point(GRID - 1) <= 0.0 {
            return None;
        }
        let passed_tokens = (now_us - self.computed_at_us()).max(0.0) / step_us.max(1.0);
        let before =
            if passed_tokens < 1.0 { 0.0 } else { f64::from(self.ended_at(passed_tokens)) };
        Some((self.crossing(narrow(needed_streams + before)) - passed_tokens).max(1.0))
    }

    /// Returns the number of streams that end within `tokens` tokens of `step_us` microseconds from
    /// `now_us` on; `None` while the curve has not been computed.
    pub(crate) fn ended_within(&self, tokens: f64, now_us: f64, step_us: f64) -> Option<f64> {
        if self.at_point(GRID - 1) <= 0.0 {
            return None;
        }
        let passed_tokens = (now_us - self.computed_at_us()).max(0.0) / step_us.max(1.0);
        let ended = |tokens: f64| if tokens < 1.0 { 0.0 } else { f64::from(self.ended_at(tokens)) };
        Some((ended(passed_tokens + tokens) - ended(passed_tokens)).max(0.0))
    }

    /// Returns the time at which it was computed.
    pub(crate) fn computed_at_us(&self) -> f64 {
        f64::from_bits(self.computed_at_us.load(Ordering::Relaxed))
    }

    fn at_point(&self, point: usize) -> f32 {
        self.ended.get(point).map_or(0.0, |sum| f32::from_bits(sum.load(Ordering::Relaxed)))
    }

    /// Returns the number of streams that have ended after `tokens` tokens.
    fn ended_at(&self, tokens: f64) -> f32 {
        GridPosition::of(tokens).value(|point| self.at_point(point))
    }

    /// Returns the tokens at which the line through the points reaches `needed_streams`; beyond the
    /// last point it goes on in proportion.
    fn crossing(&self, needed_streams: f32) -> f64 {
        let (mut low, mut high) = (0, GRID);
        while low < high {
            let middle = low.midpoint(high);
            if self.at_point(middle) < needed_streams { low = middle + 1 } else { high = middle }
        }
        if low == 0 {
            return tokens_at(0);
        }
        let below = self.at_point(low - 1);
        if low == GRID {
            return tokens_at(GRID - 1) * f64::from(needed_streams / below.max(1e-3));
        }
        let part = f64::from((needed_streams - below) / (self.at_point(low) - below).max(1e-6));
        let (from, to) = (tokens_at(low - 1), tokens_at(low));
        from + part.clamp(0.0, 1.0) * (to - from)
    }
}

/// Adds the streams that start where others ended, and end in turn: the renewal equation on the
/// grid.
fn add_later_generations(
    ended: &mut [f32; GRID],
    own: &[f32; GRID],
    fresh: &[f32; GRID],
    few: f32,
) {
    for (point, starts) in POSITIONS.between.iter().enumerate().skip(1) {
        let own = own.get(point).copied().unwrap_or(0.0);
        if own <= few {
            continue;
        }
        let mut later = 0.0;
        let mut before = 0.0;
        for (total, position) in ended.iter().zip(starts) {
            let share = position.value(|at| fresh.get(at).copied().unwrap_or(1.0));
            later += (total - before) * share;
            before = *total;
        }
        ended.iter_mut().skip(point).take(1).for_each(|place| *place = own + later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Stream;

    fn aged(age_tokens: u32) -> Stream {
        Stream { number: 0, prompt_tokens: 100.0, age_tokens, max_output_tokens: f64::INFINITY }
    }

    #[test]
    fn streams_end_at_their_limits() {
        let mut lengths = OutputLengths::default();
        (0..5000).for_each(|_| lengths.learn(2_000.0, f64::INFINITY));
        let mut streams = Streams::default();
        (0..5).for_each(|_| streams.add(&aged(50), 0.0));
        assert!(curve(&lengths, &streams).tokens_until(1.0, 1e4, 0.0).unwrap() > 1_000.0);
        (0..2).for_each(|_| streams.add(&Stream { max_output_tokens: 90.0, ..aged(50) }, 0.0));
        let wait = curve(&lengths, &streams).tokens_until(1.0, 1e4, 0.0).unwrap();
        assert!((34.0..50.0).contains(&wait), "{wait}");
    }

    fn curve(lengths: &OutputLengths, streams: &Streams) -> WaitCurve {
        let curve = WaitCurve::default();
        curve.compute(lengths, streams, 0.0, 0.0);
        curve
    }

    #[test]
    fn streams_of_one_length_end_when_they_are_due() {
        let mut lengths = OutputLengths::default();
        (0..5000).for_each(|_| lengths.learn(200.0, f64::INFINITY));
        let mut streams = Streams::default();
        (0..10).for_each(|_| streams.add(&aged(10), 0.0));
        let young = curve(&lengths, &streams);
        assert_eq!(WaitCurve::default().tokens_until(5.0, 1e4, 0.0), None);
        let wait = young.tokens_until(5.0, 1e4, 0.0).unwrap();
        assert!((120.0..230.0).contains(&wait), "{wait}");
        // A second later each has emitted 100 tokens of 10 ms.
        let later = young.tokens_until(5.0, 1e4, 1e6).unwrap();
        assert!((wait - 100.0 - later).abs() < 30.0, "{wait} {later}");
        // Fifteen have ended when the second ten are half through.
        let later = young.tokens_until(15.0, 1e4, 0.0).unwrap();
        assert!((300.0..480.0).contains(&later), "{later}");
        (0..10).for_each(|_| streams.add(&aged(180), 0.0));
        assert!(curve(&lengths, &streams).tokens_until(5.0, 1e4, 0.0).unwrap() < 80.0);
    }

    #[test]
    fn positions_are_those_that_would_be_computed() {
        let mut lengths = OutputLengths::default();
        (0..500).for_each(|n| lengths.learn(f64::from(n * 7 % 900 + 1), f64::INFINITY));
        for bucket in 0..AGE_BUCKETS {
            let (age, after) = &POSITIONS.ages[bucket];
            assert_eq!(lengths.survival_at(age), lengths.survival(age_tokens_of(bucket)));
            for (point, position) in after.iter().enumerate() {
                let tokens = age_tokens_of(bucket) + tokens_at(point);
                assert_eq!(lengths.survival_at(position), lengths.survival(tokens));
            }
        }
    }

    #[test]
    fn longer_queues_wait_longer() {
        let mut streams = Streams::default();
        (0..32).for_each(|age| streams.add(&aged(age * 10 + 1), 0.0));
        let curve = curve(&OutputLengths::default(), &streams);
        let wait =
            |needed_streams: u32| curve.tokens_until(f64::from(needed_streams), 1e4, 0.0).unwrap();
        let waits: Vec<f64> = (1..100).map(wait).collect();
        assert!(waits.windows(2).all(|two| two[0] <= two[1]), "{waits:?}");
        assert!(waits[0] >= 1.0 && waits[98] < 5000.0, "{waits:?}");
    }
}
