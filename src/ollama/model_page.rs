//! Ollama's description of a model: the whole one of an Ollama backend that lists it, else one made
//! of what the other engines report.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use penstock_api::{Capabilities, Engine, hex};
use penstock_core::fleet::{Backend, Model, ModelPages, Serving, Topology};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

/// The lists of models that the backends of a topology report, in their order.
pub(crate) struct Lists(Vec<Arc<ModelPages>>);

impl Lists {
    pub(crate) fn of(topology: &Topology) -> Self {
        Self(topology.backends.iter().map(|backend| backend.state.pages.listed()).collect())
    }

    /// The item of a row's model in the list of its backend.
    fn item(&self, row: &Serving) -> Option<&Value> {
        self.0.get(usize::from(row.backend))?.get(row.adapter_name())
    }
}

/// A model under one of its names.
pub(crate) struct Described<'a> {
    pub(crate) name: &'a str,
    pub(crate) model: &'a Model,
    pub(crate) lists: &'a Lists,
    /// The start of penstock, in seconds since 1970.
    pub(crate) created: u64,
}

impl Described<'_> {
    /// An item of `/api/tags`.
    pub(crate) fn listed_item(&self) -> Value {
        let mut items = self.model.serving.iter().filter_map(|row| self.lists.item(row));
        match items.find(|item| item.get("digest").is_some_and(Value::is_string)) {
            Some(own) => named(own, self.name),
            None => Value::Object(self.made_item(None)),
        }
    }

    /// An item of `/api/ps` for a backend that reports none.
    pub(crate) fn loaded_item(&self, row: &Serving, context_length: Option<u32>) -> Value {
        let listed = self.lists.item(row).filter(|item| item.get("digest").is_some());
        let mut item = match listed.and_then(Value::as_object) {
            Some(own) => own.clone(),
            None => self.made_item(Some(row)),
        };
        item.remove("modified_at");
        // Ollama's own value for a model that it never unloads.
        item.insert("expires_at".to_owned(), "2318-01-01T00:00:00Z".into());
        // Unknown; clients show it as a model in the memory of the host.
        item.insert("size_vram".to_owned(), 0.into());
        item.insert("context_length".to_owned(), context_length.unwrap_or(0).into());
        named(&Value::Object(item), self.name)
    }

    /// The response of `/api/show`. `backend` is the one whose properties are used.
    pub(crate) fn shown(&self, row: &Serving, backend: &Backend) -> Value {
        let item = self.lists.item(row);
        let properties = backend.state.pages.properties();
        let property = |at: &str| properties.as_deref().and_then(|page| page.pointer(at)).cloned();
        let length = row.context_length.map(|length| length.0);
        let parameters = length.map_or_else(String::new, |length| format!("num_ctx {length}"));
        let thinks = property("/chat_template_caps/supports_thinking");
        let mut capabilities = self.capabilities();
        capabilities.extend((thinks == Some(Value::Bool(true))).then_some("thinking"));
        let template = property("/chat_template").filter(Value::is_string);
        json!({
            "license": "",
            "modelfile": format!("# Served by an engine that is no Ollama\nFROM {}", row.adapter_name()),
            "parameters": parameters,
            "template": template.unwrap_or_else(|| "{{ .Prompt }}".into()),
            "details": self.details(item, backend.state.engine(backend.config.engine)),
            "model_info": model_info(item, length),
            "capabilities": capabilities,
            "modified_at": self.modified_at(item),
        })
    }

    fn made_item(&self, only: Option<&Serving>) -> Map<String, Value> {
        let rows = self.model.serving.iter().filter(|row| only.is_none_or(|one| one.id == row.id));
        let item = rows.clone().find_map(|row| self.lists.item(row));
        let engine = rows.clone().map(|row| row.state.engine(Engine::Auto)).next();
        let size = item.and_then(|item| item.pointer("/meta/size")?.as_u64()).unwrap_or(0);
        let mut made = Map::new();
        made.insert("name".to_owned(), self.name.into());
        made.insert("model".to_owned(), self.name.into());
        made.insert("modified_at".to_owned(), self.modified_at(item).into());
        made.insert("size".to_owned(), size.into());
        // Clients take models with one digest for the same: each name needs another one.
        made.insert("digest".to_owned(), digest_of(&self.model.name).into());
        made.insert("details".to_owned(), self.details(item, engine.unwrap_or(Engine::Auto)));
        made.insert("capabilities".to_owned(), self.capabilities().into());
        made
    }

    fn modified_at(&self, item: Option<&Value>) -> String {
        let listed = item.and_then(|item| item.get("created")?.as_u64()).filter(|at| *at > 0);
        // The year 9999 is the last one that the format has.
        let at = listed.filter(|at| *at < 253_402_300_800).unwrap_or(self.created);
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(at)).to_string()
    }

    fn capabilities(&self) -> Vec<&'static str> {
        let rows = &self.model.serving;
        let known = rows.iter().fold(Capabilities::NONE, |all, row| all.union(row.known));
        let has = |capability, name| known.contains(capability).then_some(name);
        let more = [has(Capabilities::TOOLS, "tools"), has(Capabilities::VISION, "vision")];
        ["completion"].into_iter().chain(more.into_iter().flatten()).collect()
    }

    fn details(&self, item: Option<&Value>, engine: Engine) -> Value {
        let parameters = item.and_then(|item| item.pointer("/meta/n_params")?.as_u64());
        json!({
            "parent_model": "",
            "format": engine.row().model_format,
            "family": "",
            "families": [],
            "parameter_size": parameters.map_or_else(String::new, to_parameter_size),
            "quantization_level": "",
        })
    }
}

/// An item under the name that clients use.
pub(crate) fn named(item: &Value, name: &str) -> Value {
    let mut item = item.clone();
    if let Some(fields) = item.as_object_mut() {
        fields.insert("name".to_owned(), name.into());
        fields.insert("model".to_owned(), name.into());
    }
    item
}

/// `model_info`, which clients require; the architecture is unknown if an engine does not report
/// it.
fn model_info(item: Option<&Value>, length: Option<u32>) -> Value {
    let number = |at: &str| item.and_then(|item| item.pointer(at)?.as_u64());
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), "unknown".into());
    let length = length.map(u64::from).or(number("/meta/n_ctx_train"));
    for (name, value) in [
        ("unknown.context_length", length),
        ("general.parameter_count", number("/meta/n_params")),
        ("unknown.embedding_length", number("/meta/n_embd")),
    ] {
        info.extend(value.map(|value| (name.to_owned(), value.into())));
    }
    info.into()
}

/// A number of parameters as Ollama writes it: `8.0B`, `334.1M`.
fn to_parameter_size(count: u64) -> String {
    let (unit, name) = match count {
        1_000_000_000.. => (1_000_000_000, "B"),
        1_000_000.. => (1_000_000, "M"),
        _ => (1_000, "K"),
    };
    // In whole numbers: `8.0B`, as Ollama writes it.
    let tenths = count / (unit / 10);
    format!("{}.{}{name}", tenths / 10, tenths % 10)
}

/// The digest of a model whose engine reports none: the same in every process, because clients
/// compare it.
fn digest_of(name: &str) -> String {
    let mut digits = [0; 64];
    hex::write(digest(&SHA256, name.as_bytes()).as_ref(), &mut digits);
    digits.iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_ollama_does() {
        for (count, text) in
            [(8_030_261_312, "8.0B"), (334_090_000, "334.0M"), (660_000, "660.0K"), (0, "0.0K")]
        {
            assert_eq!(to_parameter_size(count), text);
        }
    }

    #[test]
    fn made_digests_look_like_digests() {
        let made = digest_of("m");
        assert_eq!(made.len(), 64);
        assert!(made.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(made, digest_of("m"));
        assert_ne!(made, digest_of("n"));
    }

    #[test]
    fn model_info_names_its_architecture() {
        let item = json!({"meta": {"n_params": 5, "n_ctx_train": 4096}});
        let info = model_info(Some(&item), None);
        assert_eq!(info["unknown.context_length"], 4096);
        assert_eq!(info["general.parameter_count"], 5);
        assert_eq!(model_info(None, Some(7))["unknown.context_length"], 7);
        assert_eq!(model_info(None, None), json!({"general.architecture": "unknown"}));
    }
}
