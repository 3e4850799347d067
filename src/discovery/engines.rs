//! What is known about each engine: where its health is asked, where it tells its version, and where
//! its metrics are. Adding an engine is a row here, and rows for its metrics in `families`.

use super::families::{Fact, names};
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
    /// Where its metrics are; of several the first that is there.
    metrics: &'static [&'static str],
    /// Where a llama.cpp tells of its slots.
    slots: Option<&'static str>,
    /// What of its load it always tells.
    pub(super) told: &'static [Fact],
    /// How to make it show them.
    pub(super) metrics_remedy: &'static str,
}

const LOAD: &[Fact] = &[Fact::Running, Fact::Waiting, Fact::KvUtilization];
const REQUESTS: &[Fact] = &[Fact::Running, Fact::Waiting];
const METRICS: &[&str] = &["/metrics"];
const NOTHING: EngineFacts =
    EngineFacts { version: None, metrics: &[], slots: None, told: &[], metrics_remedy: "" };
const UNKNOWN: EngineFacts = EngineFacts { metrics: METRICS, ..NOTHING };
const VLLM: EngineFacts = EngineFacts {
    version: Some(("/version", "/version")),
    told: LOAD,
    metrics_remedy: "start vLLM without --disable-log-stats",
    ..UNKNOWN
};
const SGLANG: EngineFacts = EngineFacts {
    version: Some(("/get_server_info", "/version")),
    told: LOAD,
    metrics_remedy: "start SGLang with --enable-metrics",
    ..UNKNOWN
};
const LLAMACPP: EngineFacts = EngineFacts {
    version: Some(("/props", "/build_info")),
    told: REQUESTS,
    slots: Some("/slots"),
    metrics_remedy: "start llama-server with --metrics",
    ..UNKNOWN
};
// `trtllm-serve` has JSON at /metrics, and Triton has its metrics there, on another port.
const TRTLLM: EngineFacts =
    EngineFacts { metrics: &["/prometheus/metrics", "/metrics"], ..UNKNOWN };
const OLLAMA: EngineFacts = EngineFacts { version: Some(("/api/version", "/version")), ..NOTHING };

const fn row(engine: Engine, check: &'static str, facts: EngineFacts) -> EngineRow {
    EngineRow { engine, check, facts }
}

const ENGINES: [EngineRow; 9] = [
    // Every engine we know lists its models, and a list needs the key that requests need.
    row(Engine::Auto, "/v1/models", EngineFacts { slots: Some("/slots"), ..UNKNOWN }),
    row(Engine::Vllm, "/health", VLLM),
    row(Engine::Sglang, "/health", SGLANG),
    row(Engine::LlamaCpp, "/health", LLAMACPP),
    row(Engine::Ollama, "/api/version", OLLAMA),
    row(Engine::OpenAi, "/v1/models", NOTHING),
    row(Engine::Tgi, "/health", UNKNOWN),
    row(Engine::TrtLlm, "/health", TRTLLM),
    row(Engine::Other, "/v1/models", UNKNOWN),
];

/// Where an engine's health is asked, unless the configuration names another path.
pub(super) fn check_path(engine: Engine) -> &'static str {
    ENGINES.iter().find(|row| row.engine == engine).map_or("/v1/models", |row| row.check)
}

/// What is known of an engine besides.
pub(super) fn facts(engine: Engine) -> EngineFacts {
    ENGINES.iter().find(|row| row.engine == engine).map_or(NOTHING, |row| row.facts)
}

/// Where an engine's metrics may be, the likeliest first.
pub(super) fn metrics_paths(engine: Engine) -> &'static [&'static str] {
    facts(engine).metrics
}

/// Where an engine may tell of its slots.
pub(super) fn slots_path(engine: Engine) -> Option<&'static str> {
    facts(engine).slots
}

/// The names of the metrics an engine must show, fact by fact, the newest first.
pub(super) fn families(engine: Engine) -> Vec<Vec<&'static str>> {
    facts(engine).told.iter().map(|fact| names(engine, *fact).collect()).collect()
}
