//! How long until enough streams have ended, by their ages and the lengths of earlier outputs.

use super::lengths::Lengths;
use super::streams::{AGE_BUCKETS, Streams, age_of};
use crate::units::{floor_index, narrow};

/// Points at which the wait is computed, in tokens: sixths of an octave up to 2^14.
const GRID: usize = 85;

/// The share of a backend's streams up to which those that start later need not be counted.
const FEW: f64 = 0.25;

fn tokens_at(point: usize) -> f64 {
    (f64::from(u32::try_from(point).unwrap_or(u32::MAX)) / 6.0).exp2()
}

/// For each age, the share of streams that end within so many tokens: computed when lengths were learned, so that a
/// prediction only adds.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitTable {
    ends: Box<[[f32; GRID]; AGE_BUCKETS]>,
    /// The same for a stream that starts.
    fresh: [f32; GRID],
}

impl WaitTable {
    /// The table of these lengths.
    pub fn new(lengths: &Lengths) -> Self {
        let mut ends = Box::new([[0.0; GRID]; AGE_BUCKETS]);
        for (bucket, row) in ends.iter_mut().enumerate() {
            for (point, share) in row.iter_mut().enumerate() {
                *share = narrow(lengths.ends_within(age_of(bucket), tokens_at(point)));
            }
        }
        let mut fresh = [0.0; GRID];
        for (point, share) in fresh.iter_mut().enumerate() {
            *share = narrow(1.0 - lengths.survival(tokens_at(point)));
        }
        Self { ends, fresh }
    }

    /// The tokens that each stream emits until `needed` of them have ended.
    pub fn tokens_until(&self, needed: f64, streams: &Streams) -> f64 {
        let mut ended = [0.0_f32; GRID];
        for (row, count) in
            self.ends.iter().zip(streams.counts()).filter(|(_, count)| **count > 0.0)
        {
            for (sum, share) in ended.iter_mut().zip(row) {
                *sum += share * count;
            }
        }
        if needed > streams.count() * FEW {
            self.add_later_generations(&mut ended);
        }
        crossing(&ended, narrow(needed))
    }

    /// Streams that start where others ended, and end in turn: the renewal equation on the grid.
    fn add_later_generations(&self, ended: &mut [f32; GRID]) {
        let own = *ended;
        for point in 1..GRID {
            let mut later = 0.0;
            let mut before = 0.0;
            for (start, total) in ended.iter().enumerate().take(point) {
                let share = self.fresh_within(tokens_at(point) - tokens_at(start));
                later += (total - before) * share;
                before = *total;
            }
            if let (Some(place), Some(own)) = (ended.get_mut(point), own.get(point)) {
                *place = own + later;
            }
        }
    }

    fn fresh_within(&self, tokens: f64) -> f32 {
        let place = tokens.max(1.0).log2() * 6.0;
        let point = floor_index(place).min(GRID - 2);
        let (from, to) = (tokens_at(point), tokens_at(point + 1));
        let part = narrow(((tokens - from) / (to - from)).clamp(0.0, 1.0));
        let at = |point: usize| self.fresh.get(point).copied().unwrap_or(1.0);
        at(point) + part * (at(point + 1) - at(point))
    }
}

/// Where the line through the points reaches `needed`; beyond the last point it goes on in proportion.
fn crossing(ended: &[f32; GRID], needed: f32) -> f64 {
    let point = ended.partition_point(|sum| *sum < needed);
    let (Some(above), true) = (ended.get(point).copied(), point > 0) else {
        let last = ended.last().copied().unwrap_or(0.0).max(1e-3);
        let beyond = if point == 0 { 1.0 } else { f64::from(needed / last) };
        return tokens_at(point.min(GRID - 1)) * beyond;
    };
    let below = ended.get(point - 1).copied().unwrap_or(0.0);
    let part = f64::from((needed - below) / (above - below).max(1e-6));
    let (from, to) = (tokens_at(point - 1), tokens_at(point));
    from + part.clamp(0.0, 1.0) * (to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_length_end_when_they_are_due() {
        let mut lengths = Lengths::default();
        (0..5000).for_each(|_| lengths.learn(200.0));
        let table = WaitTable::new(&lengths);
        let mut streams = Streams::default();
        (0..10).for_each(|_| streams.add(100.0, 10));
        let wait = table.tokens_until(5.0, &streams);
        assert!((120.0..230.0).contains(&wait), "{wait}");
        // Fifteen have ended when the second ten are half through.
        let later = table.tokens_until(15.0, &streams);
        assert!((300.0..480.0).contains(&later), "{later}");
        (0..10).for_each(|_| streams.add(100.0, 180));
        assert!(table.tokens_until(5.0, &streams) < 80.0);
    }

    #[test]
    fn longer_queues_wait_longer() {
        let table = WaitTable::new(&Lengths::default());
        let mut streams = Streams::default();
        (0..32).for_each(|age| streams.add(100.0, age * 10 + 1));
        let waits: Vec<f64> =
            (1..100).map(|needed| table.tokens_until(f64::from(needed), &streams)).collect();
        assert!(waits[0] > 1.0 && waits[98] < 5000.0, "{waits:?}");
    }
}
