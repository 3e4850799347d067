//! The information pages of each engine flavour (health, models, metrics), for health checks and
//! discovery.

use penstock_api::{Capabilities, Operation};
use serde_json::{Value, json};

use super::responses::{CREATED, WholeResponse, refusal};
use super::spec::{EngineModel, Flavour, MockSpec};

/// Responds to a request for information. An unhealthy engine responds to all with its status.
pub(super) fn page(spec: &MockSpec, health: u16, path: &str, body: &[u8]) -> WholeResponse {
    // An engine that is not healthy shows no page: discovery must cope with that, too.
    if health != 200 {
        return refusal(None, health, "unhealthy", "scripted");
    }
    // A GET of a path that takes a POST: penstock must not take the error for a missing operation.
    if let Some(operation) = Operation::from_path(path) {
        return refusal(Some(operation), 405, "method_not_allowed", "Method Not Allowed");
    }
    let common = match path {
        "/v1/models" => Some(model_list(spec)),
        _ => path.strip_prefix("/v1/models/").map(|id| one_model(spec, id)),
    };
    let page = common.or_else(|| match spec.flavour {
        Flavour::Vllm => vllm_page(path),
        Flavour::LlamaCpp => llama_cpp_page(spec, path),
        Flavour::Ollama => ollama_page(spec, path, body),
        Flavour::Plain => (path == "/health").then(|| ok(&json!({"status": "ok"}))),
    });
    page.unwrap_or_else(|| refusal(None, 404, "not_found", "Not Found"))
}

/// Returns the page of vLLM's metrics about load. Every request runs at once and none has a cache,
/// so none waits and none of the cache is used.
pub(super) fn load_page(running: usize) -> WholeResponse {
    let gauges = [
        ("vllm:num_requests_running", running),
        ("vllm:num_requests_waiting", 0),
        ("vllm:kv_cache_usage_perc", 0),
    ];
    let gauges = gauges.map(|(name, value)| format!("# TYPE {name} gauge\n{name} {value}\n"));
    WholeResponse::text(gauges.concat())
}

fn ok(value: &Value) -> WholeResponse {
    WholeResponse::value(200, value)
}

fn model_list(spec: &MockSpec) -> WholeResponse {
    let data: Vec<Value> = spec.models.iter().map(|model| entry(spec, model)).collect();
    let mut list = json!({"object": "list", "data": data});
    // llama.cpp lists its models twice, the second time in Ollama's form.
    if spec.flavour == Flavour::LlamaCpp {
        let models: Vec<Value> = spec.models.iter().map(llama_cpp_entry).collect();
        if let Some(fields) = list.as_object_mut() {
            fields.insert("models".to_owned(), Value::Array(models));
        }
    }
    ok(&list)
}

fn one_model(spec: &MockSpec, id: &str) -> WholeResponse {
    match spec.model(id) {
        Some(model) => ok(&entry(spec, model)),
        None => refusal(None, 404, "model_not_found", "the model does not exist"),
    }
}

fn entry(spec: &MockSpec, model: &EngineModel) -> Value {
    let EngineModel { id, context_length, .. } = model;
    match spec.flavour {
        Flavour::Vllm => json!({
            "id": id,
            "object": "model",
            "created": CREATED,
            "owned_by": "vllm",
            "root": id,
            "parent": null,
            "max_model_len": context_length,
            "permission": [],
        }),
        Flavour::LlamaCpp => json!({
            "id": id,
            "object": "model",
            "created": CREATED,
            "owned_by": "llamacpp",
            "meta": {
                "vocab_type": 2,
                "n_vocab": 128_256,
                "n_ctx_train": context_length,
                "n_embd": 4096,
                "n_params": 8_030_261_312_u64,
                "size": 4_912_898_304_u64,
            },
        }),
        Flavour::Ollama => {
            json!({"id": id, "object": "model", "created": CREATED, "owned_by": "library"})
        }
        Flavour::Plain => {
            json!({"id": id, "object": "model", "created": CREATED, "owned_by": spec.name})
        }
    }
}

fn vllm_page(path: &str) -> Option<WholeResponse> {
    match path {
        // A healthy engine returns an empty 200.
        "/health" => Some(WholeResponse::json(200, Vec::new())),
        "/version" => Some(ok(&json!({"version": "0.11.0"}))),
        _ => None,
    }
}

fn llama_cpp_entry(model: &EngineModel) -> Value {
    let sees = model.capabilities.contains(Capabilities::VISION).then_some("multimodal");
    let capabilities: Vec<&str> = ["completion"].into_iter().chain(sees).collect();
    json!({"name": model.id, "model": model.id, "type": "model", "capabilities": capabilities})
}

fn llama_cpp_page(spec: &MockSpec, path: &str) -> Option<WholeResponse> {
    let first = spec.models.first()?;
    let sees = first.capabilities.contains(Capabilities::VISION);
    let calls = first.capabilities.contains(Capabilities::TOOLS);
    match path {
        "/health" | "/v1/health" => Some(ok(&json!({"status": "ok"}))),
        "/props" => Some(ok(&json!({
            "default_generation_settings": {"id": 0, "n_ctx": first.context_length, "params": {}},
            "total_slots": 4,
            "model_alias": first.id,
            "model_path": format!("/models/{}.gguf", first.id),
            "modalities": {"vision": sees, "audio": false},
            "chat_template_caps": {"supports_tools": calls, "supports_tool_calls": calls},
            "build_info": "b7100",
            "is_sleeping": false,
        }))),
        _ => None,
    }
}

fn ollama_page(spec: &MockSpec, path: &str, body: &[u8]) -> Option<WholeResponse> {
    match path {
        "/" => {
            let body = b"Ollama is running".to_vec();
            Some(WholeResponse {
                content_type: "text/plain; charset=utf-8",
                ..WholeResponse::json(200, body)
            })
        }
        "/api/version" => Some(ok(&json!({"version": "0.13.0"}))),
        "/api/tags" => {
            let models: Vec<Value> = spec.models.iter().map(ollama_entry).collect();
            Some(ok(&json!({"models": models})))
        }
        "/api/show" => {
            let request: Value = serde_json::from_slice(body).unwrap_or_default();
            let id = request.get("model").or_else(|| request.get("name")).and_then(Value::as_str);
            let id = id.unwrap_or("");
            Some(spec.model(id).map_or_else(
                || WholeResponse::value(404, &json!({"error": format!("model '{id}' not found")})),
                |model| ok(&ollama_show(model)),
            ))
        }
        _ => None,
    }
}

fn ollama_entry(model: &EngineModel) -> Value {
    json!({
        "name": model.id,
        "model": model.id,
        "modified_at": "2026-01-01T00:00:00Z",
        "size": 4_912_898_304_u64,
        "digest": "5f".repeat(32),
        "details": ollama_details(),
    })
}

fn ollama_show(model: &EngineModel) -> Value {
    let given = |capability, name| model.capabilities.contains(capability).then_some(name);
    let more = [given(Capabilities::TOOLS, "tools"), given(Capabilities::VISION, "vision")];
    let capabilities: Vec<&str> =
        ["completion"].into_iter().chain(more.into_iter().flatten()).collect();
    json!({
        "modelfile": format!("FROM {}", model.id),
        "parameters": "",
        "template": "{{ .Prompt }}",
        "details": ollama_details(),
        "model_info": {
            "general.architecture": "llama",
            "llama.context_length": model.context_length,
        },
        "capabilities": capabilities,
        "modified_at": "2026-01-01T00:00:00Z",
    })
}

fn ollama_details() -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "8.0B",
        "quantization_level": "Q4_K_M",
    })
}
