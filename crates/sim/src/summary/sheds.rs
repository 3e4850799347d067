//! The correctness of refusals, and how often they switch on and off.

use std::collections::BTreeMap;

use super::{MICRO, Objective};
use crate::workload::Workload;
use crate::world::{RefusalVerdict, RequestResult, RunResult, Status};

/// The minimum duration of a window in which refusals are counted, in microseconds.
const MIN_WINDOW: u64 = 1_000_000;
/// The minimum number of requests in a window.
const MIN_REQUESTS: usize = 10;
/// The share of refusals from which a window counts as refusing; up to `SERVING` it counts as
/// serving. Between the two, the state stays (hysteresis).
const REFUSING: f64 = 0.8;
const SERVING: f64 = 0.2;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ShedFigures {
    /// The number of refusals that were judged.
    pub judged: usize,
    /// The refusals of requests that would have reached their objectives without making another
    /// miss its own.
    pub wrong: usize,
    /// The refusals of requests that would have reached their objectives but made others miss
    /// theirs.
    pub harmful: usize,
    /// The number of sheddable requests (priority below 0) that were not refused.
    pub admitted: usize,
    /// The admitted sheddable requests that missed their objectives.
    pub missed: usize,
    /// The changes per minute between refusing and serving, for the model and priority with the
    /// most changes.
    pub changes_per_minute: f64,
}

impl ShedFigures {
    /// Returns the share of judged refusals that were wrong.
    pub fn wrong_share(&self) -> f64 {
        self.wrong as f64 / self.judged.max(1) as f64
    }

    /// Returns the share of judged refusals that were right only because of other requests.
    pub fn harmful_share(&self) -> f64 {
        self.harmful as f64 / self.judged.max(1) as f64
    }

    /// Returns the share of admitted sheddable requests that missed their objectives.
    pub fn missed_share(&self) -> f64 {
        self.missed as f64 / self.admitted.max(1) as f64
    }

    /// Computes the figures of a run; `None` if no request was refused.
    pub(super) fn of(run: &RunResult, workload: &Workload, objective: &Objective) -> Option<Self> {
        let is_shed = |one: &RequestResult| one.status.shed_reason().is_some();
        if !run.requests.iter().any(is_shed) {
            return None;
        }
        let mut figures = Self::default();
        let mut groups: BTreeMap<(u16, i8), Vec<(u64, bool)>> = BTreeMap::new();
        for (result, request) in run.requests.iter().zip(&workload.requests) {
            if result.status == Status::Abandoned {
                continue;
            }
            let group = groups.entry((request.model, request.priority)).or_default();
            group.push((result.arrived, is_shed(result)));
            if is_shed(result) {
                figures.judged += usize::from(result.verdict != RefusalVerdict::None);
                figures.wrong += usize::from(result.verdict == RefusalVerdict::Wrong);
                figures.harmful += usize::from(result.verdict == RefusalVerdict::Harmful);
            } else if request.priority < 0 {
                figures.admitted += 1;
                figures.missed += usize::from(!objective.is_reached(result));
            }
        }
        let changes = groups.into_values().map(changes_per_minute);
        figures.changes_per_minute = changes.fold(0.0, f64::max);
        Some(figures)
    }
}

/// Returns the changes per minute between refusing and serving; each request is its arrival and
/// whether it was refused.
fn changes_per_minute(mut requests: Vec<(u64, bool)>) -> f64 {
    requests.sort_unstable();
    let (Some((first, _)), Some((last, _))) = (requests.first(), requests.last()) else {
        return 0.0;
    };
    let minutes = last.saturating_sub(*first) as f64 * MICRO / 60.0;
    let (mut start, mut count, mut refused) = (*first, 0_usize, 0_usize);
    let (mut is_refusing, mut changes) = (None, 0_usize);
    for (at, is_refused) in &requests {
        if at.saturating_sub(start) >= MIN_WINDOW && count >= MIN_REQUESTS {
            let share = refused as f64 / count as f64;
            let now = match () {
                () if share >= REFUSING => Some(true),
                () if share <= SERVING => Some(false),
                () => is_refusing,
            };
            changes += usize::from(is_refusing.is_some() && now != is_refusing);
            is_refusing = now;
            (start, count, refused) = (*at, 0, 0);
        }
        count += 1;
        refused += usize::from(*is_refused);
    }
    if minutes > 0.0 { changes as f64 / minutes } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the arrivals and refusals of ten requests a second, of which `refused` are refused
    /// in each second.
    fn seconds(refused: &[u64]) -> Vec<(u64, bool)> {
        let all = (0..).zip(refused).flat_map(|(second, count)| {
            (0..10_u64).map(move |n| (second * MIN_WINDOW + n * 100_000, n < *count))
        });
        all.collect()
    }

    #[test]
    fn changes_are_between_nearly_all_and_nearly_none() {
        let minute = |pattern: &[u64]| pattern.iter().copied().cycle().take(61).collect::<Vec<_>>();
        let of = |pattern: &[u64]| changes_per_minute(seconds(&minute(pattern))).round();
        assert_eq!(of(&[5]), 0.0, "half of them, all the time");
        assert_eq!(of(&[10, 7, 5, 4, 6]), 0.0, "more or less");
        assert_eq!(of(&[10, 0]), 58.0, "each second the other");
        assert_eq!(of(&[10, 5, 0, 5]), 29.0);
        assert_eq!(changes_per_minute(Vec::new()), 0.0);
    }
}
