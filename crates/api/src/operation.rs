//! The operations that engines perform, as one table. A row describes the paths of an operation,
//! the prompt in its body, the framing of the body, and the tokens in the events of its response.

mod rows;

use super::dialect::Dialect;
use super::errors::ErrorCode;
use super::prompt::{Layout, PromptField, PromptPlace};
use super::stream::StreamFraming;
use crate::named;
pub use rows::OPERATIONS;

named! {
    /// An operation that a path requests from an engine.
    #[derive(PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Operation {
        /// `POST /v1/chat/completions`
        Chat = "chat",
        /// `POST /v1/completions`
        Completions = "completions",
        /// `POST /v1/embeddings`
        Embeddings = "embeddings",
        /// `POST /v1/responses`
        Responses = "responses",
        /// `POST /v1/messages`
        Messages = "messages",
        /// `POST /v1/rerank`
        Rerank = "rerank",
        /// `POST /v1/score`
        Score = "score",
        /// `POST /v1/moderations`
        Moderations = "moderations",
        /// `POST /v1/audio/speech`
        Speech = "speech",
        /// `POST /v1/audio/transcriptions`
        Transcriptions = "transcriptions",
        /// `POST /v1/audio/translations`
        Translations = "translations",
        /// `POST /v1/images/generations`
        ImageGenerations = "image_generations",
        /// `POST /v1/images/edits`
        ImageEdits = "image_edits",
        /// `POST /v1/images/variations`
        ImageVariations = "image_variations",
        /// `POST /v1/messages/count_tokens`
        CountTokens = "count_tokens",
        /// `POST /v1/responses/input_tokens`
        InputTokens = "input_tokens",
        /// `POST /classify`
        Classify = "classify",
        /// `POST /pooling`
        Pooling = "pooling",
        /// `POST /tokenize`
        Tokenize = "tokenize",
        /// `POST /detokenize`
        Detokenize = "detokenize",
        /// `POST /apply-template`
        ApplyTemplate = "apply_template",
        /// `POST /completion`, in llama.cpp's own form.
        NativeCompletion = "native_completion",
        /// `POST /embedding`, in llama.cpp's own form.
        NativeEmbedding = "native_embedding",
        /// `POST /infill`
        Infill = "infill",
        /// `POST /v1/fim/completions`
        FillInTheMiddle = "fim",
        /// `POST /api/chat`, in Ollama's own form.
        OllamaChat = "ollama_chat",
        /// `POST /api/generate`, in Ollama's own form.
        OllamaGenerate = "ollama_generate",
        /// `POST /api/embed`, in Ollama's own form.
        OllamaEmbed = "ollama_embed",
        /// `POST /api/embeddings`, the older form of `/api/embed`: one vector per request.
        OllamaEmbeddings = "ollama_embeddings",
        /// A request of `routing.passthrough` or for a stored response: any method, the path
        /// unchanged.
        Passthrough = "passthrough",
    }
}

/// The framing of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    /// One JSON object.
    Json,
    /// `multipart/form-data` with a `model` field.
    Multipart,
}

/// The content of a whole result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultFormat {
    /// One JSON object or array.
    Json,
    /// JSON, or plain text such as subtitles, which may be empty: a sound may have no words.
    Text,
    /// Sound, as it is.
    Audio,
}

/// The effect of a request beside its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// No effect: a second request is as good as the first.
    None,
    /// The engine stores the response, unless the request switches that off (`store`).
    StoredResponse,
    /// A cost or a change that a second request would repeat.
    Lasting,
}

/// The work of an engine on the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It computes the prompt into its prefix cache, and generates text.
    Generation,
    /// It runs the model once, and keeps nothing of the prompt.
    Inference,
    /// It counts or formats text, without the model: any length is fine.
    Text,
}

/// The form in which the events of a response stream carry tokens.
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
    /// The operation that the row describes.
    pub operation: Operation,
    /// Its name in configuration, metrics and messages.
    pub name: &'static str,
    /// Its paths, always with POST. Requests are forwarded to the first path, which every engine
    /// with this operation serves. If there is none, they go to the path that the client sent.
    pub paths: &'static [&'static str],
    /// Its dialect: the format of errors and keys.
    pub dialect: Dialect,
    /// The framing of its body.
    pub body: BodyFormat,
    /// The content of its result, if that is no stream.
    pub result: ResultFormat,
    /// The members of a JSON body that hold the prompt.
    pub prompt: &'static [PromptField],
    /// The engine's work on the prompt.
    pub work: Work,
    /// Its effect beside the response.
    pub effect: Effect,
    /// True if its API lets a client leave out `model`.
    pub model_is_optional: bool,
    /// The form of tokens in its events.
    pub events: EventForm,
    /// True if its response is a stream unless the request says otherwise.
    pub streams_by_default: bool,
    /// The operations it can be converted to for a backend that does not serve it, the most
    /// faithful first.
    pub converts_to: &'static [Operation],
    /// Writes the event that reports a broken stream, if it differs from the dialect's.
    pub stream_error: Option<fn(ErrorCode, &str) -> Vec<u8>>,
    /// Writes the event that reports an error before the first event, if it differs from the
    /// dialect's.
    pub unstarted_error: Option<fn(ErrorCode, &str) -> Vec<u8>>,
    /// `gen_ai.operation.name` of the OpenTelemetry conventions.
    pub gen_ai_name: &'static str,
}

impl Operation {
    /// Returns this operation's row of [`OPERATIONS`].
    #[expect(clippy::indexing_slicing, reason = "a test checks that the rows are in order")]
    pub fn row(self) -> &'static OperationRow {
        &OPERATIONS[self as usize]
    }

    /// Returns the operation called by `path`.
    pub fn from_path(path: &str) -> Option<Self> {
        OPERATIONS.iter().find(|row| row.paths.contains(&path)).map(|row| row.operation)
    }
}

impl OperationRow {
    /// Returns the path that requests are forwarded to; `None` for the path that the client sent.
    pub fn path(&self) -> Option<&'static str> {
        self.paths.first().copied()
    }

    /// Returns the member that holds the conversation of a request that generates text; `None` if
    /// its prompt is no list of messages.
    pub fn messages_member(&self) -> Option<&'static str> {
        let main = self.prompt.iter().find(|field| field.place == PromptPlace::Main);
        let main = main.filter(|_| self.work == Work::Generation)?;
        (main.layout != Layout::Plain).then_some(main.name)
    }
}

/// Returns the event that reports an error to a client whose stream has already started.
pub fn error_event(
    operation: Operation,
    framing: StreamFraming,
    code: ErrorCode,
    message: &str,
) -> Vec<u8> {
    let row = operation.row();
    let dialect = match framing {
        StreamFraming::Events => row.dialect,
        // The row of a passthrough does not know the API of its stream; the framing shows it.
        StreamFraming::Lines => Dialect::Ollama,
    };
    row.stream_error.unwrap_or(dialect.row().stream_error)(code, message)
}

/// Returns the event that reports an error to a client with the head of its stream and no event.
pub fn unstarted_error_event(operation: Operation, code: ErrorCode, message: &str) -> Vec<u8> {
    let row = operation.row();
    row.unstarted_error.unwrap_or(row.dialect.row().stream_error)(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_PROMPT_FIELDS;

    #[test]
    fn table_has_a_row_per_operation_in_order() {
        for (index, row) in OPERATIONS.iter().enumerate() {
            assert_eq!(row.operation as usize, index, "{}", row.name);
            for path in row.paths {
                assert_eq!(Operation::from_path(path), Some(row.operation), "{path}");
                assert_eq!(Dialect::of_path(path.as_bytes()), row.dialect, "{path}");
            }
            assert!(row.prompt.len() <= MAX_PROMPT_FIELDS, "{}", row.name);
        }
    }

    #[test]
    fn conversations_are_lists_of_messages() {
        let with_messages = OPERATIONS.iter().filter(|row| row.messages_member().is_some());
        let names: Vec<_> = with_messages.map(|row| row.name).collect();
        assert_eq!(names, ["chat", "responses", "messages", "ollama_chat"]);
        assert_eq!(Operation::Responses.row().messages_member(), Some("input"));
    }

    #[test]
    fn operations_with_an_effect_are_not_repeated() {
        let with = |effect| {
            let rows = OPERATIONS.iter().filter(move |row| row.effect == effect);
            rows.map(|row| row.name).collect::<Vec<_>>()
        };
        assert_eq!(with(Effect::StoredResponse), ["responses"]);
        let lasting = with(Effect::Lasting);
        let uploads = OPERATIONS.iter().filter(|row| row.body == BodyFormat::Multipart);
        assert!(uploads.clone().count() > 0);
        assert!(uploads.clone().all(|row| row.effect == Effect::Lasting));
        assert_eq!(lasting.len(), uploads.count() + 3, "{lasting:?}");
        for name in ["passthrough", "speech", "image_generations"] {
            assert!(lasting.contains(&name), "{name}");
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
