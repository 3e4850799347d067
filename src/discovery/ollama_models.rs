//! The models of an Ollama: tags, and the details that it shows of each tag.

use ahash::{HashMap, HashSet};
use penstock_api::Capabilities;
use penstock_config::ModelEntry;
use serde_json::Value;

use super::client::DiscoveryError;
use super::json::{text, to_tokens};
use super::listed_models::ListedModels;
use super::queries::Queries;

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

/// Queries the tags of an Ollama, and shows each model's capabilities and context on request.
pub(super) async fn list(
    queries: &Queries<'_>,
    shown: &mut ShownModels,
) -> Result<ListedModels, DiscoveryError> {
    let path = "/api/tags";
    let tags = queries.get(path).await?;
    let tags = tags.get("models").and_then(Value::as_array).cloned();
    let tags = tags.ok_or_else(|| DiscoveryError::NotJson { path: path.to_owned() })?;
    queries.backend.state.pages.learn_listed(&tags);
    let named = tags.iter().filter_map(|tag| {
        let id = text(tag, "/model").or_else(|| text(tag, "/name"))?.to_owned();
        Some(ModelEntry { id, ..ModelEntry::default() })
    });
    let mut listed = ListedModels::new(named);
    listed.add_sizes(&tags, "/model", "/size");
    let digests: HashMap<&str, &str> =
        tags.iter().filter_map(|tag| Some((text(tag, "/model")?, text(tag, "/digest")?))).collect();
    for model in &mut listed.models {
        let digest = digests.get(model.id.as_str()).copied().unwrap_or_default();
        if let Some(known) = shown.get(&model.id, digest) {
            model.clone_from(known);
            continue;
        }
        let request = serde_json::json!({"model": model.id}).to_string();
        match queries.send("/api/show", Some(&request)).await {
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
