//! The rows of a dump: the same types for writing and reading, so that both have the same keys.

use std::sync::Arc;
use std::time::Duration;

use penstock_api::Operation;
use penstock_api::units::{Timestamp, to_millis};
use penstock_config::ModelEntry;
use penstock_scoring::Residency;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::prediction::prediction_row;
use super::telemetry::TelemetryRow;
use crate::fleet::groups::member_name;
use crate::fleet::{
    Backend, BackendState, BreakerState, Cooldown, CooldownScope, Group, Health, Serving, Topology,
};

/// A backend in a dump. A dump written by hand may omit everything but the name. Descriptive fields
/// (`url`, `priority`, …) are not read back.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the name of a backend")]
pub(super) struct BackendRow {
    pub(super) name: String,
    pub(super) url: Option<String>,
    pub(super) engine: Option<String>,
    pub(super) priority: Option<u32>,
    pub(super) health: Option<HealthName>,
    pub(super) in_flight: Option<u32>,
    /// The requests in flight of other replicas; absent without other replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) others_in_flight: Option<u32>,
    /// The number of other replicas; absent without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) other_penstocks: Option<u8>,
    pub(super) max_in_flight: Option<u32>,
    pub(super) latency_ms: Option<f64>,
    pub(super) breaker: Option<BreakerState>,
    pub(super) cooldown_remaining_s: Option<f64>,
    pub(super) cooldown_status: Option<u16>,
    /// The number of cooldowns that cover the credential of a single client; absent if there are
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credentials_in_cooldown: Option<usize>,
    /// Present while other backends are preferred because two of its models fail more than
    /// elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) is_suspect: Option<bool>,
    /// The number of clients that avoid it by their own faults; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clients_avoiding: Option<usize>,
    /// The operations that it lacks; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lacks: Option<Vec<String>>,
    pub(super) models: Option<Vec<Value>>,
    /// Its memory at the last probe; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) models_in_memory: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vram_used_bytes: Option<u64>,
    /// The configured VRAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vram_bytes: Option<u64>,
    pub(super) checked_s_ago: Option<f64>,
    /// The status of its last check if that was no success; its meaning is in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) check_status: Option<u16>,
    /// The time without progress of its requests, while that makes others preferred; not read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) frozen_s: Option<f64>,
    pub(super) requests_total: Option<u64>,
    /// Absent before the first scrape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) telemetry: Option<TelemetryRow>,
    /// The estimated time until its last request ends, while it drains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) empty_in_s: Option<f64>,
}

/// A model in a dump: its configuration, and its measurements on this backend. What is unknown is
/// absent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the id of a model, or an object with it")]
pub(super) struct ModelRow {
    pub(super) id: String,
    pub(super) upstream_id: Option<String>,
    pub(super) context_length: Option<u32>,
    pub(super) capabilities: Option<Vec<String>>,
    pub(super) operations: Option<Vec<String>>,
    /// The capabilities that it lacks, by the words of its engine; absent if there are none.
    pub(super) lacks: Option<Vec<String>>,
    /// Its residency; absent if unknown.
    pub(super) residency: Option<ResidencyName>,
    /// The number of requests for it in flight; absent if there are none.
    pub(super) in_flight: Option<u32>,
    /// The number of requests in flight of other replicas; absent if there are none.
    pub(super) others_in_flight: Option<u32>,
    /// The number of its requests that the backend runs at a time.
    pub(super) slots: Option<u32>,
    pub(super) max_in_flight: Option<u32>,
    pub(super) size_bytes: Option<u64>,
    pub(super) vram_bytes: Option<u64>,
    pub(super) expires_in_s: Option<f64>,
    pub(super) loaded_context_length: Option<u32>,
    /// The context length that refusals or responses showed.
    pub(super) learned_context_length: Option<u32>,
    pub(super) used_s_ago: Option<f64>,
    pub(super) first_token_ms: Option<f64>,
    pub(super) response_ms: Option<f64>,
    pub(super) cooldown_remaining_s: Option<f64>,
    pub(super) cooldown_status: Option<u16>,
    /// The breaker state of a model that fails there more than elsewhere; absent otherwise; not
    /// read back.
    pub(super) breaker: Option<BreakerState>,
    /// The state of the latency predictor; not read back.
    pub(super) prediction: Option<Value>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HealthName {
    Healthy,
    Unhealthy,
    Unknown,
    Draining,
}

/// A group in a dump: a backend of the configuration that stands for every address of a name.
#[derive(Debug, Serialize)]
pub(super) struct GroupRow {
    name: String,
    target: String,
    backends: Vec<String>,
    /// Absent when all addresses are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    unused_addresses: Option<usize>,
    lookups_found: u64,
    lookups_failed: u64,
    is_failing: bool,
}

impl GroupRow {
    /// Returns the row of a group as it is now.
    pub(super) fn of(group: &Group) -> Self {
        let (lookups_found, lookups_failed) = group.lookups.counts();
        let members = group.addresses.iter();
        Self {
            name: group.name.to_string(),
            target: group.target.to_string(),
            backends: members.map(|member| member_name(&group.name, member.address)).collect(),
            unused_addresses: some_if_any(group.unused),
            lookups_found,
            lookups_failed,
            is_failing: group.lookups.is_failing(),
        }
    }
}

/// Returns whether `limit` limits anything.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "Option::filter asks so")]
fn is_limit(limit: &u32) -> bool {
    *limit != u32::MAX
}

/// A known [`Residency`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResidencyName {
    Loadable,
    Sleeping,
    Resident,
}

impl ResidencyName {
    fn of(residency: Residency) -> Option<Self> {
        match residency {
            Residency::Unknown => None,
            Residency::Loadable => Some(Self::Loadable),
            Residency::Sleeping => Some(Self::Sleeping),
            Residency::Resident => Some(Self::Resident),
        }
    }
}

impl From<ResidencyName> for Residency {
    fn from(name: ResidencyName) -> Self {
        match name {
            ResidencyName::Loadable => Self::Loadable,
            ResidencyName::Sleeping => Self::Sleeping,
            ResidencyName::Resident => Self::Resident,
        }
    }
}

impl BackendRow {
    /// Returns the row of a backend as it is now.
    pub(super) fn of(topology: &Topology, backend: &Backend, now: Timestamp) -> Self {
        let (config, state) = (&*backend.config, &*backend.state);
        let cooldown = backend_cooldown(topology, backend, now);
        let models = backend.models.as_ref();
        let other_penstocks = Some(state.load.peer_count()).filter(|count| *count > 0);
        Self {
            name: config.name.clone(),
            url: Some(config.url.to_string()),
            engine: Some(state.engine(config.engine).name().to_owned()),
            priority: Some(config.priority),
            health: Some(match state.status() {
                Health::Healthy => HealthName::Healthy,
                Health::Unhealthy => HealthName::Unhealthy,
                Health::Unknown => HealthName::Unknown,
                Health::Draining => HealthName::Draining,
            }),
            in_flight: Some(state.load.in_flight()),
            others_in_flight: other_penstocks.map(|_| state.load.peers_in_flight()),
            other_penstocks,
            max_in_flight: config.max_in_flight,
            latency_ms: Some(state.check_latency()).filter(|took| !took.is_zero()).map(to_millis),
            breaker: Some(topology.breaker_state(state, now)),
            cooldown_remaining_s: cooldown.as_ref().map(|one| remaining(one, now)),
            cooldown_status: cooldown.as_ref().map(|one| one.status()),
            credentials_in_cooldown: some_if_any(state.cooldowns.count_of_credentials(now)),
            is_suspect: state.faulty_models.are_several(now).then_some(true),
            clients_avoiding: some_if_any(topology.clients_avoiding(state, now)),
            lacks: Some(state.lessons.lacking())
                .filter(|lacking| !lacking.is_empty())
                .map(|lacking| lacking.iter().map(|one| one.name().to_owned()).collect()),
            models: models.map(|models| {
                let row = |entry| ModelRow::of(topology, backend, entry, now).to_json();
                models.iter().map(row).collect()
            }),
            models_in_memory: state.memory.models(),
            vram_used_bytes: state.memory.used().map(|used| used.0),
            vram_bytes: config.vram.map(|vram| vram.0),
            checked_s_ago: state.checked_at().map(|at| now.since(at).as_secs_f64()),
            check_status: state.check_status(),
            frozen_s: state.frozen_since().map(|since| now.since(since).as_secs_f64()),
            requests_total: Some(state.dispatched()),
            telemetry: TelemetryRow::of(state, now),
            empty_in_s: empty_in(state, now),
        }
    }
}

/// The cooldown of all its models: their common one, or the first to end if each has a separate
/// one.
fn backend_cooldown(
    topology: &Topology,
    backend: &Backend,
    now: Timestamp,
) -> Option<Arc<Cooldown>> {
    let state = &backend.state;
    let of_models = || {
        let here = |one: &&Serving| one.id == state.id;
        let rows = topology.models().iter().flat_map(|model| model.serving.iter().filter(here));
        let cooldowns = rows.map(|one| state.cooldowns.shown(one.model_scope(), now));
        // A single model without a cooldown is enough for the backend to be in use.
        let all: Option<Vec<Arc<Cooldown>>> = cooldowns.collect();
        all?.into_iter().min_by_key(|one| one.ends_at())
    };
    if !state.cooldowns.is_active(now) {
        return None;
    }
    state.cooldowns.shown(CooldownScope::BACKEND, now).or_else(of_models)
}

fn remaining(cooldown: &Cooldown, now: Timestamp) -> f64 {
    cooldown.ends_at().since(now).as_secs_f64()
}

fn some_if_any(count: usize) -> Option<usize> {
    (count > 0).then_some(count)
}

/// The estimated time until a draining backend is empty, in seconds, rounded; `None` if unknown.
pub fn empty_in(state: &BackendState, now: Timestamp) -> Option<f64> {
    let is_draining = state.status() == Health::Draining;
    let left = || match state.load.in_flight() {
        0 => Some(Duration::ZERO),
        _ => state.drain_estimate.time_left(now),
    };
    let left = is_draining.then(left).flatten()?;
    Some((left.as_secs_f64() * 10.0).round() / 10.0)
}

impl ModelRow {
    /// Returns the row of a model on a backend.
    fn of(topology: &Topology, backend: &Backend, entry: &ModelEntry, now: Timestamp) -> Self {
        let served = topology.model_named(&entry.id);
        let here = |one: &&Serving| one.id == backend.state.id;
        let serving = served.and_then(|served| served.serving.iter().find(here));
        let latency = serving.map(|one| &one.latency);
        let model = serving.map(|one| &one.model_state);
        let cooldown = serving.and_then(|one| one.state.cooldowns.shown(one.model_scope(), now));
        let words =
            |names: &mut dyn Iterator<Item = &'static str>| names.map(str::to_owned).collect();
        Self {
            id: entry.id.clone(),
            upstream_id: entry.upstream_id.clone(),
            context_length: entry.context_length,
            capabilities: entry.capabilities.map(|some| words(&mut some.names())),
            operations: entry.operations.map(|some| words(&mut some.iter().map(Operation::name))),
            lacks: model
                .map(|model| model.lessons.missing())
                .filter(|missing| !missing.is_empty())
                .map(|missing| words(&mut missing.names())),
            residency: serving.and_then(|one| ResidencyName::of(one.residency(now))),
            in_flight: model.map(|model| model.load.in_flight()).filter(|count| *count > 0),
            others_in_flight: model
                .map(|model| model.load.peers_in_flight())
                .filter(|count| *count > 0),
            slots: model.map(|model| model.slots()).filter(is_limit),
            max_in_flight: serving.map(|one| one.max_in_flight_of_model).filter(is_limit),
            size_bytes: model.and_then(|model| model.size()).map(|size| size.0),
            vram_bytes: model.and_then(|model| model.vram()).map(|size| size.0),
            expires_in_s: model
                .and_then(|model| model.expires_at())
                .map(|at| at.since(now).as_secs_f64()),
            loaded_context_length: model
                .and_then(|model| model.context_length())
                .map(|length| length.0),
            learned_context_length: latency
                .and_then(|latency| latency.context.limit())
                .map(|limit| limit.tokens),
            used_s_ago: model
                .and_then(|model| model.last_used())
                .map(|at| now.since(at).as_secs_f64()),
            first_token_ms: latency.and_then(|latency| latency.first_token()).map(to_millis),
            response_ms: latency.and_then(|latency| latency.response()).map(to_millis),
            cooldown_remaining_s: cooldown.as_ref().map(|one| remaining(one, now)),
            cooldown_status: cooldown.as_ref().map(|one| one.status()),
            breaker: serving
                .map(|one| one.evidence.state_for_all(one.state.serial, now))
                .filter(|state| *state != BreakerState::Closed),
            prediction: model
                .and_then(|model| model.used_predictor())
                .map(|predictor| prediction_row(&predictor.report(now.0 as f64))),
        }
    }

    fn to_json(&self) -> Value {
        let mut row = json!(self);
        if let Some(fields) = row.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        row
    }
}
