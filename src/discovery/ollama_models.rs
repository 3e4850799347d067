//! The models of an Ollama: tags, and the details that it shows of each tag.

use ahash::{HashMap, HashSet};
use parking_lot::Mutex;
use penstock_api::Capabilities;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_config::ModelEntry;
use serde_json::Value;

use super::client::DiscoveryError;
use super::listed_models::{ListedModels, text, to_tokens};
use super::queries::Queries;

/// The details of Ollama's models, kept so that only changed models are read again, and the models
/// with details yet to read. A list is complete without any details: each takes a request, and one
/// of a model on a slow disk a second.
#[derive(Debug, Default)]
pub(super) struct ShownModels {
    /// The details and their digests, by the name of the model. Those of another digest count
    /// until new ones are read.
    known: HashMap<String, (String, ModelEntry)>,
    /// The names and digests of the models to read, the last one first.
    unread: Vec<(String, String)>,
}

impl ShownModels {
    /// Starts with the models known from an earlier configuration; all are read again.
    pub(super) fn new(models: &[ModelEntry]) -> Self {
        let known = models.iter().map(|model| (model.id.clone(), (String::new(), model.clone())));
        Self { known: known.collect(), unread: Vec::new() }
    }

    /// Returns whether the details of a listed model are still to be read.
    pub(super) fn is_incomplete(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Forgets which models are still to be read, because their list is read again.
    pub(super) fn clear_unread(&mut self) {
        self.unread.clear();
    }

    /// Takes over a new list: the details of models that are no longer listed are forgotten, and
    /// those of changed ones are read again.
    fn follow(&mut self, models: &[ModelEntry], digests: &HashMap<&str, &str>) {
        let ids: HashSet<&str> = models.iter().map(|model| model.id.as_str()).collect();
        self.known.retain(|id, _| ids.contains(id.as_str()));
        for model in models.iter().rev() {
            let digest = digests.get(model.id.as_str()).copied().unwrap_or_default();
            let read = self.known.get(&model.id).map(|(read, _)| read.as_str());
            // Without a digest nothing shows whether the model has changed.
            if digest.is_empty() || read != Some(digest) {
                self.unread.push((model.id.clone(), digest.to_owned()));
            }
        }
    }

    /// Adds the known details to `models`.
    pub(super) fn complete(&self, models: &mut [ModelEntry]) {
        for model in models {
            if let Some((_, known)) = self.known.get(&model.id) {
                model.context_length = known.context_length;
                model.capabilities = known.capabilities;
            }
        }
    }
}

/// Queries the tags of an Ollama. Models whose details are not known yet are listed without them,
/// for [`read_details`].
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
    shown.follow(&listed.models, &digests);
    shown.complete(&mut listed.models);
    Ok(listed)
}

/// Reads the details of listed models, four at a time. No further read starts after `until`; what
/// is left is read by the next call. A read that fails is repeated once the list is read again.
pub(super) async fn read_details(queries: &Queries<'_>, shown: &mut ShownModels, until: Timestamp) {
    let reads = Mutex::new(shown);
    let reader = || async {
        // One read by each reader in any case, so that every call makes progress.
        let mut is_first = true;
        while let Some((id, digest)) = next_unread(&reads, is_first || now() < until) {
            is_first = false;
            let request = serde_json::json!({"model": id}).to_string();
            match queries.send("/api/show", Some(&request)).await {
                Ok(details) => {
                    let mut model = ModelEntry::default();
                    read_shown(&details, &mut model);
                    reads.lock().known.insert(id, (digest, model));
                }
                Err(error) => tracing::debug!(model = %id, %error, "Ollama shows no details"),
            }
        }
    };
    // Boxed: four of these futures in another one would be a large one.
    let another = || Box::pin(reader());
    tokio::join!(another(), another(), another(), another());
}

/// Takes the next model to read, if there `is_time`.
fn next_unread(reads: &Mutex<&mut ShownModels>, is_time: bool) -> Option<(String, String)> {
    if is_time { reads.lock().unread.pop() } else { None }
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

    fn entry(id: &str) -> ModelEntry {
        ModelEntry { id: id.to_owned(), ..ModelEntry::default() }
    }

    #[test]
    fn only_changed_models_are_read_and_the_others_keep_their_details() {
        let known = |length| ModelEntry { context_length: Some(length), ..entry("") };
        let mut shown = ShownModels::new(&[ModelEntry { id: "old".to_owned(), ..known(1) }]);
        for (id, length) in [("same", 2), ("changed", 3), ("blank", 4), ("gone", 5)] {
            shown.known.insert(id.to_owned(), (format!("digest of {id}"), known(length)));
        }
        let mut models = ["new", "old", "same", "changed", "blank"].map(entry);
        let digests =
            [("new", "n"), ("old", "o"), ("same", "digest of same"), ("changed", "another")];
        shown.follow(&models, &digests.into_iter().collect());
        let unread: Vec<&str> = shown.unread.iter().rev().map(|(id, _)| id.as_str()).collect();
        assert_eq!(unread, ["new", "old", "changed", "blank"], "in the order of the list");
        shown.complete(&mut models);
        let lengths = models.map(|model| model.context_length);
        assert_eq!(lengths, [None, Some(1), Some(2), Some(3), Some(4)]);
        assert!(!shown.known.contains_key("gone"));
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
