//! The engines, and the way in which each behaves, as one table. A new engine is a name and a row
//! here, and a row in `discovery` with its pages and metrics.

mod fields;
mod operation_sets;

pub use fields::EngineFields;
use operation_sets::{
    ANTHROPIC, HOSTED, IMAGES, INPUT_TOKENS, LLAMACPP_LACKS, LLAMACPP_ONLY, LM_STUDIO,
    OLLAMA_LACKS, TEXT_ONLY_LACKS, all_but,
};

use crate::{Operation, Operations, choice};

choice! {
    /// The software a backend runs.
    pub enum Engine {
        /// Detected from the backend's responses.
        Auto = "auto",
        /// vLLM
        Vllm = "vllm",
        /// SGLang
        Sglang = "sglang",
        /// llama.cpp's server
        LlamaCpp = "llamacpp",
        /// Ollama
        Ollama = "ollama",
        /// LM Studio
        LmStudio = "lmstudio",
        /// OpenAI's own API, or a compatible service
        OpenAi = "openai",
        /// Anthropic's own API
        Anthropic = "anthropic",
        /// Text Generation Inference
        Tgi = "tgi",
        /// TensorRT-LLM
        TrtLlm = "trtllm",
        /// Any other server with OpenAI's API
        Other = "other",
    }
}

/// The time at which an engine loads its models into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelLoading {
    /// At its start, or it is a service that has them ready.
    AtStart,
    /// At its start, unless it runs as a router of many models.
    AtStartOrOnDemand,
    /// On demand, as requests need one of its many models.
    OnDemand,
}

/// The way in which an engine schedules requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// By arrival, as soon as the next chunk of the prompt fits.
    Arrival,
    /// The request with the longest cached prefix first.
    LongestPrefix,
    /// As soon as the prompt and its maximum output fit, so that nothing is preempted.
    Reserved,
    /// In slots, each with its own cache.
    Slots {
        /// The number of slots without a setting.
        usual: u32,
    },
}

/// The headers of an API that does not take `Authorization: Bearer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHeaders {
    /// The header of the key.
    pub key: &'static str,
    /// The required header with the version of the API, and its value.
    pub version: (&'static str, &'static str),
}

/// One row of the engine table.
#[derive(Debug)]
pub struct EngineTraits {
    /// The engine.
    pub engine: Engine,
    /// The operations that it may serve itself, in some version. Requests for other operations are
    /// converted if the table of operations has a conversion
    /// ([`OperationRow::converts_to`](crate::OperationRow::converts_to)), and rejected otherwise.
    pub operations: Operations,
    /// The fields beyond OpenAI's own that it understands.
    pub fields: EngineFields,
    /// The time at which it loads models.
    pub loading: ModelLoading,
    /// True if it keeps the prefixes of prompts for later requests by default.
    pub caches_prefixes: bool,
    /// The way in which it schedules requests; `None` if that is unknown.
    pub scheduler: Option<Scheduler>,
    /// The number of requests of a model that it runs at a time without a setting, if it does not
    /// report that number.
    pub unreported_slots: Option<u32>,
    /// True if it may close its connection after a stream without announcing that.
    pub closes_after_stream: bool,
    /// True if it has Ollama's pages and commands for models.
    pub has_ollama_pages: bool,
    /// True if it cuts a prompt to `truncate_prompt_tokens`, or to its context for `truncate`.
    pub cuts_prompts: bool,
    /// True if it loads a model with the context length that a request names (`num_ctx`).
    pub takes_num_ctx: bool,
    /// True if it takes every spelling of a model's name, and responds with the spelling it was
    /// sent.
    pub takes_any_spelling: bool,
    /// True if a model may bring a system prompt along, which no request shows.
    pub has_own_prompts: bool,
    /// True if it is llama.cpp's server, which `/api/config` lists apart from the others.
    pub is_llama_server: bool,
    /// The file format of its models in Ollama's pages, if there is only one.
    pub model_format: &'static str,
    /// The headers of its API; `None` for `Authorization: Bearer`.
    pub key_headers: Option<KeyHeaders>,
    /// The environment variable that sets how long it keeps idle connections, if there is one.
    pub keep_alive_variable: Option<&'static str>,
}

/// An engine without further known traits. It may serve everything except Ollama's own API.
const fn plain(engine: Engine) -> EngineTraits {
    EngineTraits {
        engine,
        operations: all_but(Operations::of(&[])),
        fields: EngineFields::STRICT,
        loading: ModelLoading::AtStart,
        caches_prefixes: false,
        scheduler: None,
        unreported_slots: None,
        closes_after_stream: false,
        has_ollama_pages: false,
        cuts_prompts: false,
        takes_num_ctx: false,
        takes_any_spelling: false,
        has_own_prompts: false,
        is_llama_server: false,
        model_format: "",
        key_headers: None,
        keep_alive_variable: None,
    }
}

/// The fields of vLLM, and of SGLang, which follows it.
const VLLM_FIELDS: EngineFields = EngineFields {
    sampling: &[("top_k", "top_k"), ("min_p", "min_p"), ("repeat_penalty", "repetition_penalty")],
    thinking_member: Some("reasoning_content"),
    takes_template_arguments: true,
    ..EngineFields::STRICT
};

/// The number of requests of a model that Ollama runs at a time without `OLLAMA_NUM_PARALLEL`.
const OLLAMA_SLOTS: u32 = 1;
/// The number of slots of llama.cpp without `--parallel`.
const LLAMA_CPP_SLOTS: u32 = 4;

/// Every engine, in the order of [`Engine`].
pub const ENGINES: &[EngineTraits] = &[
    EngineTraits { cuts_prompts: true, ..plain(Engine::Auto) },
    EngineTraits {
        operations: all_but(LLAMACPP_ONLY.union(HOSTED).union(IMAGES)),
        fields: VLLM_FIELDS,
        caches_prefixes: true,
        scheduler: Some(Scheduler::Arrival),
        cuts_prompts: true,
        keep_alive_variable: Some("VLLM_HTTP_TIMEOUT_KEEP_ALIVE"),
        ..plain(Engine::Vllm)
    },
    EngineTraits {
        operations: all_but(
            LLAMACPP_ONLY.union(HOSTED).union(Operations::of(&[Operation::Pooling])),
        ),
        fields: VLLM_FIELDS,
        caches_prefixes: true,
        scheduler: Some(Scheduler::LongestPrefix),
        ..plain(Engine::Sglang)
    },
    EngineTraits {
        operations: all_but(LLAMACPP_LACKS),
        fields: EngineFields {
            takes_unknown_options: true,
            thinking_member: Some("reasoning_content"),
            takes_template_arguments: true,
            ..EngineFields::STRICT
        },
        loading: ModelLoading::AtStartOrOnDemand,
        caches_prefixes: true,
        scheduler: Some(Scheduler::Slots { usual: LLAMA_CPP_SLOTS }),
        closes_after_stream: true,
        is_llama_server: true,
        model_format: "gguf",
        ..plain(Engine::LlamaCpp)
    },
    EngineTraits {
        operations: Operations::ALL.without(OLLAMA_LACKS),
        fields: EngineFields { thinking_member: Some("reasoning"), ..EngineFields::STRICT },
        loading: ModelLoading::OnDemand,
        scheduler: Some(Scheduler::Slots { usual: OLLAMA_SLOTS }),
        unreported_slots: Some(OLLAMA_SLOTS),
        has_ollama_pages: true,
        takes_num_ctx: true,
        takes_any_spelling: true,
        has_own_prompts: true,
        ..plain(Engine::Ollama)
    },
    EngineTraits {
        operations: LM_STUDIO,
        fields: EngineFields {
            sampling: &[("top_k", "top_k"), ("repeat_penalty", "repeat_penalty")],
            takes_ttl: true,
            ..EngineFields::STRICT
        },
        loading: ModelLoading::OnDemand,
        ..plain(Engine::LmStudio)
    },
    EngineTraits {
        operations: all_but(LLAMACPP_ONLY.without(INPUT_TOKENS)),
        fields: EngineFields { has_completion_limit: true, ..EngineFields::STRICT },
        caches_prefixes: true,
        ..plain(Engine::OpenAi)
    },
    EngineTraits {
        operations: ANTHROPIC,
        // Its cache works only where a client marks a prefix, and then for all of its addresses:
        // no backend is better than another one.
        caches_prefixes: false,
        key_headers: Some(KeyHeaders {
            key: "x-api-key",
            version: ("anthropic-version", "2023-06-01"),
        }),
        ..plain(Engine::Anthropic)
    },
    EngineTraits {
        operations: all_but(TEXT_ONLY_LACKS),
        caches_prefixes: true,
        ..plain(Engine::Tgi)
    },
    EngineTraits {
        operations: all_but(TEXT_ONLY_LACKS),
        caches_prefixes: true,
        // The default of its capacity scheduler, `GUARANTEED_NO_EVICT`.
        scheduler: Some(Scheduler::Reserved),
        cuts_prompts: true,
        ..plain(Engine::TrtLlm)
    },
    // Among others TEI.
    EngineTraits { cuts_prompts: true, ..plain(Engine::Other) },
];

impl Engine {
    /// Returns the engine's row of [`ENGINES`].
    #[expect(clippy::indexing_slicing, reason = "a test checks that the rows are in order")]
    #[inline]
    pub fn row(self) -> &'static EngineTraits {
        &ENGINES[self as usize]
    }

    /// The name used for `gen_ai.provider.name`.
    pub fn provider(self) -> &'static str {
        match self {
            Self::Auto => "unknown",
            engine => engine.name(),
        }
    }

    /// Returns the operations that the engine may serve itself.
    pub fn operations(self) -> Operations {
        self.row().operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_row_per_engine_in_order() {
        let rows: Vec<Engine> = ENGINES.iter().map(|row| row.engine).collect();
        assert_eq!(rows, Engine::ALL);
    }

    #[test]
    fn every_engine_can_serve_every_chat_api() {
        let chats =
            [Operation::Chat, Operation::Messages, Operation::OllamaChat, Operation::Responses];
        for engine in Engine::ALL {
            for operation in chats {
                let target = engine.operations().target_of(operation);
                assert!(target.is_some(), "{} on {}", operation.name(), engine.name());
            }
        }
    }

    #[test]
    fn operations_are_converted_only_where_the_engine_lacks_them() {
        let target =
            |operation: Operation, engine: Engine| engine.operations().target_of(operation);
        for (operation, engine, expected) in [
            (Operation::OllamaChat, Engine::Ollama, Some(Operation::OllamaChat)),
            (Operation::OllamaChat, Engine::Auto, Some(Operation::Chat)),
            (Operation::OllamaGenerate, Engine::LlamaCpp, Some(Operation::Chat)),
            (Operation::OllamaGenerate, Engine::Anthropic, Some(Operation::Messages)),
            (Operation::OllamaEmbed, Engine::Vllm, Some(Operation::Embeddings)),
            (Operation::OllamaEmbed, Engine::Anthropic, None),
            (Operation::Chat, Engine::Ollama, Some(Operation::Chat)),
            (Operation::Chat, Engine::Anthropic, Some(Operation::Messages)),
            (Operation::Messages, Engine::Tgi, Some(Operation::Chat)),
            (Operation::Rerank, Engine::Ollama, None),
        ] {
            let name = operation.name();
            assert_eq!(target(operation, engine), expected, "{name} on {}", engine.name());
        }
    }
}
