//! The operations that each engine serves itself. Requests for other operations are converted if
//! the table of operations has a conversion
//! ([`OperationRow::converts_to`](crate::OperationRow::converts_to)), and rejected otherwise.

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

/// The operations that only llama.cpp and its derivatives serve.
const LLAMACPP_ONLY: Operations = Operations::of(&[
    Operation::NativeCompletion,
    Operation::NativeEmbedding,
    Operation::Infill,
    Operation::ApplyTemplate,
    Operation::InputTokens,
]);
/// An operation that OpenAI's own API has, too.
const INPUT_TOKENS: Operations = Operations::of(&[Operation::InputTokens]);
/// The operations that only Ollama serves.
const OLLAMA_ONLY: Operations = Operations::of(&[
    Operation::OllamaChat,
    Operation::OllamaGenerate,
    Operation::OllamaEmbed,
    Operation::OllamaEmbeddings,
]);
/// The operations of vLLM and SGLang beyond those of OpenAI.
const POOLING: Operations =
    Operations::of(&[Operation::Score, Operation::Classify, Operation::Pooling]);
const TOKENIZERS: Operations = Operations::of(&[Operation::Tokenize, Operation::Detokenize]);
const IMAGES: Operations = Operations::of(&[
    Operation::ImageGenerations,
    Operation::ImageEdits,
    Operation::ImageVariations,
]);
/// The operations that only hosted services and gateways serve.
const HOSTED: Operations = Operations::of(&[Operation::Moderations, Operation::FillInTheMiddle]);
const LLAMACPP_LACKS: Operations = POOLING
    .union(IMAGES)
    .union(HOSTED)
    .union(Operations::of(&[Operation::Speech, Operation::Translations]));
const OLLAMA_LACKS: Operations =
    LLAMACPP_ONLY.union(POOLING).union(TOKENIZERS).union(HOSTED).union(Operations::of(&[
        Operation::Rerank,
        Operation::CountTokens,
        Operation::ImageEdits,
        Operation::ImageVariations,
        Operation::Speech,
        Operation::Translations,
    ]));
const TEXT_ONLY_LACKS: Operations =
    LLAMACPP_ONLY.union(POOLING).union(TOKENIZERS).union(HOSTED).union(IMAGES).union(
        Operations::of(&[
            Operation::Rerank,
            Operation::Messages,
            Operation::CountTokens,
            Operation::Speech,
        ]),
    );
/// The operations of LM Studio: those of OpenAI and Anthropic for text and embeddings.
const LM_STUDIO: Operations = Operations::of(&[
    Operation::Chat,
    Operation::Completions,
    Operation::Embeddings,
    Operation::Responses,
    Operation::Messages,
    Operation::Passthrough,
]);
const ANTHROPIC: Operations =
    Operations::of(&[Operation::Messages, Operation::CountTokens, Operation::Passthrough]);

/// The operations that each engine may serve in some version: all but those that it is known to
/// lack. Engines without a row may serve everything except Ollama's own API.
const NATIVE: &[(Engine, Operations)] = &[
    (Engine::Vllm, all_but(LLAMACPP_ONLY.union(HOSTED).union(IMAGES))),
    (
        Engine::Sglang,
        all_but(LLAMACPP_ONLY.union(HOSTED).union(Operations::of(&[Operation::Pooling]))),
    ),
    (Engine::LlamaCpp, all_but(LLAMACPP_LACKS)),
    (Engine::Ollama, Operations::ALL.without(OLLAMA_LACKS)),
    (Engine::LmStudio, LM_STUDIO),
    (Engine::OpenAi, all_but(LLAMACPP_ONLY.without(INPUT_TOKENS))),
    (Engine::Anthropic, ANTHROPIC),
    (Engine::Tgi, all_but(TEXT_ONLY_LACKS)),
    (Engine::TrtLlm, all_but(TEXT_ONLY_LACKS)),
];

const fn all_but(lacks: Operations) -> Operations {
    Operations::ALL.without(OLLAMA_ONLY).without(lacks)
}

impl Engine {
    /// The name used for `gen_ai.provider.name`.
    pub fn provider(self) -> &'static str {
        match self {
            Self::Auto => "unknown",
            engine => engine.name(),
        }
    }

    /// Returns the operations that the engine may serve itself.
    pub fn operations(self) -> Operations {
        let row = NATIVE.iter().find(|(engine, _)| *engine == self);
        row.map_or(all_but(Operations::of(&[])), |(_, operations)| *operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
