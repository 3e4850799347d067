//! Ollama's lists: the models of the fleet, and those in memory. Made from what discovery knows, so
//! that no backend is queried for a client and a dead one fails nothing.

use std::collections::BTreeMap;

use penstock_clock::now;
use penstock_config::Compat;
use penstock_core::fleet::{Backend, Health, Model, Serving, Topology};
use penstock_scoring::Residency;
use serde_json::{Value, json};

use crate::ollama::model_page::{Described, Lists, named};
use crate::proxy::allowed_models::{self, visible_models};
use crate::proxy::flow::RequestContext;

/// `/api/tags`: the models and aliases that the client may use.
pub(crate) fn list_tags(ctx: &RequestContext, created: u64) -> Value {
    let topology = ctx.generation.fleet.topology();
    let lists = Lists::of(&topology);
    let visible = visible_models(ctx, &topology);
    let items = visible
        .into_iter()
        .map(|(name, model)| Described { name, model, lists: &lists, created }.listed_item());
    json!({"models": items.collect::<Vec<_>>()})
}

/// `/api/ps`: one item per model, whatever number of backends has it in memory.
pub(crate) fn list_loaded(ctx: &RequestContext, created: u64) -> Value {
    let topology = ctx.generation.fleet.topology();
    let mut merged: BTreeMap<String, Value> = BTreeMap::new();
    for loaded in loaded_models(ctx, &topology, created) {
        match merged.get_mut(&loaded.name) {
            Some(item) => merge(item, &loaded.item),
            None => _ = merged.insert(loaded.name, loaded.item),
        }
    }
    json!({"models": merged.into_values().collect::<Vec<_>>()})
}

/// `/api/ps_details`: one item per model and backend.
pub(crate) fn list_loaded_details(ctx: &RequestContext, created: u64) -> Value {
    let topology = ctx.generation.fleet.topology();
    let shows_urls = ctx.generation.config.server.compat == Compat::Nomyo;
    let items = loaded_models(ctx, &topology, created).into_iter().map(|loaded| {
        let mut item = loaded.item;
        let name = &*loaded.backend.config.name;
        // Addresses of backends are not for clients, unless they expect them.
        let endpoint =
            if shows_urls { loaded.backend.config.url.to_string() } else { name.to_owned() };
        if let Some(fields) = item.as_object_mut() {
            fields.insert("backend".to_owned(), name.into());
            fields.insert("endpoint".to_owned(), endpoint.into());
            fields.insert("original_name".to_owned(), loaded.original_name.into());
        }
        item
    });
    json!({"models": items.collect::<Vec<_>>()})
}

/// A model in a backend's memory.
struct LoadedItem<'a> {
    name: String,
    backend: &'a Backend,
    original_name: &'a str,
    item: Value,
}

/// The models in memory that the client may use, in the order of the backends.
fn loaded_models<'a>(
    ctx: &RequestContext,
    topology: &'a Topology,
    created: u64,
) -> Vec<LoadedItem<'a>> {
    let lists = Lists::of(topology);
    let models = topology.models().iter();
    let visible: Vec<&Model> =
        models.filter(|model| allowed_models::may_request(ctx, topology, &model.name)).collect();
    let mut all = Vec::new();
    for backend in &topology.backends {
        // What a dead backend last reported says nothing about its memory now.
        if backend.state.status() == Health::Unhealthy {
            continue;
        }
        let pages = backend.state.pages.loaded();
        for model in &visible {
            let row = model.serving.iter().find(|row| row.id == backend.state.id);
            let Some(row) = row.filter(|row| is_in_memory(row)) else { continue };
            let item = match pages.get(row.adapter_name()) {
                Some(own) => named(own, &model.name),
                None => {
                    let length = row.context_length.map(|length| length.0);
                    Described { name: &model.name, model, lists: &lists, created }
                        .loaded_item(row, length)
                }
            };
            let name = model.name.to_string();
            all.push(LoadedItem { name, backend, original_name: row.adapter_name(), item });
        }
    }
    all
}

fn is_in_memory(row: &Serving) -> bool {
    row.model_state.residency(now()) == Residency::Resident
}

/// Merges the item of another backend with the same model.
fn merge(item: &mut Value, other: &Value) {
    let Some(fields) = item.as_object_mut() else { return };
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
    for name in ["size", "size_vram"] {
        let sum = number(fields.get(name)).saturating_add(number(other.get(name)));
        fields.insert(name.to_owned(), sum.into());
    }
    let longest = number(fields.get("context_length")).max(number(other.get("context_length")));
    fields.insert("context_length".to_owned(), longest.into());
    // Times of one zone are ordered as text; across zones the first one stays within a day of the
    // truth.
    let later = other.get("expires_at").and_then(Value::as_str);
    let is_later = |known: &Value| known.as_str() < later;
    if later.is_some() && fields.get("expires_at").is_none_or(is_later) {
        fields.insert("expires_at".to_owned(), later.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_several_backends_adds_up() {
        let mut item = json!({
            "name": "m", "size": 5, "size_vram": 5, "context_length": 4096, "digest": "d",
            "expires_at": "2026-01-01T00:05:00Z",
        });
        let other = json!({
            "name": "m", "size": 7, "size_vram": 3, "context_length": 2048,
            "expires_at": "2026-01-01T00:07:00Z",
        });
        merge(&mut item, &other);
        let expected = json!({
            "name": "m", "size": 12, "size_vram": 8, "context_length": 4096, "digest": "d",
            "expires_at": "2026-01-01T00:07:00Z",
        });
        assert_eq!(item, expected);
        merge(&mut item, &json!({"name": "m"}));
        assert_eq!(item, expected, "what is not known adds nothing");
    }
}
