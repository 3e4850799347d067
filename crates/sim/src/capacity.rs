//! The capacity of a fleet for a workload: the highest rate at which it keeps up. Beyond it the
//! queue grows for as long as requests arrive.
//!
//! Capacity is a property of the engines and the workload, the same for every configuration that is
//! compared: the same scorers route, nothing is refused, and no client leaves. The throughput of a
//! full fleet is a poor estimate of it, in both directions, because of long prompts, caches and
//! preemptions. So it is searched for.

use penstock_config::{Config, Strategy};
use penstock_scoring::ScorerSpec;

use super::experiment::{Experiment, Variant};
use super::stationarity::Trend;
use super::summary::Stationarity;
use super::workload::Workload;
use super::world::WorldError;

/// The scorers that route during the search, with their weights.
// Fixed: a load stays the same load when a preset changes, so that tables of two versions compare.
const SCORERS: [(&str, f64); 3] =
    [("new-prefill-batch", 5.0), ("prefix-affinity", 5.0), ("kv-utilization", 3.0)];
/// The ratio of the lowest failing rate to the highest sustained rate at which the search ends.
const PRECISION: f64 = 1.05;
/// The maximum number of runs per search.
const MAX_RUNS: usize = 40;
/// The error of a capacity, as a fraction, because simulated engines are not the real ones.
const MODEL_ERROR: f64 = 0.1;
/// The largest error of a capacity that is of use.
const MAX_ERROR: f64 = 0.25;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// The capacity in requests per second.
    pub rate: f64,
    /// The error of the capacity, as a fraction of it.
    pub error: f64,
}

/// Finds the capacity; returns `None` if all requests arrive at once, and if the workload is too
/// short to show it.
///
/// # Errors
/// [`WorldError`] when the fleet cannot be built.
pub fn capacity(
    setting: &Experiment,
    fleet: &Variant,
    workload: &Workload,
) -> Result<Option<Capacity>, WorldError> {
    let rate = workload.rate();
    if rate <= 0.0 {
        return Ok(None);
    }
    let is_on_demand = setting.engines.iter().any(|engine| engine.on_demand.is_some());
    let fleet = Variant::new(fleet.name.clone(), unlimited(&fleet.config, is_on_demand));
    let setting = Experiment {
        workloads: Vec::new(),
        faults: Vec::new(),
        judges_sheds: false,
        engines: setting.engines.clone(),
        ..*setting
    };
    let mut search = CapacitySearch::new(&setting, &fleet, patient(workload.clone()));
    search.run()?;
    let capacity = search.found();
    Ok(capacity.map(|found| Capacity { rate: rate * found.rate, ..found }))
}

/// A search for the highest speed of a workload at which the fleet keeps up.
struct CapacitySearch<'a> {
    setting: &'a Experiment,
    fleet: &'a Variant,
    workload: Workload,
    /// The highest speed at which the fleet keeps up.
    kept: f64,
    /// The lowest speed at which it is not seen to keep up.
    missed: f64,
    /// The lowest speed at which it is seen not to keep up.
    exceeded: f64,
    /// The excess that the run at `missed` could hide, as a fraction.
    resolution: f64,
    runs: usize,
}

impl<'a> CapacitySearch<'a> {
    fn new(setting: &'a Experiment, fleet: &'a Variant, workload: Workload) -> Self {
        let infinity = f64::INFINITY;
        Self {
            setting,
            fleet,
            workload,
            kept: 0.0,
            missed: infinity,
            exceeded: infinity,
            resolution: 0.0,
            runs: 0,
        }
    }

    fn run(&mut self) -> Result<(), WorldError> {
        let mut speed = 1.0;
        while self.runs < MAX_RUNS {
            let completed = self.try_speed(speed)?;
            if self.missed <= self.kept * PRECISION {
                break;
            }
            speed = match () {
                () if self.missed.is_infinite() => self.kept * 2.0,
                // However far the workload exceeds capacity, the throughput of a full fleet is
                // close enough to continue from.
                () if self.kept == 0.0 => (self.missed / 2.0).min(completed / self.workload.rate()),
                // The search ends by the ratio of the two, not by their difference.
                () => libm::sqrt(self.kept * self.missed),
            };
        }
        self.look_beyond()
    }

    /// Looks for the lowest speed at which the queue is seen to grow, if short runs do not show
    /// that at the speed where the search ended.
    fn look_beyond(&mut self) -> Result<(), WorldError> {
        let mut unclear = self.missed;
        while self.runs < MAX_RUNS && unclear * PRECISION < self.exceeded {
            // Beyond it, the error would be too large.
            let most = self.kept * (1.0 + MAX_ERROR) * (1.0 + MAX_ERROR);
            if unclear >= most {
                break;
            }
            let speed = libm::sqrt(unclear * self.exceeded.min(most * PRECISION));
            let before = self.exceeded;
            self.try_speed(speed)?;
            if self.exceeded >= before {
                unclear = speed;
            }
        }
        Ok(())
    }

    /// Runs the workload at a speed, and returns the completed requests per second.
    fn try_speed(&mut self, speed: f64) -> Result<f64, WorldError> {
        let trial = self.workload.clone().at_speed(speed);
        let run = self.setting.run_workload(self.fleet, &trial)?;
        let trend = Trend::of(&run, &trial);
        self.runs += 1;
        if trend.is_growing {
            self.exceeded = self.exceeded.min(speed);
        }
        match trend.load {
            // Chance: it was seen not to keep up at a lower speed.
            Stationarity::Sustained if speed > self.missed => {}
            Stationarity::Sustained => self.kept = speed,
            Stationarity::Saturated | Stationarity::Unknown if speed <= self.missed => {
                (self.missed, self.resolution) = (speed, trend.resolution);
            }
            Stationarity::Saturated | Stationarity::Unknown => {}
        }
        Ok(run.completed_rate())
    }

    /// Returns the result, in multiples of the workload's speed; `None` if its error is too large.
    fn found(&self) -> Option<Capacity> {
        let rate = libm::sqrt(self.kept * self.exceeded);
        let error = (self.exceeded / rate - 1.0).max(self.resolution).max(MODEL_ERROR);
        (rate.is_finite() && error <= MAX_ERROR).then_some(Capacity { rate, error })
    }
}

/// Returns the configuration without limits and queues. Engines that load models on demand keep
/// their strategy: there the placement of models determines the result.
fn unlimited(config: &Config, is_on_demand: bool) -> Config {
    let mut config = config.clone();
    let routing = &mut config.routing;
    if !is_on_demand {
        routing.strategy = Strategy::Weighted;
        routing.preset = None;
        routing.scorers = SCORERS.map(|(name, weight)| ScorerSpec::new(name, weight)).into();
        routing.predict = false;
    }
    routing.move_waiting = false;
    // A queue would hold requests back from the engines, whose limit is looked for.
    config.queue.size = 0;
    config.budgets.clear();
    config.objectives.clear();
    for backend in &mut config.backends {
        (backend.max_in_flight, backend.max_in_flight_per_model) = (None, None);
        backend.models.iter_mut().flatten().for_each(|model| model.max_in_flight = None);
    }
    config
}

/// Returns the workload with clients that never leave, all of the same priority.
fn patient(mut workload: Workload) -> Workload {
    for request in &mut workload.requests {
        (request.patience_ms, request.priority) = (0, 0);
    }
    workload
}

#[cfg(test)]
mod tests;
