//! Model discovery: the models that a backend serves, their context length and capabilities.

use std::time::Duration;

use ahash::{HashMap, HashSet};
use penstock_api::Engine;
use penstock_api::units::ByteSize;
use penstock_api::{Capabilities, escape};
use penstock_config::ModelEntry;
use penstock_core::fleet::Backend;
use serde_json::Value;

use super::client::{DiscoveryClient, DiscoveryError, SmallRequest};
use super::engines::{ModelList, detect, facts, own_pages, with_list};
use super::json::{text, to_tokens};
use super::listed_models::ListedModels;

/// The longest version that is kept, in bytes.
const MAX_VERSION: usize = 40;

/// Queries the models that a backend serves, with all that it reports about them.
pub(super) async fn discover(
    client: &DiscoveryClient,
    backend: &Backend,
    timeout: Duration,
    shown: &mut ShownModels,
) -> Result<ListedModels, DiscoveryError> {
    let queries = Queries { client, backend, timeout };
    let configured = backend.config.engine;
    if facts(configured).model_list == ModelList::Ollama {
        return Ok(queries.completed(queries.ollama(shown).await?, configured).await);
    }
    let listed = queries.get("/v1/models").await;
    let list = match listed {
        Ok(list) => list,
        // An unknown engine without OpenAI's list may still be an Ollama.
        Err(error) if configured == Engine::Auto => {
            let models = queries.ollama(shown).await.map_err(|_not_ollama| error)?;
            let engine = with_list(ModelList::Ollama).engine;
            backend.state.detect_engine(engine);
            return Ok(queries.completed(models, engine).await);
        }
        Err(error) => return Err(error),
    };
    let data = list.get("data").or_else(|| list.get("models")).and_then(Value::as_array);
    let data = data.ok_or_else(|| DiscoveryError::NotJson { path: "/v1/models".to_owned() })?;
    backend.state.pages.learn_listed(data);
    let engine = match configured {
        Engine::Auto => match owner(&list).and_then(detect) {
            Some(engine) => engine,
            None => queries.without_owner().await,
        },
        known => known,
    };
    if engine != Engine::Auto {
        backend.state.detect_engine(engine);
    }
    let style = facts(engine).model_list;
    if style == ModelList::Ollama
        && let Ok(listed) = queries.ollama(shown).await
    {
        return Ok(queries.completed(listed, engine).await);
    }
    let mut listed = ListedModels::new(data.iter().filter_map(read_listed));
    listed.sizes = data.iter().filter_map(|model| read_size(model, "/id", "/meta/size")).collect();
    if style == ModelList::OpenAiWithProps {
        queries.add_llamacpp_props(&mut listed.models).await;
    }
    Ok(queries.completed(listed, engine).await)
}

/// Returns a version as it is shown and compared.
fn shown_version(version: &str) -> String {
    escape(version, MAX_VERSION).into_owned()
}

/// Returns the `owned_by` of the first model in OpenAI's list: engines put their name there.
pub(super) fn owner(list: &Value) -> Option<&str> {
    let data = list.get("data").or_else(|| list.get("models"))?;
    text(data.get(0)?, "/owned_by")
}

/// Reads one entry of `/v1/models`: vLLM and SGLang report `max_model_len`, llama.cpp its training
/// context.
fn read_listed(model: &Value) -> Option<ModelEntry> {
    let id = text(model, "/id").or_else(|| text(model, "/name"))?;
    let length = ["/max_model_len", "/context_length", "/context_window"];
    Some(ModelEntry {
        id: id.to_owned(),
        context_length: length.into_iter().find_map(|at| to_tokens(model.pointer(at)?)),
        ..ModelEntry::default()
    })
}

/// The details that Ollama showed of its models, so that only changed models are read again.
#[derive(Debug, Default)]
pub(super) struct ShownModels(HashMap<String, (String, ModelEntry)>);

impl ShownModels {
    /// Returns the details of a model if its digest is unchanged.
    fn get(&self, id: &str, digest: &str) -> Option<&ModelEntry> {
        let (known, entry) = self.0.get(id)?;
        (known == digest).then_some(entry)
    }

    /// Keeps only the models that are still listed.
    fn retain(&mut self, listed: &[ModelEntry]) {
        let ids: HashSet<&str> = listed.iter().map(|model| model.id.as_str()).collect();
        self.0.retain(|id, _| ids.contains(id.as_str()));
    }
}

/// Returns the name and the size of a listed model.
fn read_size(model: &Value, name: &str, size: &str) -> Option<(String, ByteSize)> {
    let size = model.pointer(size)?.as_u64()?;
    Some((text(model, name)?.to_owned(), ByteSize(size)))
}

struct Queries<'a> {
    client: &'a DiscoveryClient,
    backend: &'a Backend,
    timeout: Duration,
}

impl Queries<'_> {
    async fn get(&self, path: &str) -> Result<Value, DiscoveryError> {
        self.send(path, None).await
    }

    async fn send(&self, path: &str, body: Option<&str>) -> Result<Value, DiscoveryError> {
        let request = SmallRequest { path, body, timeout: self.timeout };
        let (status, body) = self.client.send(self.backend, request).await?;
        if !(200..300).contains(&status) {
            return Err(DiscoveryError::Status { path: path.to_owned(), status });
        }
        let read = serde_json::from_slice(&body);
        read.map_err(|_not_json| DiscoveryError::NotJson { path: path.to_owned() })
    }

    /// Adds the operations that the engine may serve, and its version.
    async fn completed(&self, mut listed: ListedModels, engine: Engine) -> ListedModels {
        for model in &mut listed.models {
            model.operations = Some(engine.operations());
        }
        listed.version = self.version(engine).await;
        listed
    }

    /// Detects the engine of a list without a known owner, by its separate page.
    async fn without_owner(&self) -> Engine {
        for (engine, own) in own_pages() {
            let page = self.get(own.path).await.unwrap_or_default();
            let value = page.pointer(own.pointer).and_then(Value::as_str);
            if value.is_some_and(|value| own.values.contains(&value)) {
                return engine;
            }
        }
        Engine::Auto
    }

    /// Adds the real context of one slot, and the modalities, which llama.cpp reports in `/props`.
    async fn add_llamacpp_props(&self, models: &mut [ModelEntry]) {
        let props = match self.get("/props").await {
            Ok(props) => props,
            Err(error) => {
                tracing::debug!(backend = %self.backend.state.name, %error, "no /props");
                return;
            }
        };
        self.backend.state.pages.learn_properties(&props);
        if let Some(slots) = props.pointer("/total_slots").and_then(to_tokens) {
            self.backend.state.set_slots(slots);
        }
        let context = props.pointer("/default_generation_settings/n_ctx").and_then(to_tokens);
        let vision = props.pointer("/modalities/vision").and_then(Value::as_bool);
        for model in models {
            model.context_length = context.or(model.context_length);
            // Grammar and tool parsing are built into llama.cpp's server; only vision depends on
            // the model that is loaded.
            if let Some(vision) = vision {
                let base = Capabilities::TOOLS.union(Capabilities::JSON_MODE);
                let own = if vision { Capabilities::VISION } else { Capabilities::NONE };
                model.capabilities = Some(base.union(own));
            }
        }
    }

    /// Queries the engine's version; it may have been upgraded since the last query.
    async fn version(&self, engine: Engine) -> Option<String> {
        let facts = facts(engine);
        let (path, at) = facts.version?;
        // That page was just read for the list of models.
        if facts.props_path == Some(path) {
            return text(&*self.backend.state.pages.properties()?, at).map(shown_version);
        }
        text(&self.get(path).await.ok()?, at).map(shown_version)
    }

    /// Queries Ollama, which lists tags, and shows each model's capabilities and context on
    /// request.
    async fn ollama(&self, shown: &mut ShownModels) -> Result<ListedModels, DiscoveryError> {
        let path = "/api/tags";
        let tags = self.get(path).await?;
        let tags = tags.get("models").and_then(Value::as_array).cloned();
        let tags = tags.ok_or_else(|| DiscoveryError::NotJson { path: path.to_owned() })?;
        self.backend.state.pages.learn_listed(&tags);
        let named = tags.iter().filter_map(|tag| {
            let id = text(tag, "/model").or_else(|| text(tag, "/name"))?.to_owned();
            Some(ModelEntry { id, ..ModelEntry::default() })
        });
        let mut listed = ListedModels::new(named);
        listed.sizes = tags.iter().filter_map(|tag| read_size(tag, "/model", "/size")).collect();
        let digests: HashMap<&str, &str> = tags
            .iter()
            .filter_map(|tag| Some((text(tag, "/model")?, text(tag, "/digest")?)))
            .collect();
        for model in &mut listed.models {
            let digest = digests.get(model.id.as_str()).copied().unwrap_or_default();
            if let Some(known) = shown.get(&model.id, digest) {
                model.clone_from(known);
                continue;
            }
            let request = serde_json::json!({"model": model.id}).to_string();
            match self.send("/api/show", Some(&request)).await {
                Ok(details) => {
                    read_shown(&details, model);
                    // Without a digest, a changed model would not be read again.
                    if !digest.is_empty() {
                        shown.0.insert(model.id.clone(), (digest.to_owned(), model.clone()));
                    }
                }
                Err(error) => tracing::debug!(model = %model.id, %error, "Ollama shows no details"),
            }
        }
        shown.retain(&listed.models);
        Ok(listed)
    }
}

fn read_shown(shown: &Value, model: &mut ModelEntry) {
    if let Some(names) = shown.get("capabilities").and_then(Value::as_array) {
        // Ollama binds any model's output to a schema itself.
        let shown = names.iter().filter_map(|name| match name.as_str()? {
            "vision" => Some(Capabilities::VISION),
            "tools" => Some(Capabilities::TOOLS),
            _ => None,
        });
        model.capabilities = Some(shown.fold(Capabilities::JSON_MODE, Capabilities::union));
    }
    let info = shown.get("model_info").and_then(Value::as_object);
    let lengths = info.into_iter().flatten();
    model.context_length = lengths
        .filter(|(key, _)| key.ends_with(".context_length"))
        .find_map(|(_, length)| to_tokens(length));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn openai_model_lists_are_read() {
        let vllm =
            json!({"id": "meta-llama/Llama-3-8B", "owned_by": "vllm", "max_model_len": 8192});
        let entry = read_listed(&vllm).unwrap();
        assert_eq!(
            (entry.id.as_str(), entry.context_length),
            ("meta-llama/Llama-3-8B", Some(8192))
        );
        assert_eq!(entry.capabilities, None, "not reported: assumed, not known");
        let plain = read_listed(&json!({"id": "gpt-4o", "object": "model"})).unwrap();
        assert_eq!(plain.context_length, None);
        assert!(read_listed(&json!({"object": "model"})).is_none());
    }

    #[test]
    fn ollama_reports_capabilities_and_context() {
        let shown = json!({
            "capabilities": ["completion", "vision"],
            "model_info": {"general.architecture": "llama", "llama.context_length": 131072},
        });
        let mut model = ModelEntry::default();
        read_shown(&shown, &mut model);
        assert_eq!(model.context_length, Some(131_072));
        assert_eq!(model.capabilities, Some(Capabilities::VISION.union(Capabilities::JSON_MODE)));
    }
}
