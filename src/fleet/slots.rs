//! How many requests of a model a backend takes at a time, and where a model stands before any probe: what
//! configuration and engine say.

use super::backend::BackendState;
use crate::config::{BackendConfig, Engine, ModelEntry};
use crate::scoring::Residency;

/// How many requests Ollama runs of a model at a time, unless `num_parallel` says otherwise.
const OLLAMA_PARALLEL: u32 = 1;

/// What bounds the requests of a model on a backend; `u32::MAX` where nothing does.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelLimits {
    /// How many it runs at a time; what comes beyond waits in the engine.
    pub(super) slots: u32,
    /// How many it may have in flight.
    pub(super) most: u32,
}

impl ModelLimits {
    /// Those of a model that is or is not `declared` with its own settings. A configured limit always
    /// applies; `limits_to_slots` makes one of what the engine runs at a time.
    pub(super) fn of(
        config: &BackendConfig,
        state: &BackendState,
        declared: Option<&ModelEntry>,
        limits_to_slots: bool,
    ) -> Self {
        let own = declared.and_then(|model| model.max_in_flight);
        let configured = own.or(config.max_in_flight_per_model);
        let engines = || {
            let reported = || state.slots();
            let is_ollama = state.engine(config.engine) == Engine::Ollama;
            let usual = || is_ollama.then_some(OLLAMA_PARALLEL);
            config.num_parallel.or_else(reported).or_else(usual)
        };
        let slots = configured.or_else(engines).unwrap_or(u32::MAX);
        let most = if limits_to_slots { slots } else { configured.unwrap_or(u32::MAX) };
        Self { slots, most }
    }
}

/// Where a model that an engine lists stands before a probe shows more. Most engines serve the one model they
/// were started with, and hosted services have theirs ready.
pub(super) fn initial_residency(engine: Engine) -> Residency {
    let loads_on_demand = matches!(engine, Engine::Ollama | Engine::LlamaCpp | Engine::LmStudio);
    if loads_on_demand { Residency::Unknown } else { Residency::Resident }
}
