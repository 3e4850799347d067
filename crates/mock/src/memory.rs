//! The models that an engine has in memory: a request for another model loads it and evicts the
//! least recently used one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use penstock_api::is_same_model;
use serde_json::{Value, json};

/// The size of a loaded model, in bytes.
const VRAM: u64 = 5_000_000_000;

/// The memory of one engine, with room for a fixed number of models.
#[derive(Debug)]
pub(super) struct Memory {
    room: usize,
    /// The models in memory, least recently used first.
    models: Mutex<VecDeque<String>>,
}

impl Memory {
    pub(super) fn new(room: usize) -> Self {
        Self { room, models: Mutex::default() }
    }

    /// Uses the model that `body` names, in any spelling; returns whether it had to be loaded.
    pub(super) fn use_model_of(&self, body: &[u8]) -> bool {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let Some(id) = request.get("model").and_then(Value::as_str) else { return false };
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let before = models.len();
        models.retain(|model| !is_same_model(model, id));
        let is_loaded = models.len() < before;
        let has_input = ["prompt", "messages"].iter().any(|field| request.get(*field).is_some());
        // Ollama's way to unload: it was removed above, and is not loaded again.
        if !has_input && request.get("keep_alive").and_then(Value::as_i64) == Some(0) {
            return false;
        }
        models.push_back(id.to_owned());
        // The model in use always has room, whatever the configuration says.
        while models.len() > self.room.max(1) {
            models.pop_front();
        }
        !is_loaded
    }

    /// Returns Ollama's `/api/ps`.
    pub(super) fn page(&self) -> Value {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |id: &String| {
            json!({
                "name": id, "model": id, "size": VRAM, "size_vram": VRAM,
                "expires_at": "2318-01-01T00:00:00Z", "context_length": 4096,
            })
        };
        json!({"models": models.iter().map(entry).collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_model_makes_room() {
        let memory = Memory::new(2);
        let uses = |id: &str| memory.use_model_of(json!({"model": id}).to_string().as_bytes());
        assert!(uses("a") && uses("b") && !uses("a"));
        assert!(uses("c"), "b is evicted");
        assert!(!uses("a") && uses("b"));
        assert!(!memory.use_model_of(b"no model"));
        assert!(!memory.use_model_of(br#"{"model": "A", "keep_alive": 0}"#), "unloads it");
        assert_eq!(memory.page()["models"].as_array().unwrap().len(), 1);
        assert!(uses("a") && !uses("b"));
        assert_eq!(memory.page()["models"][1]["name"], "b");
    }
}
