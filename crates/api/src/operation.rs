//! The operations: what a path asks an engine to do, as one table. A row says where the prompt is,
//! how the response's events carry tokens, and how the body is framed.

mod rows;

use super::dialect::Dialect;
use super::errors::ErrorCode;
use super::prompt::PromptField;
use super::stream::StreamFraming;
pub use rows::OPERATIONS;

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
    /// `POST /api/chat`, in Ollama's own form.
    OllamaChat,
    /// `POST /api/generate`, in Ollama's own form.
    OllamaGenerate,
    /// `POST /api/embed`, in Ollama's own form.
    OllamaEmbed,
    /// `POST /api/embeddings`, the older form of `/api/embed`: one vector per request.
    OllamaEmbeddings,
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
    /// `message` or `response` of a JSON line, until a line has `done`: Ollama's own form.
    JsonLine,
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
    /// Whether its response is a stream unless the request says otherwise.
    pub streams_by_default: bool,
    /// What it can be converted to for a backend that does not serve it, the most faithful first.
    pub converts_to: &'static [Operation],
    /// The event that reports a broken stream, where it is not that of the dialect.
    pub stream_error: Option<fn(ErrorCode, &str) -> Vec<u8>>,
    /// The event that reports an error of a stream before its first event, where it is not that of the dialect.
    pub unstarted_error: Option<fn(ErrorCode, &str) -> Vec<u8>>,
    /// `gen_ai.operation.name` of the OpenTelemetry conventions.
    pub gen_ai_name: &'static str,
}

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
pub fn error_event(
    operation: Operation,
    framing: StreamFraming,
    code: ErrorCode,
    message: &str,
) -> Vec<u8> {
    let row = operation.row();
    let dialect = match framing {
        StreamFraming::Events => row.dialect,
        StreamFraming::Lines => Dialect::Ollama,
    };
    row.stream_error.unwrap_or(dialect.row().stream_error)(code, message)
}

/// The event that reports an error to a client that has the head of its stream and no event.
pub fn unstarted_error_event(operation: Operation, code: ErrorCode, message: &str) -> Vec<u8> {
    let row = operation.row();
    row.unstarted_error.unwrap_or(row.dialect.row().stream_error)(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PROMPT_FIELDS;

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
