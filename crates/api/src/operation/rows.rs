//! The rows of the operation table.

use super::{BodyFormat, Effect, EventForm, Operation, OperationRow, ResultFormat, Work};
use crate::dialect::{self, Dialect};
use crate::prompt::{Layout, PromptField, counted, images, main, system};

const fn row(
    operation: Operation,
    paths: &'static [&'static str],
    prompt: &'static [PromptField],
    gen_ai_name: &'static str,
) -> OperationRow {
    OperationRow {
        operation,
        name: operation.name(),
        paths,
        dialect: Dialect::OpenAi,
        body: BodyFormat::Json,
        result: ResultFormat::Json,
        prompt,
        work: Work::Inference,
        effect: Effect::None,
        model_is_optional: false,
        events: EventForm::Any,
        streams_by_default: false,
        converts_to: &[],
        stream_error: None,
        unstarted_error: None,
        gen_ai_name,
    }
}

/// An operation that generates text.
const fn generation(row: OperationRow, events: EventForm) -> OperationRow {
    OperationRow { work: Work::Generation, events, ..row }
}

/// An operation whose requests can be converted.
const fn convertible(row: OperationRow, converts_to: &'static [Operation]) -> OperationRow {
    OperationRow { converts_to, ..row }
}

/// An operation of Ollama's own API that generates text.
const fn ollama(
    operation: Operation,
    paths: &'static [&'static str],
    prompt: &'static [PromptField],
    gen_ai_name: &'static str,
) -> OperationRow {
    let row = row(operation, paths, prompt, gen_ai_name);
    OperationRow {
        dialect: Dialect::Ollama,
        streams_by_default: true,
        ..generation(row, EventForm::JsonLine)
    }
}

/// An operation that does not run the model.
const fn text(row: OperationRow) -> OperationRow {
    OperationRow { work: Work::Text, ..row }
}

/// An operation on a file, which the request uploads.
const fn upload(row: OperationRow) -> OperationRow {
    OperationRow { body: BodyFormat::Multipart, effect: Effect::Lasting, ..row }
}

/// An operation on images. OpenAI picks a model for requests without one.
const fn image(operation: Operation, paths: &'static [&'static str]) -> OperationRow {
    let row = row(operation, paths, &[], "generate_content");
    OperationRow { model_is_optional: true, ..upload(row) }
}

/// An operation that makes text of an audio file.
const fn audio(operation: Operation, paths: &'static [&'static str]) -> OperationRow {
    let row = row(operation, paths, &[], "generate_content");
    OperationRow { result: ResultFormat::Text, ..upload(row) }
}

const CHAT_PROMPT: &[PromptField] = &[main("messages", Layout::Messages)];
const PLAIN_PROMPT: &[PromptField] = &[main("prompt", Layout::Plain)];
const PLAIN_INPUT: &[PromptField] = &[main("input", Layout::Plain)];
const MESSAGES_PROMPT: &[PromptField] =
    &[main("messages", Layout::Messages), system("system", Layout::Content)];
const RESPONSES_PROMPT: &[PromptField] =
    &[main("input", Layout::Items), system("instructions", Layout::Content)];
/// The APIs of TEI and llama.cpp have `texts` in place of `documents`.
const RERANK_PROMPT: &[PromptField] = &[counted("query"), counted("documents"), counted("texts")];
const SCORE_PROMPT: &[PromptField] =
    &[counted("text_1"), counted("text_2"), counted("query"), counted("documents")];
const POOLING_PROMPT: &[PromptField] =
    &[main("input", Layout::Plain), main("messages", Layout::Items)];
const TOKENIZE_PROMPT: &[PromptField] =
    &[counted("content"), counted("prompt"), main("messages", Layout::Items)];
const NATIVE_PROMPT: &[PromptField] = &[main("prompt", Layout::Plain), images("image_data")];
const EMBEDDING_PROMPT: &[PromptField] =
    &[counted("content"), counted("input"), images("image_data")];
/// The files of `input_extra` come first in what the model reads.
const INFILL_PROMPT: &[PromptField] = &[
    main("input_prefix", Layout::Plain),
    system("input_extra", Layout::Joined),
    counted("input_suffix"),
    counted("prompt"),
];
const MIDDLE_PROMPT: &[PromptField] = &[main("prompt", Layout::Plain), counted("suffix")];

const OLLAMA_CHAT_PROMPT: &[PromptField] = &[main("messages", Layout::MessagesWithImages)];
/// `context` holds the tokens of an earlier response.
const GENERATE_PROMPT: &[PromptField] = &[
    main("prompt", Layout::Plain),
    system("system", Layout::Content),
    counted("suffix"),
    counted("context"),
];

/// Every operation, in the order of [`Operation`].
pub const OPERATIONS: &[OperationRow] = &[
    OperationRow {
        converts_to: &[Operation::Messages, Operation::OllamaChat],
        ..generation(
            row(
                Operation::Chat,
                &["/v1/chat/completions", "/chat/completions"],
                CHAT_PROMPT,
                "chat",
            ),
            EventForm::ChatDelta,
        )
    },
    OperationRow {
        converts_to: &[Operation::OllamaGenerate],
        ..generation(
            row(Operation::Completions, &["/v1/completions"], MIDDLE_PROMPT, "text_completion"),
            EventForm::CompletionText,
        )
    },
    convertible(
        row(Operation::Embeddings, &["/v1/embeddings"], POOLING_PROMPT, "embeddings"),
        &[Operation::OllamaEmbed],
    ),
    OperationRow {
        effect: Effect::StoredResponse,
        stream_error: Some(dialect::response_failed),
        unstarted_error: Some(dialect::response_refused),
        converts_to: &[Operation::Chat, Operation::Messages, Operation::OllamaChat],
        ..generation(
            row(Operation::Responses, &["/v1/responses", "/responses"], RESPONSES_PROMPT, "chat"),
            EventForm::TypedDelta,
        )
    },
    OperationRow {
        dialect: Dialect::Anthropic,
        converts_to: &[Operation::Chat, Operation::OllamaChat],
        ..generation(
            row(Operation::Messages, &["/v1/messages", "/messages"], MESSAGES_PROMPT, "chat"),
            EventForm::BlockDelta,
        )
    },
    row(
        Operation::Rerank,
        &["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"],
        RERANK_PROMPT,
        "rerank",
    ),
    row(Operation::Score, &["/v1/score", "/score"], SCORE_PROMPT, "score"),
    OperationRow {
        model_is_optional: true,
        ..row(Operation::Moderations, &["/v1/moderations"], PLAIN_INPUT, "moderation")
    },
    OperationRow {
        result: ResultFormat::Audio,
        effect: Effect::Lasting,
        ..row(Operation::Speech, &["/v1/audio/speech"], PLAIN_INPUT, "generate_content")
    },
    audio(Operation::Transcriptions, &["/v1/audio/transcriptions"]),
    audio(Operation::Translations, &["/v1/audio/translations"]),
    OperationRow {
        body: BodyFormat::Json,
        prompt: PLAIN_PROMPT,
        ..image(Operation::ImageGenerations, &["/v1/images/generations"])
    },
    image(Operation::ImageEdits, &["/v1/images/edits"]),
    image(Operation::ImageVariations, &["/v1/images/variations"]),
    OperationRow {
        dialect: Dialect::Anthropic,
        converts_to: &[Operation::ApplyTemplate, Operation::Tokenize],
        ..text(row(
            Operation::CountTokens,
            &["/v1/messages/count_tokens", "/messages/count_tokens"],
            MESSAGES_PROMPT,
            "count_tokens",
        ))
    },
    text(row(
        Operation::InputTokens,
        &["/v1/responses/input_tokens", "/responses/input_tokens"],
        RESPONSES_PROMPT,
        "count_tokens",
    )),
    row(Operation::Classify, &["/classify", "/v1/classify"], POOLING_PROMPT, "classify"),
    row(Operation::Pooling, &["/pooling"], POOLING_PROMPT, "pooling"),
    text(row(Operation::Tokenize, &["/tokenize", "/v1/tokenize"], TOKENIZE_PROMPT, "tokenize")),
    text(row(
        Operation::Detokenize,
        &["/detokenize", "/v1/detokenize"],
        &[counted("tokens")],
        "detokenize",
    )),
    text(row(Operation::ApplyTemplate, &["/apply-template"], CHAT_PROMPT, "apply_template")),
    generation(
        row(
            Operation::NativeCompletion,
            &["/completion", "/completions"],
            NATIVE_PROMPT,
            "text_completion",
        ),
        EventForm::Content,
    ),
    row(Operation::NativeEmbedding, &["/embedding", "/embeddings"], EMBEDDING_PROMPT, "embeddings"),
    generation(
        row(Operation::Infill, &["/infill"], INFILL_PROMPT, "text_completion"),
        EventForm::Content,
    ),
    generation(
        row(Operation::FillInTheMiddle, &["/v1/fim/completions"], MIDDLE_PROMPT, "text_completion"),
        EventForm::ChatDelta,
    ),
    convertible(
        ollama(Operation::OllamaChat, &["/api/chat"], OLLAMA_CHAT_PROMPT, "chat"),
        &[Operation::Chat, Operation::Messages],
    ),
    convertible(
        ollama(Operation::OllamaGenerate, &["/api/generate"], GENERATE_PROMPT, "text_completion"),
        &[Operation::Chat, Operation::Completions, Operation::Messages],
    ),
    OperationRow {
        dialect: Dialect::Ollama,
        converts_to: &[Operation::Embeddings],
        ..row(Operation::OllamaEmbed, &["/api/embed"], PLAIN_INPUT, "embeddings")
    },
    OperationRow {
        dialect: Dialect::Ollama,
        converts_to: &[Operation::Embeddings],
        ..row(Operation::OllamaEmbeddings, &["/api/embeddings"], PLAIN_PROMPT, "embeddings")
    },
    OperationRow {
        // Its path may stand for anything.
        effect: Effect::Lasting,
        ..text(row(Operation::Passthrough, &[], &[], "passthrough"))
    },
];
