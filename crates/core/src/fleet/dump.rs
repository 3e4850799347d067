//! The fleet as JSON for `/fleet`, and the reverse: `explain` applies such a dump to a fleet, to
//! decide for one that runs elsewhere.

mod prediction;
mod rows;
mod telemetry;

use std::net::SocketAddr;
use std::time::Duration;

use penstock_api::units::{ByteSize, Timestamp, TokenCount};
use penstock_api::{Capabilities, Operations};
use penstock_config::{Config, ModelEntry, nearest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fleet::groups::split_member;
use crate::fleet::{
    Backend, ContextLimit, CooldownCause, CooldownScope, Fleet, GroupAddress, Groups, Health,
    LoadedModel, ModelState, Topology,
};
pub use rows::empty_in;
use rows::{BackendRow, GroupRow, HealthName, ModelRow};

/// The reason for which a dump cannot be applied to a fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("the fleet is not an object with a list 'backends', and no other key but 'groups'")]
    NotAFleet,
    #[error("backends[{index}]: {source}")]
    Backend { index: usize, source: serde_json::Error },
    #[error("backend '{backend}', models[{index}]: {source}")]
    Model { backend: String, index: usize, source: serde_json::Error },
    #[error("backend '{backend}', model '{model}': unknown {kind} '{given}'")]
    UnknownWord { backend: String, model: String, kind: &'static str, given: String },
    #[error("backend '{backend}': '{key}' must be 0 or more")]
    OutOfRange { backend: String, key: &'static str },
    #[error(
        "backend '{name}' is not in the configuration{}",
        suggestion.as_deref().map_or_else(String::new, |near| format!(": did you mean '{near}'?"))
    )]
    UnknownBackend { name: String, suggestion: Option<String> },
    #[error("backend '{name}' is listed twice")]
    BackendTwice { name: String },
}

/// Returns the content of `/fleet`: every backend with its state and models. Holds no credentials.
pub fn dump(fleet: &Fleet, now: Timestamp) -> Value {
    let topology = &*fleet.topology();
    let rows: Vec<BackendRow> =
        topology.backends.iter().map(|backend| BackendRow::of(topology, backend, now)).collect();
    if topology.groups.is_empty() {
        return json!({ "backends": rows });
    }
    let groups: Vec<GroupRow> = topology.groups.iter().map(GroupRow::of).collect();
    json!({ "backends": rows, "groups": groups })
}

/// Returns the resolved groups of `config` in the fleet that `dump` describes, by the names of its
/// backends.
pub fn groups_of(dump: &Value, config: &Config) -> Groups {
    let rows = dump.get("backends").and_then(Value::as_array).into_iter().flatten();
    let names = rows.filter_map(|row| row.get("name")?.as_str());
    let members: Vec<(&str, SocketAddr)> = names.filter_map(split_member).collect();
    Groups::of(config, &Groups::default()).with_addresses(config, |group| {
        let mine = members.iter().filter(|(name, _)| **name == *group.name);
        Some(mine.map(|(_, address)| GroupAddress::plain(*address)).collect())
    })
}

/// Marks every backend as healthy and idle. Models that are not declared stay unknown.
pub fn assume_healthy(fleet: &Fleet) {
    for backend in &fleet.topology().backends {
        backend.state.health.set(Health::Healthy);
        backend.state.load.set_in_flight(0);
    }
}

/// Applies a dump to a fleet that nothing else uses, by backend name. State that the dump omits
/// stays unchanged; models in the dump count as discovered.
///
/// # Errors
/// [`FleetError`] when the dump is malformed or names a backend that is not configured; the
/// fleet may then be half changed.
pub fn overlay(fleet: &Fleet, dump: &Value, now: Timestamp) -> Result<(), FleetError> {
    let mut names: Vec<String> = Vec::new();
    for (index, row) in rows_of(dump)?.iter().enumerate() {
        let row =
            BackendRow::deserialize(row).map_err(|source| FleetError::Backend { index, source })?;
        if names.contains(&row.name) {
            return Err(FleetError::BackendTwice { name: row.name });
        }
        overlay_row(fleet, &row, now)?;
        names.push(row.name);
    }
    fleet.topology().follow_blocks();
    Ok(())
}

fn rows_of(dump: &Value) -> Result<&[Value], FleetError> {
    let is_known = |key: &String| matches!(&**key, "backends" | "groups" | "strategies");
    let fields = dump.as_object().filter(|fields| fields.keys().all(is_known));
    let rows = fields.and_then(|fields| fields.get("backends")).and_then(Value::as_array);
    rows.map(Vec::as_slice).ok_or(FleetError::NotAFleet)
}

fn overlay_row(fleet: &Fleet, row: &BackendRow, now: Timestamp) -> Result<(), FleetError> {
    let topology = &*fleet.topology();
    let Some(backend) = topology.backend(&row.name) else {
        let known = topology.backends.iter().map(|backend| backend.config.name.as_str());
        let suggestion = nearest(&row.name, known).map(str::to_owned);
        return Err(FleetError::UnknownBackend { name: row.name.clone(), suggestion });
    };
    let state = &*backend.state;
    if let Some(health) = row.health {
        state.set_draining(matches!(health, HealthName::Draining));
        // A dump shows `draining` instead of the health verdict; such a backend was up.
        state.health.set(match health {
            HealthName::Healthy | HealthName::Draining => Health::Healthy,
            HealthName::Unhealthy => Health::Unhealthy,
            HealthName::Unknown => Health::Unknown,
        });
    }
    if let Some(count) = row.in_flight {
        state.load.set_in_flight(count);
    }
    if let Some(count) = row.others_in_flight {
        // Requests of others come from one replica at least, even if a dump by hand omits it.
        state.load.restore_peers(count, row.other_penstocks.unwrap_or(1));
    }
    if let Some(took) = duration_of(&row.name, "latency_ms", row.latency_ms.map(|ms| ms / 1e3))? {
        state.set_check_latency(took);
    }
    if let Some(models) = row.models_in_memory {
        state.memory.learn(models, ByteSize(row.vram_used_bytes.unwrap_or_default()));
    }
    if let Some(telemetry) = &row.telemetry {
        telemetry.overlay(&row.name, state, now)?;
    }
    let remaining = duration_of(&row.name, "cooldown_remaining_s", row.cooldown_remaining_s)?;
    if let Some(remaining) = remaining {
        // A dump that was written by hand may lack the status.
        let (until, status) = (now.after(remaining), row.cooldown_status.unwrap_or(503));
        state.cooldowns.start(CooldownScope::BACKEND, until, CooldownCause::of_status(status), now);
    }
    if let Some(breaker) = row.breaker {
        state.breaker.set(breaker, now);
    }
    let lacks = row.lacks.iter().flatten().filter_map(|name| Operations::from_name(name));
    for operation in lacks.flat_map(Operations::iter) {
        fleet.learn_lacking(state, operation, now);
    }
    overlay_models(fleet, backend, row, now)
}

fn overlay_models(
    fleet: &Fleet,
    backend: &Backend,
    row: &BackendRow,
    now: Timestamp,
) -> Result<(), FleetError> {
    let Some(models) = &row.models else { return Ok(()) };
    let mut entries = Vec::new();
    let mut rows = Vec::new();
    for (index, model) in models.iter().enumerate() {
        let model = to_model_row(model).map_err(|source| {
            let backend = row.name.clone();
            FleetError::Model { backend, index, source }
        })?;
        entries.push(to_entry(row, &model)?);
        rows.push(model);
    }
    if backend.config.models.is_some() {
        // Facts about declared models are looked up by the backend's own names.
        let renamed: Vec<ModelEntry> = entries
            .iter()
            .filter_map(|entry| {
                let id = entry.upstream_id.clone()?;
                Some(ModelEntry { id, upstream_id: None, ..entry.clone() })
            })
            .collect();
        entries.extend(renamed);
    }
    fleet.learn_models(backend.state.id, &entries);
    let topology = &*fleet.topology();
    rows.iter().try_for_each(|model| overlay_model(fleet, topology, row, model, now))
}

fn overlay_model(
    fleet: &Fleet,
    topology: &Topology,
    row: &BackendRow,
    model: &ModelRow,
    now: Timestamp,
) -> Result<(), FleetError> {
    let millis = |key, ms: Option<f64>| duration_of(&row.name, key, ms.map(|ms| ms / 1e3));
    let first_token = millis("first_token_ms", model.first_token_ms)?;
    let response = millis("response_ms", model.response_ms)?;
    let served = topology.model_named(&model.id);
    let here = |one: &&crate::fleet::Serving| *one.state.name == *row.name;
    let Some(serving) = served.and_then(|served| served.serving.iter().find(here)) else {
        return Ok(());
    };
    let seconds = model.cooldown_remaining_s;
    if let Some(remaining) = duration_of(&row.name, "cooldown_remaining_s", seconds)? {
        let (until, status) = (now.after(remaining), model.cooldown_status.unwrap_or(503));
        serving.state.cooldowns.start(
            serving.model_scope(),
            until,
            CooldownCause::of_status(status),
            now,
        );
    }
    if let Some(took) = first_token {
        serving.latency.learn_first_token(took, now);
    }
    if let Some(took) = response {
        serving.latency.learn_response(took, now);
    }
    let missing = model.lacks.iter().flatten().filter_map(|name| Capabilities::from_name(name));
    fleet.learn_missing(serving, missing.fold(Capabilities::NONE, Capabilities::union), now);
    if let Some(tokens) = model.learned_context_length {
        serving.latency.context.learn(ContextLimit { tokens, scale: ContextLimit::UNIT });
    }
    overlay_residency(&serving.model_state, row, model, now)
}

fn overlay_residency(
    state: &ModelState,
    row: &BackendRow,
    model: &ModelRow,
    now: Timestamp,
) -> Result<(), FleetError> {
    if let Some(in_flight) = model.in_flight {
        state.load.set_in_flight(in_flight);
    }
    if let Some(penstocks) = row.other_penstocks {
        state.load.set_peers(model.others_in_flight.unwrap_or(0), penstocks);
    }
    if let Some(size) = model.size_bytes {
        state.set_size(ByteSize(size));
    }
    if let Some(residency) = model.residency {
        let expires_in = duration_of(&row.name, "expires_in_s", model.expires_in_s)?;
        let loaded = LoadedModel {
            name: model.id.clone(),
            residency: residency.into(),
            vram: model.vram_bytes.map(ByteSize),
            expires_at: expires_in.map(|left| now.after(left)),
            context_length: model.loaded_context_length.map(TokenCount),
        };
        state.learn_probe(Some(&loaded), now);
        if loaded.residency == penstock_scoring::Residency::Loadable && state.load.in_flight() > 0 {
            state.set_evicted();
        }
    }
    Ok(())
}

/// A model is its id, or an object as in the configuration.
fn to_model_row(model: &Value) -> Result<ModelRow, serde_json::Error> {
    match model {
        Value::String(id) => Ok(ModelRow { id: id.clone(), ..ModelRow::default() }),
        _ => ModelRow::deserialize(model),
    }
}

fn to_entry(row: &BackendRow, model: &ModelRow) -> Result<ModelEntry, FleetError> {
    let unknown = |kind, given: &str| FleetError::UnknownWord {
        backend: row.name.clone(),
        model: model.id.clone(),
        kind,
        given: given.to_owned(),
    };
    let mut capabilities = model.capabilities.as_ref().map(|_| Capabilities::NONE);
    for name in model.capabilities.iter().flatten() {
        let one = Capabilities::from_name(name).ok_or_else(|| unknown("capability", name))?;
        capabilities = capabilities.map(|all| all.union(one));
    }
    let mut operations = model.operations.as_ref().map(|_| Operations::default());
    for name in model.operations.iter().flatten() {
        let some = Operations::from_name(name).ok_or_else(|| unknown("operation", name))?;
        operations = operations.map(|all| all.union(some));
    }
    Ok(ModelEntry {
        tier: None,
        price: None,
        id: model.id.clone(),
        upstream_id: model.upstream_id.clone(),
        context_length: model.context_length,
        capabilities,
        operations,
        max_in_flight: None,
    })
}

fn duration_of(
    backend: &str,
    key: &'static str,
    seconds: Option<f64>,
) -> Result<Option<Duration>, FleetError> {
    let out_of_range = |_: std::time::TryFromFloatSecsError| FleetError::OutOfRange {
        backend: backend.to_owned(),
        key,
    };
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(out_of_range)
}

#[cfg(test)]
mod tests;
