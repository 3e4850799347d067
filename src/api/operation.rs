//! The operations: what a path asks an engine to do, as one table. A row says where the prompt is,
//! how the response's events carry tokens, and how the body is framed.

use super::dialect::{self, Dialect};
use super::errors::ErrorCode;
use super::prompt::{Layout, PromptField, counted, main, system};

/// What a path asks an engine to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /v1/moderations`
    Moderations,
    /// `POST /v1/audio/speech`
    Speech,
    /// `POST /v1/audio/transcriptions`
    Transcriptions,
    /// `POST /v1/audio/translations`
    Translations,
    /// `POST /v1/images/generations`
    ImageGenerations,
    /// `POST /v1/images/edits`
    ImageEdits,
    /// `POST /v1/images/variations`
    ImageVariations,
    /// `POST /v1/messages/count_tokens`
    CountTokens,
    /// `POST /v1/responses/input_tokens`
    InputTokens,
    /// `POST /classify`
    Classify,
    /// `POST /pooling`
    Pooling,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
    /// `POST /apply-template`
    ApplyTemplate,
    /// `POST /completion`, in llama.cpp's own form.
    NativeCompletion,
    /// `POST /embedding`, in llama.cpp's own form.
    NativeEmbedding,
    /// `POST /infill`
    Infill,
    /// `POST /v1/fim/completions`
    FillInTheMiddle,
    /// Whatever `routing.passthrough` and stored responses forward: any method, the path as it came.
    Passthrough,
}

/// How an operation's request body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    /// One JSON object.
    Json,
    /// `multipart/form-data` with a `model` field.
    Multipart,
}

/// What an engine does with the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It computes the prompt into its prefix cache, and generates text.
    Generation,
    /// It runs the model once; nothing of the prompt stays.
    Inference,
    /// It counts or formats text, without the model: any length is fine.
    Text,
}

/// How the events of a response stream carry their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventForm {
    /// `choices[].delta`, an object.
    ChatDelta,
    /// `choices[].text`.
    CompletionText,
    /// `delta`, a string, in events whose type ends in `.delta`.
    TypedDelta,
    /// `delta`, an object, in `content_block_delta`.
    BlockDelta,
    /// `content`, a string, until an event has `stop`: llama.cpp's own form.
    Content,
    /// Every event counts as a token.
    Any,
}

/// One row of the operation table.
#[derive(Debug)]
pub struct OperationRow {
    /// The operation.
    pub operation: Operation,
    /// Its name in configuration, metrics and messages.
    pub name: &'static str,
    /// Its paths, always with POST. Requests are forwarded to the first one, which every engine with
    /// this operation serves; without any, to the path that the client sent.
    pub paths: &'static [&'static str],
    /// Its dialect: the format of errors and keys.
    pub dialect: Dialect,
    /// How its body is framed.
    pub body: BodyFormat,
    /// Where the prompt is in a JSON body.
    pub prompt: &'static [PromptField],
    /// What the engine does with the prompt.
    pub work: Work,
    /// Whether its own API lets a client leave out `model`.
    pub model_is_optional: bool,
    /// How its events carry tokens.
    pub events: EventForm,
    /// The event that reports a broken stream, where it is not that of the dialect.
    pub stream_error: Option<fn(ErrorCode, &str) -> Vec<u8>>,
    /// `gen_ai.operation.name` of the OpenTelemetry conventions.
    pub gen_ai_name: &'static str,
}

const fn row(
    operation: Operation,
    name: &'static str,
    paths: &'static [&'static str],
    prompt: &'static [PromptField],
    gen_ai_name: &'static str,
) -> OperationRow {
    OperationRow {
        operation,
        name,
        paths,
        dialect: Dialect::OpenAi,
        body: BodyFormat::Json,
        prompt,
        work: Work::Inference,
        model_is_optional: false,
        events: EventForm::Any,
        stream_error: None,
        gen_ai_name,
    }
}

/// An operation that generates text.
const fn generation(row: OperationRow, events: EventForm) -> OperationRow {
    OperationRow { work: Work::Generation, events, ..row }
}

/// An operation that does not run the model.
const fn text(row: OperationRow) -> OperationRow {
    OperationRow { work: Work::Text, ..row }
}

/// An operation on images. OpenAI picks a model for requests that name none.
const fn image(
    operation: Operation,
    name: &'static str,
    paths: &'static [&'static str],
) -> OperationRow {
    let row = row(operation, name, paths, &[], "generate_content");
    OperationRow { body: BodyFormat::Multipart, model_is_optional: true, ..row }
}

/// An operation on an audio file.
const fn audio(
    operation: Operation,
    name: &'static str,
    paths: &'static [&'static str],
) -> OperationRow {
    let row = row(operation, name, paths, &[], "generate_content");
    OperationRow { body: BodyFormat::Multipart, ..row }
}

const CHAT_PROMPT: &[PromptField] = &[main("messages", Layout::Messages)];
const PLAIN_PROMPT: &[PromptField] = &[main("prompt", Layout::Plain)];
const PLAIN_INPUT: &[PromptField] = &[main("input", Layout::Plain)];
const MESSAGES_PROMPT: &[PromptField] =
    &[main("messages", Layout::Messages), system("system", Layout::Content)];
const RESPONSES_PROMPT: &[PromptField] =
    &[main("input", Layout::Items), system("instructions", Layout::Content)];
const RERANK_PROMPT: &[PromptField] = &[counted("query"), counted("documents")];
const SCORE_PROMPT: &[PromptField] =
    &[counted("text_1"), counted("text_2"), counted("query"), counted("documents")];
const POOLING_PROMPT: &[PromptField] =
    &[main("input", Layout::Plain), main("messages", Layout::Items)];
const TOKENIZE_PROMPT: &[PromptField] =
    &[counted("content"), counted("prompt"), main("messages", Layout::Items)];
const EMBEDDING_PROMPT: &[PromptField] = &[counted("content"), counted("input")];
/// The files of `input_extra` come first in what the model reads.
const INFILL_PROMPT: &[PromptField] = &[
    main("input_prefix", Layout::Plain),
    system("input_extra", Layout::Plain),
    counted("input_suffix"),
    counted("prompt"),
];
const MIDDLE_PROMPT: &[PromptField] = &[main("prompt", Layout::Plain), counted("suffix")];

/// Every operation, in the order of [`Operation`].
pub const OPERATIONS: &[OperationRow] = &[
    generation(
        row(
            Operation::Chat,
            "chat",
            &["/v1/chat/completions", "/chat/completions"],
            CHAT_PROMPT,
            "chat",
        ),
        EventForm::ChatDelta,
    ),
    generation(
        row(
            Operation::Completions,
            "completions",
            &["/v1/completions"],
            PLAIN_PROMPT,
            "text_completion",
        ),
        EventForm::CompletionText,
    ),
    row(Operation::Embeddings, "embeddings", &["/v1/embeddings"], PLAIN_INPUT, "embeddings"),
    OperationRow {
        stream_error: Some(dialect::response_failed),
        ..generation(
            row(
                Operation::Responses,
                "responses",
                &["/v1/responses", "/responses"],
                RESPONSES_PROMPT,
                "chat",
            ),
            EventForm::TypedDelta,
        )
    },
    OperationRow {
        dialect: Dialect::Anthropic,
        ..generation(
            row(
                Operation::Messages,
                "messages",
                &["/v1/messages", "/messages"],
                MESSAGES_PROMPT,
                "chat",
            ),
            EventForm::BlockDelta,
        )
    },
    row(
        Operation::Rerank,
        "rerank",
        &["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"],
        RERANK_PROMPT,
        "rerank",
    ),
    row(Operation::Score, "score", &["/v1/score", "/score"], SCORE_PROMPT, "score"),
    OperationRow {
        model_is_optional: true,
        ..row(
            Operation::Moderations,
            "moderations",
            &["/v1/moderations"],
            PLAIN_INPUT,
            "moderation",
        )
    },
    row(Operation::Speech, "speech", &["/v1/audio/speech"], PLAIN_INPUT, "generate_content"),
    audio(Operation::Transcriptions, "transcriptions", &["/v1/audio/transcriptions"]),
    audio(Operation::Translations, "translations", &["/v1/audio/translations"]),
    OperationRow {
        body: BodyFormat::Json,
        prompt: PLAIN_PROMPT,
        ..image(Operation::ImageGenerations, "image_generations", &["/v1/images/generations"])
    },
    image(Operation::ImageEdits, "image_edits", &["/v1/images/edits"]),
    image(Operation::ImageVariations, "image_variations", &["/v1/images/variations"]),
    OperationRow {
        dialect: Dialect::Anthropic,
        ..text(row(
            Operation::CountTokens,
            "count_tokens",
            &["/v1/messages/count_tokens", "/messages/count_tokens"],
            MESSAGES_PROMPT,
            "count_tokens",
        ))
    },
    text(row(
        Operation::InputTokens,
        "input_tokens",
        &["/v1/responses/input_tokens", "/responses/input_tokens"],
        RESPONSES_PROMPT,
        "count_tokens",
    )),
    row(
        Operation::Classify,
        "classify",
        &["/classify", "/v1/classify"],
        POOLING_PROMPT,
        "classify",
    ),
    row(Operation::Pooling, "pooling", &["/pooling"], POOLING_PROMPT, "pooling"),
    text(row(
        Operation::Tokenize,
        "tokenize",
        &["/tokenize", "/v1/tokenize"],
        TOKENIZE_PROMPT,
        "tokenize",
    )),
    text(row(
        Operation::Detokenize,
        "detokenize",
        &["/detokenize", "/v1/detokenize"],
        &[counted("tokens")],
        "detokenize",
    )),
    text(row(
        Operation::ApplyTemplate,
        "apply_template",
        &["/apply-template"],
        CHAT_PROMPT,
        "apply_template",
    )),
    generation(
        row(
            Operation::NativeCompletion,
            "native_completion",
            &["/completion", "/completions"],
            PLAIN_PROMPT,
            "text_completion",
        ),
        EventForm::Content,
    ),
    row(
        Operation::NativeEmbedding,
        "native_embedding",
        &["/embedding", "/embeddings"],
        EMBEDDING_PROMPT,
        "embeddings",
    ),
    generation(
        row(Operation::Infill, "infill", &["/infill"], INFILL_PROMPT, "text_completion"),
        EventForm::Content,
    ),
    generation(
        row(
            Operation::FillInTheMiddle,
            "fim",
            &["/v1/fim/completions"],
            MIDDLE_PROMPT,
            "text_completion",
        ),
        EventForm::ChatDelta,
    ),
    text(row(Operation::Passthrough, "passthrough", &[], &[], "passthrough")),
];

impl Operation {
    /// This operation's row of [`OPERATIONS`].
    #[expect(
        clippy::indexing_slicing,
        reason = "the table has a row per variant; a test checks the order"
    )]
    pub fn row(self) -> &'static OperationRow {
        &OPERATIONS[self as usize]
    }

    /// The operation called by `path`.
    pub fn from_path(path: &str) -> Option<Self> {
        OPERATIONS.iter().find(|row| row.paths.contains(&path)).map(|row| row.operation)
    }

    /// The name used in configuration, metrics and messages.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

impl OperationRow {
    /// The path that requests are forwarded to; `None` for the path that the client sent.
    pub fn path(&self) -> Option<&'static str> {
        self.paths.first().copied()
    }
}

/// The event that reports an error to a client whose stream has already started.
pub fn error_event(operation: Operation, code: ErrorCode, message: &str) -> Vec<u8> {
    let row = operation.row();
    row.stream_error.unwrap_or(row.dialect.row().stream_error)(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PROMPT_FIELDS;

    #[test]
    fn table_has_a_row_per_operation_in_order() {
        for (index, row) in OPERATIONS.iter().enumerate() {
            assert_eq!(row.operation as usize, index, "{}", row.name);
            for path in row.paths {
                assert_eq!(Operation::from_path(path), Some(row.operation), "{path}");
                assert_eq!(Dialect::of_path(path.as_bytes()), row.dialect, "{path}");
            }
            assert!(row.prompt.len() <= PROMPT_FIELDS, "{}", row.name);
        }
    }

    #[test]
    fn paths_of_an_operation_are_forwarded_to_its_first() {
        for (path, first) in [
            ("/v2/rerank", "/v1/rerank"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/completions", "/completion"),
            ("/embeddings", "/embedding"),
        ] {
            assert_eq!(Operation::from_path(path).unwrap().row().path(), Some(first), "{path}");
        }
    }
}
