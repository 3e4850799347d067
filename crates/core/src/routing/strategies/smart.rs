//! `smart`: the highest score of priority, load and latency. Source: the score of Nexus F06.

use penstock_api::units::{Timestamp, lower_half};
use penstock_config::Weights;

use super::{Picked, Reading};
use crate::fleet::Serving;

/// The most points of a priority, a load or a latency. Each request in flight costs one: from this
/// number on, the load costs no more.
const MAX_POINTS: u32 = 100;
/// The largest number of further requests in flight that is compared: 18 bits.
const MAX_EXCESS: u32 = (1 << 18) - 1;

/// Scores while passing over the candidates: a second pass would cost as much as the first.
#[inline(always)]
pub(super) fn pick<R: Reading>(
    candidates: impl Iterator<Item = R>,
    weights: &Weights,
) -> Option<Picked> {
    let (mut count, mut best) = (0, 0);
    for candidate in candidates {
        count += 1;
        let points = points(&candidate, weights);
        // One number, so that comparing needs no branch prediction: more points, then fewer
        // requests beyond those that cost points; ties go to the first candidate.
        let excess = candidate.in_flight().saturating_sub(MAX_POINTS).min(MAX_EXCESS);
        let load = u64::from(MAX_EXCESS - excess) << 32;
        // From the top: 14 bits of points (at most 10,000), 18 of excess, 32 of the row.
        best = best.max(u64::from(points) << 50 | load | u64::from(u32::MAX - candidate.row()));
    }
    let row = u32::MAX - lower_half(best);
    (count > 0).then(|| Picked::plain(row, count))
}

/// Returns the latency of a candidate, in microseconds: measured on requests of the same kind and
/// aged, else on its health checks, else zero.
// In whole numbers: a division of durations costs more than the rest.
#[inline(always)]
pub(in crate::routing) fn latency_micros(
    candidate: &Serving,
    is_streaming: bool,
    now: Timestamp,
) -> u32 {
    match candidate.latency.aged_micros(is_streaming, now) {
        0 => candidate.state.check_micros(),
        measured => measured,
    }
}

/// Returns the undivided score of a candidate, 0..=10000:
/// `P * priority + L * load + T * latency` with `P = 100 - min(priority, 100)`,
/// `L = 100 - min(in flight, 100)` and `T = 100 - min(latency in ms / 10, 100)`.
#[inline(always)]
pub(in crate::routing) fn points(candidate: &impl Reading, weights: &Weights) -> u32 {
    let tens_of_ms = candidate.latency_micros() / 10_000;
    score_points(candidate.priority(), candidate.in_flight(), tens_of_ms, weights)
}

fn score_points(priority: u32, in_flight: u32, tens_of_ms: u32, weights: &Weights) -> u32 {
    points_of(priority) * weights.priority
        + points_of(in_flight) * weights.load
        + points_of(tens_of_ms) * weights.latency
}

/// Returns 100 for 0, falling to 0 for 100 and more.
fn points_of(value: u32) -> u32 {
    MAX_POINTS - value.min(MAX_POINTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: Weights = Weights { priority: 50, load: 30, latency: 20 };

    #[test]
    fn formula_gives_the_documented_values() {
        assert_eq!(score_points(0, 0, 0, &DEFAULT) / 100, 100);
        assert_eq!(score_points(100, 100, 100, &DEFAULT) / 100, 0);
        assert_eq!(score_points(1000, 1000, 1000, &DEFAULT) / 100, 0, "all three are clamped");
        assert_eq!(score_points(10, 2, 5, &DEFAULT) / 100, (90 * 50 + 98 * 30 + 95 * 20) / 100);
    }

    proptest! {
        #[test]
        fn scores_stay_in_range(
            priority: u32, in_flight: u32, latency: u32, a in 0_u32..=100, b in 0_u32..=100
        ) {
            let weights = Weights { priority: a, load: b.min(100 - a), latency: 100 - a - b.min(100 - a) };
            prop_assert!(score_points(priority, in_flight, latency, &weights) <= 10_000);
        }
    }
}
