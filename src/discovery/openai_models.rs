//! OpenAI's list of models, in the forms that engines and providers have.

use std::time::Duration;

use ahash::{HashMap, HashSet};
use penstock_api::{Engine, canonical_name};
use penstock_clock::now;
use penstock_config::ModelEntry;
use serde_json::Value;

use super::client::DiscoveryError;
use super::engines::detect;
use super::listed_models::{ListedModels, MAX_MODELS, text, to_tokens};
use super::queries::Queries;
use crate::upstream::query_model::percent_encode;

/// The path of the list.
pub(super) const PATH: &str = "/v1/models";

/// The largest number of pages that are read.
const MAX_PAGES: usize = 32;
/// The time after which no further page is read.
const MAX_TIME: Duration = Duration::from_secs(5);

/// The entries of a list, of all its pages.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) items: Vec<Value>,
    /// True if the backend has more than were read.
    is_cut: bool,
}

/// Queries the list. Anthropic's has pages, of 20 models unless a query says otherwise.
///
/// # Errors
/// If the first page cannot be read. Without a further one, what has been read counts.
pub(super) async fn list(queries: &Queries<'_>) -> Result<Entries, DiscoveryError> {
    let mut page = queries.get(PATH).await?;
    let not_json = || DiscoveryError::NotJson { path: PATH.to_owned() };
    let mut entries =
        Entries { items: take_entries(&mut page).ok_or_else(not_json)?, is_cut: false };
    let mut next = following(&page, &entries.items);
    let last_at = now().after(MAX_TIME);
    for _ in 1..MAX_PAGES {
        let has_room = entries.items.len() < MAX_MODELS && now() < last_at;
        let Some(after) = next.as_deref().filter(|_| has_room) else {
            break;
        };
        page = match queries.get(&page_after(after)).await {
            Ok(page) => page,
            Err(_) => break,
        };
        let Some(items) = take_entries(&mut page) else { break };
        let later = following(&page, &items);
        // The same page again: it ignores the query.
        if later == next {
            break;
        }
        entries.items.extend(items);
        next = later;
    }
    entries.is_cut = next.is_some();
    Ok(entries)
}

/// The path of the page after the model called `id`, as long as Anthropic allows.
fn page_after(id: &str) -> String {
    let mut path = format!("{PATH}?limit=1000&after_id=");
    percent_encode(id, &mut path);
    path
}

/// The last model of a page that has another one after it.
fn following(page: &Value, items: &[Value]) -> Option<String> {
    let has_more = page.get("has_more").and_then(Value::as_bool).unwrap_or_default();
    let last = text(page, "/last_id").or_else(|| id(items.last()?));
    last.filter(|_| has_more).map(str::to_owned)
}

/// Takes the entries out of a list: OpenAI's is under `data`, Together's is a bare array.
fn take_entries(list: &mut Value) -> Option<Vec<Value>> {
    let entries = match list_key(list) {
        Some(key) => list.get_mut(key)?,
        None => list,
    };
    match entries.take() {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn list_key(list: &Value) -> Option<&'static str> {
    ["data", "models"].into_iter().find(|key| list.get(key).is_some_and(Value::is_array))
}

/// Returns the entries of a list.
pub(super) fn entries(list: &Value) -> Option<&Vec<Value>> {
    list_key(list).map_or(Some(list), |key| list.get(key)).and_then(Value::as_array)
}

/// Detects the engine by the `owned_by` of its models: engines put their name there. Owners that
/// name no engine are passed over, such as the user who published a model of Ollama; `None` if the
/// others name several engines.
pub(super) fn detect_by_owner(entries: &[Value]) -> Option<Engine> {
    let owners = entries.iter().filter_map(|entry| text(entry, "/owned_by"));
    let mut engines = owners.filter_map(detect);
    let first = engines.next()?;
    engines.all(|other| other == first).then_some(first)
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
pub(super) fn read(entries: &Entries) -> ListedModels {
    let items = &entries.items;
    let contexts: HashMap<&str, u32> =
        items.iter().filter_map(|entry| Some((id(entry)?, own_context(entry)?))).collect();
    // vLLM and SGLang report no context of an adapter: it has that of its base model.
    let of_parent = |entry| contexts.get(text(entry, "/parent")?).copied();
    let models = items.iter().filter_map(|entry| {
        Some(ModelEntry {
            id: id(entry)?.to_owned(),
            context_length: own_context(entry).or_else(|| of_parent(entry)),
            ..ModelEntry::default()
        })
    });
    let mut listed = ListedModels::new(models.chain(aliases(items, &contexts)));
    listed.add_sizes(items, "/id", "/meta/size");
    if entries.is_cut {
        // Nothing says how many there are.
        listed.dropped.over_limit = listed.dropped.over_limit.saturating_add(1);
    }
    listed
}

/// Returns the other names of models (llama.cpp, Mistral) that are no models of the list.
fn aliases(items: &[Value], contexts: &HashMap<&str, u32>) -> impl Iterator<Item = ModelEntry> {
    let mut seen: HashSet<Box<str>> = items.iter().filter_map(id).map(canonical_name).collect();
    let pairs = items.iter().filter_map(|entry| Some((id(entry)?, entry.get("aliases")?)));
    let pairs = pairs.flat_map(|(id, aliases)| {
        aliases.as_array().into_iter().flatten().map(move |alias| (id, alias))
    });
    pairs.filter_map(move |(id, alias)| {
        let alias = alias.as_str().filter(|alias| seen.insert(canonical_name(alias)))?;
        Some(ModelEntry {
            id: alias.to_owned(),
            upstream_id: Some(id.to_owned()),
            context_length: contexts.get(id).copied(),
            ..ModelEntry::default()
        })
    })
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

    fn models(list: &Value) -> Vec<ModelEntry> {
        let items = take_entries(&mut list.clone()).unwrap();
        read(&Entries { items, is_cut: false }).models
    }

    fn contexts(list: &Value) -> Vec<(String, Option<u32>)> {
        let models = models(list);
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
        assert_eq!(models(&list)[0].capabilities, None, "not reported: assumed, not known");
    }

    #[test]
    fn owners_that_agree_name_the_engine() {
        let detected = |owners: &[&str]| {
            let entries = owners.iter().map(|owner| json!({"id": "m", "owned_by": owner}));
            detect_by_owner(&entries.collect::<Vec<_>>())
        };
        assert_eq!(detected(&["vllm", "vllm"]), Some(Engine::Vllm));
        assert_eq!(detected(&["somebody", "library"]), Some(Engine::Ollama), "a user's model");
        assert_eq!(detected(&["somebody"]), None);
        assert_eq!(detected(&["vllm", "library"]), None, "an aggregator");
        assert_eq!(detected(&[]), None);
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
        let mut models = models(&json!(["a", "b", "c", "d", "e"].map(|id| json!({"id": id}))));
        add_lm_studio_contexts(&page, &mut models);
        let lengths: Vec<Option<u32>> = models.iter().map(|model| model.context_length).collect();
        assert_eq!(lengths, [Some(4096), Some(8192), Some(2048), None, None]);
        add_lm_studio_contexts(&json!({"error": "no such page"}), &mut models);
        assert_eq!(models[0].context_length, Some(4096), "what was known stays");
    }

    #[test]
    fn list_is_under_data_or_models_or_bare() {
        for list in [
            json!({"object": "list", "data": [{"id": "m"}]}),
            json!({"models": [{"name": "m"}]}),
            json!({"models": [{"name": "m", "model": "x"}], "data": [{"id": "m"}]}),
            json!({"data": null, "models": [{"name": "m"}]}),
            json!([{"id": "m"}]),
        ] {
            assert_eq!(contexts(&list), [("m".to_owned(), None)], "{list}");
            assert_eq!(entries(&list).unwrap().len(), 1);
        }
        for list in [json!({}), json!({"data": {}}), json!("m"), json!(null)] {
            assert!(take_entries(&mut list.clone()).is_none(), "{list}");
        }
    }

    #[test]
    fn next_page_is_after_the_last_model() {
        let items = [json!({"id": "a"}), json!({"id": "b c"})];
        let next = |page: Value| following(&page, &items);
        assert_eq!(next(json!({"has_more": true, "last_id": "z"})).as_deref(), Some("z"));
        assert_eq!(next(json!({"has_more": true})).as_deref(), Some("b c"));
        assert_eq!(next(json!({"has_more": false, "last_id": "z"})), None);
        assert_eq!(next(json!({"last_id": "z"})), None);
        assert_eq!(next(json!([])), None);
        assert_eq!(page_after("b c"), "/v1/models?limit=1000&after_id=b%20c");
    }

    #[test]
    fn other_names_of_a_model_are_known_unless_they_are_models() {
        let list = json!([
            {"id": "large-2411", "aliases": ["large-latest", "Large-2411", "large-latest", 5]},
            {"id": "small-latest", "aliases": ["small-2409"]},
            {"id": "small-2409", "aliases": ["small-latest", "large-latest"]},
            {"id": "plain", "aliases": null},
        ]);
        let models = models(&list);
        let names: Vec<(&str, Option<&str>)> =
            models.iter().map(|one| (one.id.as_str(), one.upstream_id.as_deref())).collect();
        assert_eq!(names[4..], [("large-latest", Some("large-2411"))]);
        assert_eq!(names.len(), 5);
        let items = take_entries(&mut list.clone()).unwrap();
        assert_eq!(read(&Entries { items, is_cut: true }).dropped.over_limit, 1);
    }
}
