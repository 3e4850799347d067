//! What is known about each engine: where its health is asked. Adding an engine is a row here.

use crate::config::Engine;

/// One row of the table.
#[derive(Debug)]
struct EngineRow {
    engine: Engine,
    /// A path that answers 200 when the engine can take requests.
    check: &'static str,
}

const ENGINES: [EngineRow; 9] = [
    // Every engine we know lists its models, and a list needs the key that requests need.
    EngineRow { engine: Engine::Auto, check: "/v1/models" },
    EngineRow { engine: Engine::Vllm, check: "/health" },
    EngineRow { engine: Engine::Sglang, check: "/health" },
    EngineRow { engine: Engine::LlamaCpp, check: "/health" },
    EngineRow { engine: Engine::Ollama, check: "/api/version" },
    EngineRow { engine: Engine::OpenAi, check: "/v1/models" },
    EngineRow { engine: Engine::Tgi, check: "/health" },
    EngineRow { engine: Engine::TrtLlm, check: "/health" },
    EngineRow { engine: Engine::Other, check: "/v1/models" },
];

/// Where an engine's health is asked, unless the configuration names another path.
pub(super) fn check_path(engine: Engine) -> &'static str {
    ENGINES.iter().find(|row| row.engine == engine).map_or("/v1/models", |row| row.check)
}
