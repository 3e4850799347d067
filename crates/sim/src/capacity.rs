//! The capacity of a fleet for a workload: the highest rate at which it keeps up. Beyond it the
//! queue grows for as long as requests arrive.
//!
//! Capacity is a property of the engines and the workload, the same for every configuration that is
//! compared: the same scorers route, nothing is refused, and no client leaves. The throughput of a
//! full fleet is a poor estimate of it, in both directions, because of long prompts, caches and
//! preemptions. So it is searched for.

use penstock_config::{Config, Strategy};
use penstock_scoring::ScorerSpec;

use super::experiment::{Setting, Variant};
use super::stationarity::is_stationary;
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

/// Finds the capacity in requests per second; returns `None` if all requests arrive at once.
///
/// # Errors
/// [`WorldError`] when the fleet cannot be built.
pub fn capacity(
    setting: &Setting,
    fleet: &Variant,
    workload: &Workload,
) -> Result<Option<f64>, WorldError> {
    let rate = workload.rate();
    if rate <= 0.0 {
        return Ok(None);
    }
    let is_on_demand = setting.engines.iter().any(|engine| engine.on_demand.is_some());
    let fleet = Variant::new(fleet.name.clone(), unlimited(&fleet.config, is_on_demand));
    let setting = Setting {
        workloads: Vec::new(),
        faults: Vec::new(),
        judges_sheds: false,
        engines: setting.engines.clone(),
        ..*setting
    };
    let workload = patient(workload.clone());
    let (mut kept, mut missed) = (0.0_f64, f64::INFINITY);
    let mut speed = 1.0;
    for _ in 0..MAX_RUNS {
        let trial = workload.clone().at_speed(speed);
        let run = setting.run_workload(&fleet, &trial)?;
        if is_stationary(&run, &trial) == Some(true) {
            kept = speed;
        } else {
            missed = speed;
        }
        if missed <= kept * PRECISION {
            break;
        }
        speed = match () {
            () if missed.is_infinite() => kept * 2.0,
            // However far the workload exceeds capacity, the throughput of a full fleet is close
            // enough to continue from.
            () if kept == 0.0 => (missed / 2.0).min(run.completed_rate() / rate),
            // The search ends by the ratio of the two, not by their difference.
            () => libm::sqrt(kept * missed),
        };
    }
    Ok(Some(rate * if missed.is_infinite() { kept } else { libm::sqrt(kept * missed) }))
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
