//! OpenAI's list of models, in the forms that engines and providers have.

use ahash::HashMap;
use penstock_config::ModelEntry;
use serde_json::Value;

use super::json::{text, to_tokens};
use super::listed_models::ListedModels;

/// The path of the list.
pub(super) const PATH: &str = "/v1/models";

/// Returns the entries of a list.
pub(super) fn entries(list: &Value) -> Option<&Vec<Value>> {
    list.get("data").or_else(|| list.get("models")).and_then(Value::as_array)
}

/// Returns the `owned_by` of the first model in a list: engines put their name there.
pub(super) fn owner(list: &Value) -> Option<&str> {
    text(entries(list)?.first()?, "/owned_by")
}

/// The members with the context of a model: of vLLM and SGLang, of OpenRouter and Together, of
/// Groq, of Mistral, of Anthropic, and of DeepInfra.
const CONTEXT_LENGTHS: &[&str] = &[
    "/max_model_len",
    "/context_length",
    "/context_window",
    "/max_context_length",
    "/max_input_tokens",
    "/metadata/context_length",
];

/// Reads the entries of a list.
pub(super) fn read(entries: &[Value]) -> ListedModels {
    let contexts: HashMap<&str, u32> =
        entries.iter().filter_map(|entry| Some((id(entry)?, own_context(entry)?))).collect();
    // vLLM and SGLang report no context of an adapter: it has that of its base model.
    let of_parent = |entry| contexts.get(text(entry, "/parent")?).copied();
    let models = entries.iter().filter_map(|entry| {
        Some(ModelEntry {
            id: id(entry)?.to_owned(),
            context_length: own_context(entry).or_else(|| of_parent(entry)),
            ..ModelEntry::default()
        })
    });
    let mut listed = ListedModels::new(models);
    listed.add_sizes(entries, "/id", "/meta/size");
    listed
}

fn id(entry: &Value) -> Option<&str> {
    text(entry, "/id").or_else(|| text(entry, "/name"))
}

fn own_context(entry: &Value) -> Option<u32> {
    CONTEXT_LENGTHS.iter().find_map(|at| to_tokens(entry.pointer(at)?))
}

/// Replaces the contexts of LM Studio's models by those in its separate list: the one that a model
/// is loaded with, or the largest while it is not loaded.
pub(super) fn add_lm_studio_contexts(page: &Value, models: &mut [ModelEntry]) {
    let contexts: HashMap<&str, u32> = entries(page)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let is_loaded = text(entry, "/state") == Some("loaded");
            let loaded = entry.pointer("/loaded_context_length").filter(|_| is_loaded);
            let context = loaded.and_then(to_tokens).or_else(|| own_context(entry));
            Some((id(entry)?, context?))
        })
        .collect();
    for model in models {
        let listed = contexts.get(model.id.as_str()).copied();
        model.context_length = listed.or(model.context_length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn contexts(entries: &Value) -> Vec<(String, Option<u32>)> {
        let models = read(entries.as_array().unwrap()).models;
        models.into_iter().map(|model| (model.id, model.context_length)).collect()
    }

    #[test]
    fn openai_model_lists_are_read() {
        let list = json!([
            {"id": "meta-llama/Llama-3-8B", "owned_by": "vllm", "max_model_len": 8192},
            {"id": "gpt-4o", "object": "model"},
            {"object": "model"},
            {"id": "mistral-large", "max_context_length": 131_072},
            {"id": "claude", "max_input_tokens": 200_000, "max_tokens": 64_000},
            {"id": "hosted", "metadata": {"context_length": 4096}},
        ]);
        let expected = [
            ("meta-llama/Llama-3-8B", Some(8192)),
            ("gpt-4o", None),
            ("mistral-large", Some(131_072)),
            ("claude", Some(200_000)),
            ("hosted", Some(4096)),
        ];
        assert_eq!(contexts(&list), expected.map(|(id, length)| (id.to_owned(), length)));
        let models = read(list.as_array().unwrap()).models;
        assert_eq!(models[0].capabilities, None, "not reported: assumed, not known");
    }

    #[test]
    fn adapter_has_the_context_of_its_base_model() {
        let list = json!([
            {"id": "first", "parent": "base", "max_model_len": null},
            {"id": "base", "max_model_len": 4096, "parent": null},
            {"id": "own", "parent": "base", "max_model_len": 2048},
            {"id": "lone", "parent": "/models/unlisted"},
        ]);
        let expected =
            [("first", Some(4096)), ("base", Some(4096)), ("own", Some(2048)), ("lone", None)];
        assert_eq!(contexts(&list), expected.map(|(id, length)| (id.to_owned(), length)));
    }

    #[test]
    fn context_of_lm_studio_is_the_loaded_one_while_it_is_loaded() {
        let page = json!({"data": [
            {"id": "a", "state": "loaded", "max_context_length": 131_072, "loaded_context_length": 4096},
            {"id": "b", "state": "not-loaded", "max_context_length": 8192, "loaded_context_length": 1},
            {"id": "c", "state": "loaded", "max_context_length": 2048},
            {"id": "d", "state": "loaded"},
        ]});
        let list: Vec<Value> = ["a", "b", "c", "d", "e"].map(|id| json!({"id": id})).to_vec();
        let mut models = read(&list).models;
        add_lm_studio_contexts(&page, &mut models);
        let lengths: Vec<Option<u32>> = models.iter().map(|model| model.context_length).collect();
        assert_eq!(lengths, [Some(4096), Some(8192), Some(2048), None, None]);
        add_lm_studio_contexts(&json!({"error": "no such page"}), &mut models);
        assert_eq!(models[0].context_length, Some(4096), "what was known stays");
    }
}
