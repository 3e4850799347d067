//! The sets of operations in the rows of engines.

use crate::{Operation, Operations};

/// The operations that only llama.cpp and its derivatives serve.
pub(super) const LLAMACPP_ONLY: Operations = Operations::of(&[
    Operation::NativeCompletion,
    Operation::NativeEmbedding,
    Operation::Infill,
    Operation::ApplyTemplate,
    Operation::InputTokens,
]);
/// An operation that OpenAI's own API has, too.
pub(super) const INPUT_TOKENS: Operations = Operations::of(&[Operation::InputTokens]);
/// The operations that only Ollama serves.
const OLLAMA_ONLY: Operations = Operations::of(&[
    Operation::OllamaChat,
    Operation::OllamaGenerate,
    Operation::OllamaEmbed,
    Operation::OllamaEmbeddings,
]);
/// The operations of pooling models, in vLLM and SGLang.
const POOLING: Operations =
    Operations::of(&[Operation::Score, Operation::Classify, Operation::Pooling]);
/// The operations of tokenizers, in vLLM and SGLang.
const TOKENIZERS: Operations = Operations::of(&[Operation::Tokenize, Operation::Detokenize]);
pub(super) const IMAGES: Operations = Operations::of(&[
    Operation::ImageGenerations,
    Operation::ImageEdits,
    Operation::ImageVariations,
]);
/// The operations that only hosted services and gateways serve.
pub(super) const HOSTED: Operations =
    Operations::of(&[Operation::Moderations, Operation::FillInTheMiddle]);
pub(super) const LLAMACPP_LACKS: Operations = POOLING
    .union(IMAGES)
    .union(HOSTED)
    .union(Operations::of(&[Operation::Speech, Operation::Translations]));
pub(super) const OLLAMA_LACKS: Operations =
    LLAMACPP_ONLY.union(POOLING).union(TOKENIZERS).union(HOSTED).union(Operations::of(&[
        Operation::Rerank,
        Operation::CountTokens,
        Operation::ImageEdits,
        Operation::ImageVariations,
        Operation::Speech,
        Operation::Translations,
    ]));
pub(super) const TEXT_ONLY_LACKS: Operations =
    LLAMACPP_ONLY.union(POOLING).union(TOKENIZERS).union(HOSTED).union(IMAGES).union(
        Operations::of(&[
            Operation::Rerank,
            Operation::Messages,
            Operation::CountTokens,
            Operation::Speech,
        ]),
    );
/// The operations of LM Studio: those of OpenAI and Anthropic for text and embeddings.
pub(super) const LM_STUDIO: Operations = Operations::of(&[
    Operation::Chat,
    Operation::Completions,
    Operation::Embeddings,
    Operation::Responses,
    Operation::Messages,
    Operation::Passthrough,
]);
pub(super) const ANTHROPIC: Operations =
    Operations::of(&[Operation::Messages, Operation::CountTokens, Operation::Passthrough]);

/// Returns all operations except those that only Ollama serves, and `lacks`.
pub(super) const fn all_but(lacks: Operations) -> Operations {
    Operations::ALL.without(OLLAMA_ONLY).without(lacks)
}
