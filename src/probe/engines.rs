//! What is known about each engine: where its health is asked, where it tells its version, and which
//! metrics it has. Adding an engine is a row here.

use crate::config::Engine;

/// One row of the table.
#[derive(Debug)]
struct EngineRow {
    engine: Engine,
    /// A path that answers 200 when the engine can take requests.
    check: &'static str,
    facts: EngineFacts,
}

/// What is known besides.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineFacts {
    /// The path that tells the version, and where in its JSON.
    pub(super) version: Option<(&'static str, &'static str)>,
    /// Metrics of its load; each by the names it has had, the newest first.
    pub(super) families: &'static [&'static [&'static str]],
    /// How to make it show them.
    pub(super) metrics_remedy: &'static str,
}

const NOTHING: EngineFacts = EngineFacts { version: None, families: &[], metrics_remedy: "" };
const VLLM: EngineFacts = EngineFacts {
    version: Some(("/version", "/version")),
    families: &[
        &["vllm:num_requests_running"],
        &["vllm:num_requests_waiting"],
        &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
    ],
    metrics_remedy: "start vLLM without --disable-log-stats",
};
const SGLANG: EngineFacts = EngineFacts {
    version: Some(("/get_server_info", "/version")),
    families: &[&["sglang:num_running_reqs"], &["sglang:num_queue_reqs"], &["sglang:token_usage"]],
    metrics_remedy: "start SGLang with --enable-metrics",
};
const LLAMACPP: EngineFacts = EngineFacts {
    version: Some(("/props", "/build_info")),
    families: &[&["llamacpp:requests_processing"], &["llamacpp:requests_deferred"]],
    metrics_remedy: "start llama-server with --metrics",
};
const OLLAMA: EngineFacts = EngineFacts { version: Some(("/api/version", "/version")), ..NOTHING };

const fn row(engine: Engine, check: &'static str, facts: EngineFacts) -> EngineRow {
    EngineRow { engine, check, facts }
}

const ENGINES: [EngineRow; 9] = [
    // Every engine we know lists its models, and a list needs the key that requests need.
    row(Engine::Auto, "/v1/models", NOTHING),
    row(Engine::Vllm, "/health", VLLM),
    row(Engine::Sglang, "/health", SGLANG),
    row(Engine::LlamaCpp, "/health", LLAMACPP),
    row(Engine::Ollama, "/api/version", OLLAMA),
    row(Engine::OpenAi, "/v1/models", NOTHING),
    row(Engine::Tgi, "/health", NOTHING),
    row(Engine::TrtLlm, "/health", NOTHING),
    row(Engine::Other, "/v1/models", NOTHING),
];

/// Where an engine's health is asked, unless the configuration names another path.
pub(super) fn check_path(engine: Engine) -> &'static str {
    ENGINES.iter().find(|row| row.engine == engine).map_or("/v1/models", |row| row.check)
}

/// What is known of an engine besides.
pub(super) fn facts(engine: Engine) -> EngineFacts {
    ENGINES.iter().find(|row| row.engine == engine).map_or(NOTHING, |row| row.facts)
}
