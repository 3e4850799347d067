//! The specification of a mock engine: its name, models, speed and engine kind.

use std::time::Duration;

use penstock_api::{Capabilities, is_same_model};

/// The specification of one mock engine.
#[derive(Debug, Clone)]
pub struct MockSpec {
    /// Its name, which is part of every generated text.
    pub name: String,
    /// The models it serves; any other is a 404.
    pub models: Vec<EngineModel>,
    /// The speed of its responses.
    pub pace: Pace,
    /// The engine whose information pages it imitates.
    pub flavour: Flavour,
    /// The key required on `/v1` and `/api`, as a bearer token or in `x-api-key`.
    pub api_key: Option<String>,
    /// The number of models that fit into its memory, if it loads them on demand; it then reports
    /// them at `/api/ps`.
    pub memory: Option<usize>,
    /// If set, `/metrics` reports the requests in progress, as vLLM does.
    pub reports_load: bool,
    /// If set, [`super::Received::body`] keeps the bytes; off if only the responses matter.
    pub keep_bodies: bool,
}

/// A model that an engine serves.
#[derive(Debug, Clone)]
pub struct EngineModel {
    /// Its name on the wire.
    pub id: String,
    /// The maximum prompt length, in tokens of four characters; a longer prompt is a 400.
    pub context_length: u32,
    /// Its capabilities; a request that needs more is a 400.
    pub capabilities: Capabilities,
}

/// The speed of an engine, and the length of its responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The time from the complete request to the first token.
    pub first_token: Duration,
    /// The time between two tokens.
    pub per_token: Duration,
    /// The length of a response unless the request sets a lower limit.
    pub tokens: u32,
}

/// The engine whose `/v1/models` and other information pages are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// `max_model_len` in `/v1/models`; `/health`, `/version`.
    Vllm,
    /// `meta.n_ctx_train` in `/v1/models`; `/health`, `/props` of the first model.
    LlamaCpp,
    /// `/api/tags`, `/api/show`, `/api/version`, `Ollama is running`; no `/health`.
    Ollama,
    /// A bare `/v1/models`, and `/health`.
    Plain,
}

impl MockSpec {
    /// Creates a plain engine without a key that responds at once and keeps bodies.
    pub fn new(name: &str, models: impl IntoIterator<Item = EngineModel>) -> Self {
        Self {
            name: name.to_owned(),
            models: models.into_iter().collect(),
            pace: Pace::at_once(8),
            flavour: Flavour::Plain,
            api_key: None,
            memory: None,
            reports_load: false,
            keep_bodies: true,
        }
    }

    pub(super) fn model(&self, id: &str) -> Option<&EngineModel> {
        // Ollama takes a name with or without `:latest`; the other engines compare it byte by byte.
        let takes_any = self.flavour == Flavour::Ollama;
        let is_meant = |known: &str| known == id || (takes_any && is_same_model(known, id));
        self.models.iter().find(|model| is_meant(&model.id))
    }
}

impl EngineModel {
    /// Creates a model with all capabilities and a context of 32768 tokens.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), context_length: 32_768, capabilities: Capabilities::ALL }
    }
}

impl Pace {
    /// Creates a pace of `tokens` tokens without delays.
    pub const fn at_once(tokens: u32) -> Self {
        Self { first_token: Duration::ZERO, per_token: Duration::ZERO, tokens }
    }

    /// Returns the time that an engine works before token `index`, counted from 0.
    pub(super) fn before(&self, index: u32) -> Duration {
        if index == 0 { self.first_token } else { self.per_token }
    }

    /// Returns the time for a response of `tokens` tokens.
    pub(super) fn whole(&self, tokens: u32) -> Duration {
        // The first token has its own time: only the others follow at the pace.
        self.first_token + self.per_token.saturating_mul(tokens.saturating_sub(1))
    }
}

/// Returns engines of three kinds: a small text model, one with vision, one with tools and JSON
/// mode.
pub fn fleet() -> [MockSpec; 3] {
    let engine =
        |name: &str, flavour, model: EngineModel, [first_token, per_token]: [u64; 2]| MockSpec {
            flavour,
            pace: Pace {
                first_token: Duration::from_millis(first_token),
                per_token: Duration::from_millis(per_token),
                tokens: 40,
            },
            keep_bodies: false,
            ..MockSpec::new(name, [model])
        };
    let model = |id: &str, context_length, capabilities| EngineModel {
        id: id.to_owned(),
        context_length,
        capabilities,
    };
    let tools = Capabilities::TOOLS.union(Capabilities::JSON_MODE);
    [
        engine("text", Flavour::Vllm, model("llama3:8b", 8192, Capabilities::NONE), [150, 15]),
        engine(
            "vision",
            Flavour::LlamaCpp,
            model("llava:13b", 4096, Capabilities::VISION),
            [250, 22],
        ),
        engine("tools", Flavour::Ollama, model("qwen2.5:14b", 32_768, tools), [300, 30]),
    ]
}

/// Returns the engines of `penstock demo`: those of [`fleet`], and a replica of the text model.
pub fn replicated_fleet() -> Vec<MockSpec> {
    let [text, vision, tools] = fleet();
    let replica = MockSpec { name: "text-2".to_owned(), ..text.clone() };
    vec![text, replica, vision, tools]
}

/// Returns the engines of `penstock demo --traffic`: the same, and further models on the Ollama,
/// two of which fit into its memory.
pub fn traffic_fleet() -> Vec<MockSpec> {
    let mut engines = replicated_fleet();
    let further = ["llama3.2:3b", "nomic-embed-text"].map(|id| EngineModel {
        capabilities: Capabilities::NONE,
        context_length: 8192,
        ..EngineModel::new(id)
    });
    if let Some(tools) = engines.last_mut() {
        tools.models.extend(further);
        tools.memory = Some(2);
    }
    engines
}
