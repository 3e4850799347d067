//! The concurrency of a model on a backend, and its residency before any probe, from configuration
//! and engine.

use penstock_api::{Engine, ModelLoading};
use penstock_config::{BackendConfig, ModelEntry};
use penstock_scoring::Residency;

use super::backend::BackendState;

/// The limits of a model's requests on a backend; `u32::MAX` for none.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelLimits {
    /// The number that the backend runs at a time; further requests wait in the engine.
    pub(super) slots: u32,
    /// The most that it may have in flight.
    pub(super) most: u32,
}

impl ModelLimits {
    /// Returns the limits of a model; `declared` are its own settings, if any. A configured limit
    /// always applies; `limits_to_slots` turns the engine's concurrency into a limit.
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
            let usual = || state.engine(config.engine).row().unreported_slots;
            config.num_parallel.or_else(reported).or_else(usual)
        };
        let slots = configured.or_else(engines).unwrap_or(u32::MAX);
        let most = if limits_to_slots { slots } else { configured.unwrap_or(u32::MAX) };
        Self { slots, most }
    }
}

/// The residency of a listed model before a probe shows more. Most engines serve the one model they
/// were started with, and hosted services have theirs ready.
pub(super) fn initial_residency(engine: Engine) -> Residency {
    match engine.row().loading {
        ModelLoading::AtStart => Residency::Resident,
        ModelLoading::AtStartOrOnDemand | ModelLoading::OnDemand => Residency::Unknown,
    }
}
