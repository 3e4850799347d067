//! The fleet, the configuration in force, and drain and resume of backends.

use penstock_clock::now;
use penstock_core::fleet::Model;
use penstock_core::routing::ChosenStrategy;
use serde_json::{Value, json};

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};

/// `/fleet`: the full state of every backend, and the strategy that `auto` has chosen for each
/// model.
pub(super) fn dump(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    let mut dump = penstock_core::fleet::dump::dump(&call.generation.fleet, now());
    let strategies = strategies(call);
    if let (Some(fields), false) = (dump.as_object_mut(), strategies.is_empty()) {
        fields.insert("strategies".to_owned(), strategies.into());
    }
    Ok(AdminResponse::json(&dump))
}

fn strategies(call: &Call<'_>) -> Vec<Value> {
    let (router, topology) = (&call.generation.router, call.generation.fleet.topology());
    let of = |model: &Model| {
        let chosen = router.chosen_strategy(model, now())?;
        let ChosenStrategy { strategy, reason } = chosen;
        Some(json!({ "model": model.name, "strategy": strategy.name(), "reason": reason }))
    };
    topology.models().iter().filter_map(of).collect()
}

/// `/config`: the configuration in force, secrets masked.
pub(super) fn config(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    Ok(AdminResponse::of(
        "application/yaml; charset=utf-8",
        call.generation.config.to_masked_yaml(),
    ))
}

/// `/backends/{name}/drain`: the backend receives no new requests; those in flight continue.
pub(super) fn drain(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    set_draining(call, true)
}

/// `/backends/{name}/resume`
pub(super) fn resume(_admin: &Admin, call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    set_draining(call, false)
}

fn set_draining(call: &Call<'_>, draining: bool) -> Result<AdminResponse, Refusal> {
    let fleet = call.generation.fleet.topology();
    let Some(backend) = fleet.backend(call.name) else {
        return Err(Refusal::UnknownBackend { name: call.name.to_owned() });
    };
    let state = &backend.state;
    let before = state.set_draining(draining);
    let in_flight = state.load.in_flight();
    if before != draining {
        tracing::info!(backend = %state.name, draining, in_flight, "drain state changed via admin API");
    }
    Ok(AdminResponse::json(&json!({
        "backend": &*state.name,
        "health": state.status().name(),
        "draining": draining,
        "in_flight": in_flight,
        "empty_in_s": penstock_core::fleet::dump::empty_in(state, now()),
    })))
}
