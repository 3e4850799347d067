//! The capacity of a fleet for a workload: the rate up to which it keeps up. Beyond it the queue grows for as long as
//! requests arrive.
//!
//! It is a figure of the engines and the workload, the same for every configuration that is compared: the preset
//! `balanced` decides, nothing is refused, and no client leaves. Long prompts, caches and preemptions make what a full
//! fleet completes a bad estimate of it, in both directions, so that it is searched for.

use super::experiment::{Setting, Variant};
use super::stationarity::is_stationary;
use super::workload::Workload;
use super::world::WorldError;
use crate::config::{Config, Strategy};

/// The preset that decides.
const PRESET: &str = "balanced";
/// The search ends when the rate that is too high is at most this many times the one that is not.
const PRECISION: f64 = 1.05;
/// The most runs of a search.
const MAX_RUNS: usize = 40;

/// Finds the capacity in requests per second; `None` for requests that all arrive at once.
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
            // What a full fleet completed is near enough to go on from, however far beyond it the workload is.
            () if kept == 0.0 => (missed / 2.0).min(run.completed_rate() / rate),
            () => libm::sqrt(kept * missed),
        };
    }
    Ok(Some(rate * if missed.is_infinite() { kept } else { libm::sqrt(kept * missed) }))
}

/// The configuration without what refuses requests or has them wait. Engines that load models on demand keep their
/// strategy: where a model is decides there.
fn unlimited(config: &Config, is_on_demand: bool) -> Config {
    let mut config = config.clone();
    let routing = &mut config.routing;
    if !is_on_demand {
        routing.strategy = Strategy::Weighted;
        (routing.preset, routing.scorers) = (Some(PRESET), Vec::new());
        routing.predict = false;
    }
    routing.move_waiting = false;
    config.queue.size = 0;
    config.objectives.clear();
    for backend in &mut config.backends {
        (backend.max_in_flight, backend.max_in_flight_per_model) = (None, None);
        backend.models.iter_mut().flatten().for_each(|model| model.max_in_flight = None);
    }
    config
}

/// The workload with clients that wait, all of the same priority.
fn patient(mut workload: Workload) -> Workload {
    for request in &mut workload.requests {
        (request.patience_ms, request.priority) = (0, 0);
    }
    workload
}

#[cfg(test)]
mod tests;
