//! The dialects: the form of errors, broken streams and keys in each family of wire formats. A new
//! dialect is a variant and a row here, and its operations in `operation`.

use http::HeaderMap;
use serde_json::{Value, json};

use super::errors::ErrorCode;
use super::stream::StreamFraming;
use crate::choice;

/// The family of wire formats an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dialect {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
    /// `{"error": "text"}`
    Ollama,
}

/// The content of an error response.
#[derive(Debug, Clone, Copy)]
pub struct ErrorReport<'a> {
    /// The cause, which determines status and kind.
    pub code: ErrorCode,
    /// The description of the error.
    pub message: &'a str,
    /// The parameter at fault.
    pub param: Option<&'a str>,
    /// The request's id, for dialects that have it in the body.
    pub request_id: Option<&'a str>,
}

/// One row of the dialect table.
#[derive(Debug)]
pub struct DialectRow {
    /// The dialect that the row describes.
    pub dialect: Dialect,
    /// Its name in messages and documentation.
    pub name: &'static str,
    /// The prefixes of paths whose errors have this dialect, whether or not they are operations.
    pub path_prefixes: &'static [&'static str],
    /// A hint that these clients get in the error of an unknown path.
    pub unknown_path_hint: &'static str,
    /// The separation of the events in its streams.
    pub framing: StreamFraming,
    /// Writes the body of an error.
    pub error_body: fn(&ErrorReport<'_>) -> Value,
    /// Writes the event that reports an error to a client whose stream has already started.
    pub stream_error: fn(ErrorCode, &str) -> Vec<u8>,
    /// The bytes sent now and then to a client that waits for the first event; clients ignore them.
    pub waiting: &'static str,
    /// The header that carries a key besides `Authorization: Bearer`, as its engines expect it.
    pub key_header: Option<&'static str>,
    /// The header of the request's id in responses, besides penstock's own.
    pub request_id_header: Option<&'static str>,
    /// The header by which its clients differ from others on a path that several dialects have.
    pub client_header: Option<&'static str>,
    /// The start of an engine's error in a stream, before its JSON.
    pub error_event_start: &'static str,
    /// The message that its clients look for when a model is unknown.
    pub unknown_model: Option<fn(&str) -> String>,
    /// The member of a request that holds its sampling options, if they are not members themselves.
    pub options_member: Option<&'static str>,
    /// The `system_fingerprint` of its responses when they are converted to OpenAI's form.
    pub fingerprint: Option<&'static str>,
    /// True if its clients read the list of models in pages.
    pub pages_models: bool,
    /// The form of an engine's error that is converted for its clients.
    pub error_form: ErrorForm,
}

/// The form of an error's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    /// An object `error` with message, type, param and code: OpenAI's.
    Detailed,
    /// A `type`, and an object `error` with type and message: Anthropic's.
    Typed,
    /// The message as the value of `error`: Ollama's.
    Plain,
}

/// The first row; the others contain only what differs from it.
const OPENAI: DialectRow = DialectRow {
    dialect: Dialect::OpenAi,
    name: "OpenAI",
    path_prefixes: &[],
    unknown_path_hint: "",
    framing: StreamFraming::Events,
    error_body: |report| openai_error(report.code, report.message, report.param),
    stream_error: |code, message| data_event(&openai_error(code, message, None)),
    // A comment. Without the empty line that often follows one: some SDKs take that line for an
    // event without data, and fail.
    waiting: ": waiting\n",
    key_header: None,
    request_id_header: None,
    client_header: None,
    error_event_start: "data: ",
    unknown_model: None,
    options_member: None,
    fingerprint: None,
    pages_models: false,
    error_form: ErrorForm::Detailed,
};

/// Every dialect, in the order of [`Dialect`]; the first applies to all other paths.
pub const DIALECTS: &[DialectRow] = &[
    OPENAI,
    DialectRow {
        dialect: Dialect::Anthropic,
        name: "Anthropic",
        path_prefixes: &["/v1/messages", "/messages"],
        error_body: |report| {
            let mut body = anthropic_error(report.code, report.message);
            if let (Some(id), Some(fields)) = (report.request_id, body.as_object_mut()) {
                fields.insert("request_id".to_owned(), id.into());
            }
            body
        },
        stream_error: |code, message| named_event("error", &anthropic_error(code, message)),
        waiting: "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        key_header: Some("x-api-key"),
        request_id_header: Some("request-id"),
        client_header: Some("anthropic-version"),
        error_event_start: "event: error\ndata: ",
        pages_models: true,
        error_form: ErrorForm::Typed,
        ..OPENAI
    },
    DialectRow {
        dialect: Dialect::Ollama,
        name: "Ollama",
        path_prefixes: &["/api/"],
        framing: StreamFraming::Lines,
        error_body: |report| json!({ "error": report.message }),
        stream_error: |_code, message| line(&json!({ "error": message })),
        // White space before the JSON of the first line. An empty line is no JSON, and clients fail
        // on it.
        waiting: " ",
        error_event_start: "",
        unknown_model: Some(|name| format!("model '{name}' not found")),
        options_member: Some("options"),
        // As Ollama itself sends it from `/v1/chat/completions`.
        fingerprint: Some("fp_ollama"),
        error_form: ErrorForm::Plain,
        ..OPENAI
    },
];

impl Dialect {
    /// Returns this dialect's row of [`DIALECTS`].
    #[expect(clippy::indexing_slicing, reason = "a test checks that the rows are in order")]
    pub fn row(self) -> &'static DialectRow {
        &DIALECTS[self as usize]
    }

    /// Returns the dialect of the client that sent these headers to a path of several dialects.
    pub fn of_headers(headers: &HeaderMap) -> Option<Self> {
        let sends =
            |row: &&DialectRow| row.client_header.is_some_and(|name| headers.contains_key(name));
        DIALECTS.iter().find(sends).map(|row| row.dialect)
    }

    /// Returns the dialect of errors for `path`.
    pub fn of_path(path: &[u8]) -> Self {
        DIALECTS.iter().find(|row| row.claims(path)).map_or(Self::OpenAi, |row| row.dialect)
    }
}

impl DialectRow {
    fn claims(&self, path: &[u8]) -> bool {
        self.path_prefixes.iter().any(|prefix| path.starts_with(prefix.as_bytes()))
    }
}

/// Returns the body of an error in the client's dialect.
pub fn error_body(dialect: Dialect, report: &ErrorReport<'_>) -> Vec<u8> {
    (dialect.row().error_body)(report).to_string().into_bytes()
}

/// Returns the event that reports a failed response of OpenAI's Responses API.
pub(super) fn response_failed(code: ErrorCode, message: &str) -> Vec<u8> {
    let error = json!({"code": code.row().name, "message": message});
    let event = json!({
        "type": "response.failed",
        "response": {"object": "response", "status": "failed", "error": error, "output": []},
    });
    named_event("response.failed", &event)
}

/// Returns the event that reports an error before the first event of such a response. SDK helpers
/// do not accept `response.failed` as a first event. The event has the field names of the API and
/// those by which SDKs find an error in any stream of this dialect.
pub(super) fn response_refused(code: ErrorCode, message: &str) -> Vec<u8> {
    let mut event = openai_error(code, message, None);
    if let Some(fields) = event.as_object_mut() {
        fields.insert("type".to_owned(), "error".into());
        fields.insert("code".to_owned(), code.row().name.into());
        fields.insert("message".to_owned(), message.into());
        fields.insert("param".to_owned(), Value::Null);
        fields.insert("sequence_number".to_owned(), 0.into());
    }
    named_event("error", &event)
}

fn data_event(data: &Value) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

fn line(data: &Value) -> Vec<u8> {
    format!("{data}\n").into_bytes()
}

fn named_event(name: &str, data: &Value) -> Vec<u8> {
    format!("event: {name}\ndata: {data}\n\n").into_bytes()
}

fn openai_error(code: ErrorCode, message: &str, param: Option<&str>) -> Value {
    let row = code.row();
    json!({
        "error": {"message": message, "type": row.kind, "param": param, "code": row.name}
    })
}

fn anthropic_error(code: ErrorCode, message: &str) -> Value {
    json!({
        "type": "error",
        "error": {"type": code.row().anthropic_kind, "message": message}
    })
}

choice! {
    /// The field that has what the model thinks, in converted chat responses: APIs disagree on its
    /// name.
    pub enum ReasoningField {
        /// `reasoning_content` and `reasoning`.
        Both = "both",
        /// The field of llama.cpp, vLLM and DeepSeek.
        ReasoningContent = "reasoning_content",
        /// The field of Ollama and OpenRouter.
        Reasoning = "reasoning",
        /// The thinking is left out.
        None = "none",
    }
}

#[expect(clippy::derivable_impls, reason = "`choice!` takes no attributes on its values")]
impl Default for ReasoningField {
    fn default() -> Self {
        Self::Both
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_row_per_dialect_in_order() {
        for (index, row) in DIALECTS.iter().enumerate() {
            assert_eq!(row.dialect as usize, index, "{}", row.name);
            assert_eq!(row.dialect.row().name, row.name);
            for prefix in row.path_prefixes {
                assert_eq!(Dialect::of_path(prefix.as_bytes()), row.dialect);
            }
            let event = (row.stream_error)(ErrorCode::UpstreamClosed, "closed");
            let end = row.framing.event_end();
            assert!(event.ends_with(end), "{}: a client can see the end of the event", row.name);
        }
        assert_eq!(Dialect::of_path(b"/v1/messages/batches"), Dialect::Anthropic);
        assert_eq!(Dialect::of_path(b"/v1/chat/completions"), Dialect::OpenAi);
    }

    #[test]
    fn error_bodies_follow_the_dialect() {
        let report = ErrorReport {
            code: ErrorCode::ModelNotFound,
            message: "Model 'x' not found",
            param: Some("model"),
            request_id: Some("id-1"),
        };
        let openai = error_body(Dialect::OpenAi, &report);
        let openai: serde_json::Value = serde_json::from_slice(&openai).unwrap();
        assert_eq!(openai["error"]["code"], "model_not_found");
        assert_eq!(openai["error"]["param"], "model");
        assert_eq!(openai.get("request_id"), None);
        let report = ErrorReport { code: ErrorCode::AllBackendsBusy, message: "busy", ..report };
        let anthropic = error_body(Dialect::Anthropic, &report);
        let anthropic: serde_json::Value = serde_json::from_slice(&anthropic).unwrap();
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "overloaded_error");
        assert_eq!(anthropic["request_id"], "id-1");
    }
}
