//! Stationarity of a run: a fleet keeps up if the number of requests in it does not grow.

use super::workload::Workload;
use super::world::{RequestResult, RunResult, Status};

/// The growth of the number of requests in the fleet, as a fraction of the arrivals meanwhile,
/// beyond which the fleet does not keep up.
const MAX_GROWTH: f64 = 0.015;
/// The growth attributed to chance: this many requests, plus twice the deviation of a Poisson
/// number.
const CHANCE: f64 = 10.0;
const DEVIATIONS: f64 = 2.0;

/// The verdict on a run: the fleet kept up with the workload, or its queue grew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stationarity {
    /// The fleet kept up with the workload.
    Sustained,
    /// The number of requests in the fleet grew until the end.
    Saturated,
    /// The run is too short to tell, or its requests have no rate.
    Unknown,
}

/// The load of a run, and how well the run shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trend {
    pub(super) load: Stationarity,
    /// True if the number of requests in the fleet grew, be it by chance.
    pub(super) is_growing: bool,
    /// The excess of the rate over the capacity that the run could hide, as a fraction.
    pub(super) resolution: f64,
}

impl Trend {
    const UNKNOWN: Self =
        Self { load: Stationarity::Unknown, is_growing: false, resolution: f64::INFINITY };

    /// Compares the second and the last quarter of the arrivals.
    ///
    /// Requests before their first token are the queue: wherever their number grows, the fleet does
    /// not keep up. The number of all requests in the fleet also grows while the fleet fills up:
    /// growth that this explains shows nothing. Nor does a run whose sessions outlast the arrival
    /// of new ones, as in a closed loop, or one in which the fleet fills up most of the time.
    pub(super) fn of(run: &RunResult, workload: &Workload) -> Self {
        let roots = workload.requests.iter().filter(|request| request.follows == 0);
        let (count, last) = roots
            .fold((0_u32, 0), |(count, last), request| (count + 1, request.arrives_at.max(last)));
        let Some(last_arrival) = arrived(run).map(|one| one.arrived).max() else {
            return Self::UNKNOWN;
        };
        if last == 0 {
            return Self::UNKNOWN;
        }
        let quarter = |number: u64| Window {
            start: run.start + last / 4 * number,
            end: run.start + last / 4 * (number + 1),
        };
        let (second, fourth) = (quarter(1), quarter(3));
        let (before, after) = (second.figures(run), fourth.figures(run));
        // Faster arrivals at the end put more requests in the fleet, even without a queue.
        let faster = (after.arrived / before.arrived.max(1.0)).max(1.0);
        let arrivals = f64::from(count) / 2.0;
        let most =
            |expected: f64| (MAX_GROWTH * arrivals).max(CHANCE + DEVIATIONS * libm::sqrt(expected));
        let grows = |before: f64, after: f64| after - before > most(before);
        let is_clear = last.saturating_mul(2) >= last_arrival.saturating_sub(run.start)
            && mean_time(run) <= last as f64 / 4.0;
        let expected = before.inside * faster;
        let filling = after.arrived / fourth.length() * (fourth.filled(run) - second.filled(run));
        let is_queue_growing = grows(before.waiting * faster, after.waiting);
        let is_fleet_growing = is_clear && grows(expected + filling, after.inside);
        let load = match () {
            () if is_clear && !grows(expected, after.inside) => Stationarity::Sustained,
            () if is_queue_growing => Stationarity::Saturated,
            // In a short run, batches that vary look the same.
            () if is_fleet_growing && most(expected) <= MAX_GROWTH * arrivals => {
                Stationarity::Saturated
            }
            () => Stationarity::Unknown,
        };
        Self {
            load,
            is_growing: load != Stationarity::Sustained && (is_queue_growing || is_fleet_growing),
            resolution: most(expected) / arrivals,
        }
    }
}

/// Returns the requests that arrived.
fn arrived(run: &RunResult) -> impl Iterator<Item = &RequestResult> {
    run.requests.iter().filter(|one| one.status != Status::Abandoned)
}

/// Returns the mean time of a request in the fleet, in microseconds.
fn mean_time(run: &RunResult) -> f64 {
    let times = arrived(run).map(|one| one.ended.saturating_sub(one.arrived) as f64);
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
struct WindowFigures {
    /// The mean number of requests in the fleet.
    inside: f64,
    /// The mean number of requests before their first token.
    waiting: f64,
    arrived: f64,
}

impl Window {
    fn length(&self) -> f64 {
        self.end.saturating_sub(self.start).max(1) as f64
    }

    /// Returns the share of the window between two times.
    fn share(&self, from: u64, to: u64) -> f64 {
        to.min(self.end).saturating_sub(from.max(self.start)) as f64 / self.length()
    }

    fn figures(&self, run: &RunResult) -> WindowFigures {
        let mut figures = WindowFigures::default();
        for one in arrived(run) {
            // A request that ended without a token waited for it until then.
            let token = if one.first_token > 0 { one.first_token } else { one.ended };
            figures.inside += self.share(one.arrived, one.ended);
            figures.waiting += self.share(one.arrived, token);
            figures.arrived += f64::from(u8::from((self.start..self.end).contains(&one.arrived)));
        }
        figures
    }

    /// Returns the mean over the window of the time that a request with its first token has been
    /// in a fleet that was empty at the start, in microseconds: by Little's law, the number of
    /// those requests divided by the rate.
    fn filled(&self, run: &RunResult) -> f64 {
        let (start, end) =
            (self.start.saturating_sub(run.start), self.end.saturating_sub(run.start));
        let (start, end) = (start as f64, end as f64);
        let times = arrived(run).filter(|one| one.first_token > 0);
        let times = times.map(|one| one.ended.saturating_sub(one.first_token) as f64);
        let (sum, count) = times.fold((0.0, 0.0), |(sum, count), time| {
            // The integral of the lesser of `time` and the time since the start.
            let within = time.clamp(start, end);
            let growing = (within * within - start * start) / 2.0;
            (sum + (growing + (end - within) * time) / self.length(), count + 1.0)
        });
        if count > 0.0 { sum / count } else { 0.0 }
    }
}
