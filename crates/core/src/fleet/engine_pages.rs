//! The contents of a backend's information pages beyond the data of decisions, for clients that
//! list and show models: Ollama's own items whole, llama.cpp's properties. Kept as last read; a
//! page is at most 8 MiB, the limit of discovery.

use std::sync::Arc;

use ahash::HashMap;
use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::Value;

/// The items of a list, by the backend's name for the model.
pub type ModelPages = HashMap<Box<str>, Value>;

/// The pages of one backend.
#[derive(Debug, Default)]
pub struct EnginePages {
    version: ArcSwapOption<String>,
    listed: ArcSwap<ModelPages>,
    loaded: ArcSwap<ModelPages>,
    properties: ArcSwapOption<Value>,
}

impl EnginePages {
    /// Records the version that the engine reports. Returns whether another version was known.
    pub fn learn_version(&self, version: &str) -> bool {
        let before = self.version.swap(Some(Arc::new(version.to_owned())));
        before.is_some_and(|before| *before != version)
    }

    /// Records the items of a list of models: of `/api/tags` or `/v1/models`.
    pub fn learn_listed(&self, items: &[Value]) {
        self.listed.store(Arc::new(by_name(items)));
    }

    /// Records the items of Ollama's `/api/ps`.
    pub fn learn_loaded(&self, items: &[Value]) {
        self.loaded.store(Arc::new(by_name(items)));
    }

    /// Records llama.cpp's `/props`.
    pub fn learn_properties(&self, properties: &Value) {
        self.properties.store(Some(Arc::new(properties.clone())));
    }

    /// The version that it reported.
    pub fn version(&self) -> Option<Arc<String>> {
        self.version.load_full()
    }

    /// The items of its list of models.
    pub fn listed(&self) -> Arc<ModelPages> {
        self.listed.load_full()
    }

    /// The items of its list of loaded models.
    pub fn loaded(&self) -> Arc<ModelPages> {
        self.loaded.load_full()
    }

    pub fn properties(&self) -> Option<Arc<Value>> {
        self.properties.load_full()
    }
}

fn by_name(items: &[Value]) -> ModelPages {
    let name = |item: &Value| {
        let name = ["model", "id", "name"].iter().find_map(|key| item.get(key)?.as_str());
        name.map(|name| (Box::from(name), item.clone()))
    };
    items.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_are_found_by_the_name_of_any_engine() {
        let pages = EnginePages::default();
        pages.learn_listed(&[json!({"name": "a", "model": "b"}), json!({"id": "c"}), json!({})]);
        let listed = pages.listed();
        assert_eq!(
            (listed.len(), &listed["b"]["name"], &listed["c"]["id"]),
            (2, &"a".into(), &"c".into())
        );
        pages.learn_listed(&[]);
        assert!(pages.listed().is_empty(), "the list that was read last");
    }
}
