//! OpenAI's list of models, in the forms that engines and providers have.

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

/// Reads the entries of a list.
pub(super) fn read(entries: &[Value]) -> ListedModels {
    let mut listed = ListedModels::new(entries.iter().filter_map(read_entry));
    listed.add_sizes(entries, "/id", "/meta/size");
    listed
}

/// Reads one entry: vLLM and SGLang report `max_model_len`, llama.cpp its training context.
fn read_entry(model: &Value) -> Option<ModelEntry> {
    let id = text(model, "/id").or_else(|| text(model, "/name"))?;
    let length = ["/max_model_len", "/context_length", "/context_window"];
    Some(ModelEntry {
        id: id.to_owned(),
        context_length: length.into_iter().find_map(|at| to_tokens(model.pointer(at)?)),
        ..ModelEntry::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn openai_model_lists_are_read() {
        let vllm =
            json!({"id": "meta-llama/Llama-3-8B", "owned_by": "vllm", "max_model_len": 8192});
        let entry = read_entry(&vllm).unwrap();
        assert_eq!(
            (entry.id.as_str(), entry.context_length),
            ("meta-llama/Llama-3-8B", Some(8192))
        );
        assert_eq!(entry.capabilities, None, "not reported: assumed, not known");
        let plain = read_entry(&json!({"id": "gpt-4o", "object": "model"})).unwrap();
        assert_eq!(plain.context_length, None);
        assert!(read_entry(&json!({"object": "model"})).is_none());
    }
}
