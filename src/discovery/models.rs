//! Model discovery: the models that a backend serves, their context length and capabilities.

use std::time::Duration;

use penstock_api::{Capabilities, Engine, escape};
use penstock_config::ModelEntry;
use penstock_core::fleet::Backend;
use serde_json::Value;

use super::client::{DiscoveryClient, DiscoveryError};
use super::engines::{LM_STUDIO_LIST, ModelList, facts, own_pages};
use super::listed_models::{ListedModels, text, to_tokens};
use super::ollama_models::{self, ShownModels};
use super::openai_models;
use super::queries::Queries;

/// The longest version that is kept, in bytes.
const MAX_VERSION: usize = 40;

/// Queries the models that a backend serves, with all that it reports about them. Details that take
/// a request for each model are left to [`ollama_models::read_details`].
pub(super) async fn discover(
    client: &DiscoveryClient,
    backend: &Backend,
    timeout: Duration,
    shown: &mut ShownModels,
) -> Result<ListedModels, DiscoveryError> {
    let queries = &Queries { client, backend, timeout };
    shown.clear_unread();
    let configured = backend.config.engine;
    if facts(configured).model_list == ModelList::Ollama {
        let listed = ollama_models::list(queries, shown).await?;
        return Ok(completed(queries, listed, configured).await);
    }
    let list = match openai_models::list(queries).await {
        Ok(list) => list,
        // An unknown engine without OpenAI's list may still be an Ollama.
        Err(error) if configured == Engine::Auto => {
            let listed = ollama_models::list(queries, shown).await.map_err(|_not_ollama| error)?;
            backend.state.detect_engine(Engine::Ollama);
            return Ok(completed(queries, listed, Engine::Ollama).await);
        }
        Err(error) => return Err(error),
    };
    backend.state.pages.learn_listed(&list.items);
    let engine = match configured {
        Engine::Auto => match openai_models::detect_by_owner(&list.items) {
            Some(engine) => engine,
            None => without_owner(queries).await,
        },
        known => known,
    };
    if engine != Engine::Auto {
        backend.state.detect_engine(engine);
    }
    let style = facts(engine).model_list;
    if style == ModelList::Ollama
        && let Ok(listed) = ollama_models::list(queries, shown).await
    {
        return Ok(completed(queries, listed, engine).await);
    }
    let mut listed = openai_models::read(&list);
    match style {
        ModelList::OpenAi | ModelList::Ollama => {}
        ModelList::OpenAiWithProps => add_llamacpp_props(queries, &mut listed.models).await,
        ModelList::LmStudio => match queries.get(LM_STUDIO_LIST).await {
            Ok(page) => openai_models::add_lm_studio_contexts(&page, &mut listed.models),
            Err(error) => tracing::debug!(backend = %backend.state.name, %error, "no own list"),
        },
    }
    Ok(completed(queries, listed, engine).await)
}

/// Returns a version as it is shown and compared.
fn shown_version(version: &str) -> String {
    escape(version, MAX_VERSION).into_owned()
}

/// Adds the operations that the engine may serve, and its version.
async fn completed(
    queries: &Queries<'_>,
    mut listed: ListedModels,
    engine: Engine,
) -> ListedModels {
    for model in &mut listed.models {
        model.operations = Some(engine.operations());
    }
    listed.version = version(queries, engine).await;
    listed
}

/// Detects the engine of a list without a known owner, by its separate page.
async fn without_owner(queries: &Queries<'_>) -> Engine {
    for (engine, own) in own_pages() {
        let page = queries.get(own.path).await.unwrap_or_default();
        let value = page.pointer(own.pointer).and_then(Value::as_str);
        if value.is_some_and(|value| own.values.contains(&value)) {
            return engine;
        }
    }
    Engine::Auto
}

/// Adds the real context of one slot, and the modalities, which llama.cpp reports in `/props`.
async fn add_llamacpp_props(queries: &Queries<'_>, models: &mut [ModelEntry]) {
    let state = &queries.backend.state;
    let props = match queries.get("/props").await {
        Ok(props) => props,
        Err(error) => {
            tracing::debug!(backend = %state.name, %error, "no /props");
            return;
        }
    };
    state.pages.learn_properties(&props);
    if let Some(slots) = props.pointer("/total_slots").and_then(to_tokens) {
        state.set_slots(slots);
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
pub(super) async fn version(queries: &Queries<'_>, engine: Engine) -> Option<String> {
    let facts = facts(engine);
    let (path, at) = facts.version?;
    // That page was just read with the list of models, unless that failed.
    if facts.props_path == Some(path)
        && let Some(page) = queries.backend.state.pages.properties()
    {
        return text(&page, at).map(shown_version);
    }
    text(&queries.get(path).await.ok()?, at).map(shown_version)
}
