//! A model on a backend, from its configuration, its discovery and what was learned before.

use std::sync::Arc;

use penstock_api::units::TokenCount;
use penstock_api::{Capabilities, Offer, ZoneId};
use penstock_config::{AuthorizationPolicy, ModelEntry, UnknownCapability};
use penstock_scoring::Candidate;

use super::rules::with_own_api;
use super::{Backend, Carried, StateKey, TopologyRules};
use crate::fleet::cooldown::CooldownScope;
use crate::fleet::model_state::ModelState;
use crate::fleet::serving::Serving;
use crate::fleet::slots::{ModelLimits, initial_residency};
use crate::prefix::Slot;

/// The backend's own name for a model, if different.
fn other_name(entry: &ModelEntry) -> Option<&str> {
    entry.upstream_id.as_deref().filter(|upstream| *upstream != entry.id)
}

pub(super) fn serve(
    index: usize,
    backend: &Backend,
    entry: &ModelEntry,
    rules: &TopologyRules,
    carried: &mut Carried,
) -> Serving {
    let declared = backend.config.models.iter().flatten().find(|model| model.id == entry.id);
    // An operation is no property of the prompt: without a list every operation that the engine may
    // have is tried.
    let engine = backend.state.engine(backend.config.engine);
    let num_ctx = rules.num_ctx(engine, &entry.id);
    let declared_operations =
        declared.and_then(|model| model.operations).or(backend.config.operations);
    let native = declared_operations.or(entry.operations).unwrap_or(engine.operations());
    let native = if num_ctx.is_some() { with_own_api(native) } else { native };
    let native_operations = native.without(backend.state.lessons.lacking());
    // An engine loads the model with `num_ctx`, even if the model has a longer context.
    let window = entry.context_length.into_iter().chain(num_ctx).min();
    let usable_operations = native_operations.with_convertible();
    let key = StateKey { backend: backend.state.id, model: entry.id.as_str().into() };
    let limits = ModelLimits::of(&backend.config, &backend.state, declared, rules.limits_to_slots);
    let model_state = carried.state(backend.state.id, entry);
    start(&model_state, backend, &limits);
    let known = entry.capabilities.unwrap_or(Capabilities::NONE);
    let usable = usable(entry, rules);
    let max_in_flight = backend.config.max_in_flight.unwrap_or(u32::MAX);
    let zone = backend.config.zone_name().map_or(ZoneId::UNKNOWN, |name| rules.zones.id(name));
    let tier = declared.and_then(|model| model.tier).unwrap_or(backend.config.tier);
    let offer = |capabilities| Offer::new(usable_operations, capabilities).placed(zone, tier);
    Serving {
        // The configuration allows far fewer backends.
        backend: u16::try_from(index).unwrap_or(u16::MAX),
        id: backend.state.id,
        priority: backend.config.priority,
        configured_engine: backend.config.engine,
        weight: backend.config.weight.max(1),
        most_weight: 0,
        restricted_from: rules.restricted_from(max_in_flight.min(limits.most)),
        max_backlog: rules.max_backlog,
        reserve: rules.reserve,
        owners: None,
        max_in_flight,
        max_in_flight_of_model: limits.most,
        model_state,
        known,
        usable,
        known_operations: declared_operations.unwrap_or_default(),
        native_operations,
        usable_operations,
        usable_offer: offer(usable),
        known_offer: offer(known),
        zone,
        tier,
        price: rules.price(&entry.id, declared),
        quality: carried.quality(&key, &rules.quality),
        window: TokenCount(window.unwrap_or(u32::MAX)),
        context_length: window.map(TokenCount),
        num_ctx: num_ctx.map(TokenCount),
        loadable_context: entry.context_length.map(TokenCount),
        upstream_id: other_name(entry).map(Box::from),
        model: entry.id.as_str().into(),
        state: Arc::clone(&backend.state),
        latency: carried.latencies.get(&key).cloned().unwrap_or_default(),
        evidence: Arc::default(),
        key: Candidate::key_of(&backend.config.name),
        slot: Slot::UNASSIGNED,
        cooldown: CooldownScope::of_model(entry.upstream_id.as_deref().unwrap_or(&entry.id)),
        passes_credentials: backend.config.authorization == AuthorizationPolicy::Pass,
        timeouts: Box::new(rules.timeouts(&backend.config, &entry.id)),
    }
}

/// Returns the capabilities that a model is known or assumed to have.
fn usable(entry: &ModelEntry, rules: &TopologyRules) -> Capabilities {
    let assumes = rules.unknown_capability == UnknownCapability::Assume;
    let unknown = if assumes { Capabilities::ALL } else { Capabilities::NONE };
    entry.capabilities.unwrap_or(unknown)
}

/// Gives the state of a model what is known of it before it serves.
fn start(model_state: &ModelState, backend: &Backend, limits: &ModelLimits) {
    let engine = backend.state.engine(backend.config.engine);
    model_state.settle_residency(initial_residency(engine));
    model_state.set_slots(limits.slots);
    if let Some(row) = &backend.config.step_times {
        model_state.start_with(&row.coefficients());
    }
}
