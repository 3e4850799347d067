//! Stationarity of a run: a fleet keeps up if the number of requests in it does not grow.

use super::workload::Workload;
use super::world::{RunResult, Status};

/// The growth of the number of requests in the fleet, as a fraction of the arrivals meanwhile,
/// beyond which the fleet does not keep up.
const MAX_GROWTH: f64 = 0.015;
/// The growth attributed to chance: this many requests, plus twice the deviation of a Poisson
/// number.
const CHANCE: f64 = 10.0;
const DEVIATIONS: f64 = 2.0;

/// Returns whether the number of requests was the same in the second and in the last quarter of the
/// arrivals. Returns `None` if that shows nothing: sessions outlast the arrival of new ones, as in
/// a closed loop, or the run is so short that the fleet is filling up for most of it.
pub(super) fn is_stationary(run: &RunResult, workload: &Workload) -> Option<bool> {
    let roots = workload.requests.iter().filter(|request| request.follows == 0);
    let (count, last) =
        roots.fold((0_u32, 0), |(count, last), request| (count + 1, request.arrives_at.max(last)));
    let arrived = run.requests.iter().filter(|one| one.status != Status::Abandoned);
    let last_arrival = arrived.map(|one| one.arrived).max()?.saturating_sub(run.start);
    if last == 0 || last.saturating_mul(2) < last_arrival || mean_time(run) > last as f64 / 4.0 {
        return None;
    }
    let quarter = |number: u64| Window {
        start: run.start + last / 4 * number,
        end: run.start + last / 4 * (number + 1),
    };
    let (before, after) = (quarter(1).figures(run), quarter(3).figures(run));
    // Faster arrivals at the end put more requests in the fleet, even without a queue.
    let faster = (after.arrived / before.arrived.max(1.0)).max(1.0);
    let expected = before.inside * faster;
    let chance = CHANCE + DEVIATIONS * libm::sqrt(expected);
    let most = (MAX_GROWTH * f64::from(count) / 2.0).max(chance);
    Some(after.inside - expected <= most)
}

/// Returns the mean time of a request in the fleet, in microseconds.
fn mean_time(run: &RunResult) -> f64 {
    let times = run.requests.iter().filter(|one| one.status != Status::Abandoned);
    let times = times.map(|one| one.ended.saturating_sub(one.arrived) as f64);
    let (sum, count) = times.fold((0.0, 0.0), |(sum, count), time| (sum + time, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// A part of a run, in microseconds.
struct Window {
    start: u64,
    end: u64,
}

/// The figures of a window.
#[derive(Default)]
struct Figures {
    /// The mean number of requests in the fleet.
    inside: f64,
    arrived: f64,
}

impl Window {
    fn figures(&self, run: &RunResult) -> Figures {
        let mut figures = Figures::default();
        let length = self.end.saturating_sub(self.start).max(1) as f64;
        for one in run.requests.iter().filter(|one| one.status != Status::Abandoned) {
            let (from, to) = (one.arrived.max(self.start), one.ended.min(self.end));
            figures.inside += to.saturating_sub(from) as f64 / length;
            figures.arrived += f64::from(u8::from((self.start..self.end).contains(&one.arrived)));
        }
        figures
    }
}
