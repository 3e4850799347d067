//! Simulates a new configuration with the recent traffic before it is put in force.

use std::time::Duration;

use penstock_config::{Config, Resolve};
use penstock_core::fleet::Groups;
use penstock_core::routing::Generation;
use penstock_sim::replay::{PredictedEffect, ReplayError, ReplayInput};

use crate::observe::recent::RecentTraffic;

/// The reason why a reload was not simulated.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The recent traffic is not kept.
    #[error("recent traffic is kept only with routing.reload_gate in the configuration in force")]
    NoGate,
    /// The recent traffic shows too little.
    #[error("not simulated: {0}")]
    Simulation(#[from] ReplayError),
    /// The process is shutting down.
    #[error("this process is shutting down")]
    Stopping,
}

/// Compares the configuration in force with the next one, on a separate thread. Only the recent
/// traffic of the last `window` counts.
pub(super) async fn simulate(
    recent: &RecentTraffic,
    before: &Generation,
    next: &Config,
    groups: &Groups,
    window: Duration,
) -> Result<PredictedEffect, GateError> {
    let Some(gate) = &before.config.routing.reload_gate else {
        return Err(GateError::NoGate);
    };
    let served = recent.within(window);
    let max_regression = gate.max_regression;
    let current = simulated_config(before);
    let (current_since, earlier) = recent.changes();
    let next = with_members(next.clone(), groups, before);
    let topology = before.fleet.topology();
    let blocks = topology.backends.iter().filter_map(|backend| {
        let details = backend.state.telemetry.details()?;
        // Simulated KV caches consist of blocks of 16 tokens.
        let blocks = u32::try_from(details.capacity_tokens()? / 16).ok()?;
        Some((backend.config.name.clone(), blocks))
    });
    let blocks = blocks.collect();
    let comparing = tokio::task::spawn_blocking(move || {
        let served = &*served;
        ReplayInput {
            current,
            current_since,
            earlier,
            next,
            served,
            kv_blocks: blocks,
            max_regression,
        }
        .compare()
    });
    Ok(comparing.await.map_err(|_ended| GateError::Stopping)??)
}

/// Returns the configuration of a generation as it is simulated.
pub(super) fn simulated_config(generation: &Generation) -> Config {
    with_members(generation.config.clone(), generation.fleet.groups(), generation)
}

/// Returns the configuration with the members of its groups as backends, each with its known
/// models.
fn with_members(mut config: Config, groups: &Groups, before: &Generation) -> Config {
    let topology = before.fleet.topology();
    config.backends = groups.expand(&config);
    for backend in &mut config.backends {
        // The simulation resolves no names: a member that still counted as a group would be
        // missing.
        (backend.resolve, backend.srv) = (Resolve::Together, None);
        if backend.models.is_none() {
            let known = topology.backend(&backend.name).and_then(|known| known.models.clone());
            backend.models = known.map(|models| models.to_vec());
        }
    }
    config
}
