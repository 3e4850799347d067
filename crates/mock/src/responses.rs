//! The responses of an engine: a pure function of the engine and the request, so equal requests get
//! equal bytes and a test can predict them.

mod chat;
mod completions;
mod messages;
mod native;
mod ollama;
mod others;
mod reply;
mod request;
mod responses_api;
mod text;

use std::fmt;
use std::time::Duration;

use penstock_api::{ErrorForm, EventForm, Operation, StreamFraming};
use serde_json::{Value, json};

use super::spec::MockSpec;
use super::wire_head::reason;
use reply::ReplyContent;
use request::ParsedRequest;

/// The creation time in every response: the first second of 2026.
pub(super) const CREATED: u64 = 1_767_225_600;

/// A response that has not been sent yet.
#[derive(Debug)]
pub(super) enum Response {
    Whole(WholeResponse),
    Events(Events),
}

/// A response of known length.
#[derive(Debug)]
pub(super) struct WholeResponse {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// The time that the engine works on it.
    pub(super) wait: Duration,
}

/// A response made of events, drawn one by one so that a long one needs no memory.
pub(super) struct Events {
    pub(super) list: Box<dyn Iterator<Item = StreamEvent> + Send>,
    pub(super) content_type: &'static str,
    /// The keep-alive event of the dialect.
    pub(super) ping: Vec<u8>,
    /// The mid-stream error event of the dialect.
    pub(super) error: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct StreamEvent {
    /// The time that the engine works on it.
    pub(super) wait: Duration,
    pub(super) bytes: Vec<u8>,
    pub(super) is_token: bool,
}

impl fmt::Debug for Events {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Events").finish_non_exhaustive()
    }
}

impl WholeResponse {
    pub(super) fn json(status: u16, body: Vec<u8>) -> Self {
        let content_type = "application/json";
        Self { status, content_type, headers: Vec::new(), body, wait: Duration::ZERO }
    }

    pub(super) fn text(text: String) -> Self {
        Self { content_type: "text/plain", ..Self::json(200, text.into_bytes()) }
    }

    pub(super) fn value(status: u16, value: &Value) -> Self {
        Self::json(status, value.to_string().into_bytes())
    }

    /// Returns the bytes of the response, for a connection that closes after it.
    pub(super) fn to_closing_bytes(&self) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Events {
    fn new(operation: Operation, list: impl Iterator<Item = StreamEvent> + Send + 'static) -> Self {
        let error = error_value(Some(operation), 500, "engine_failed", "The engine failed.");
        let events = "text/event-stream";
        let dialect = operation.row().dialect.row();
        let (content_type, ping, error) = match (dialect.framing, dialect.error_form) {
            // JSON lines have no pings: some clients fail on an empty line.
            (StreamFraming::Lines, _) => {
                ("application/x-ndjson", Vec::new(), format!("{error}\n").into_bytes())
            }
            (StreamFraming::Events, ErrorForm::Typed) => {
                (events, named_event(&json!({"type": "ping"})), named_event(&error))
            }
            (StreamFraming::Events, ErrorForm::Detailed | ErrorForm::Plain) => {
                (events, b": ping\n\n".to_vec(), unnamed_event(&error))
            }
        };
        Self { list: Box::new(list), content_type, ping, error }
    }
}

impl StreamEvent {
    fn at_once(bytes: Vec<u8>) -> Self {
        Self { wait: Duration::ZERO, bytes, is_token: false }
    }

    fn token(wait: Duration, bytes: Vec<u8>) -> Self {
        Self { wait, bytes, is_token: true }
    }
}

/// Responds to a request for work.
pub(super) fn response(
    spec: &MockSpec,
    operation: Operation,
    content_type: &str,
    body: &[u8],
) -> Response {
    let request = match ParsedRequest::read(spec, operation, content_type, body) {
        Ok(request) => request,
        Err(refusal) => return Response::Whole(refusal),
    };
    let wait = spec.pace.first_token;
    let streams = request.body.get("stream").and_then(Value::as_bool);
    let streams = streams.unwrap_or(operation.row().streams_by_default);
    // Ollama takes a request without a prompt as one to load or unload, streamed or not.
    if let Some(change) = ollama::residency(&request, operation) {
        return Response::Whole(WholeResponse { wait, ..WholeResponse::value(200, &change) });
    }
    let Generated { whole, events } = match writer(operation) {
        Writer::Generated(writers) => writers,
        Writer::Whole(write) => return Response::Whole(WholeResponse { wait, ..write(&request) }),
    };
    let reply = ReplyContent::to(&request);
    if streams {
        return Response::Events(events(reply));
    }
    let wait = reply.pace.whole(reply.count());
    Response::Whole(WholeResponse { wait, ..WholeResponse::value(200, &whole(&reply)) })
}

/// The writer of an operation's response.
#[derive(Clone, Copy)]
enum Writer {
    /// Writes generated text, complete or as events.
    Generated(Generated),
    /// Writes a response in one piece.
    Whole(ResponseBuilder),
}

type ResponseBuilder = fn(&ParsedRequest<'_>) -> WholeResponse;

/// The writers of generated text.
#[derive(Clone, Copy)]
struct Generated {
    whole: fn(&ReplyContent) -> Value,
    events: fn(ReplyContent) -> Events,
}

/// The writers of operations that generate no text.
const WHOLE: &[(Operation, ResponseBuilder)] = &[
    (Operation::Embeddings, others::embeddings),
    (Operation::NativeEmbedding, others::native_embedding),
    (Operation::Rerank, others::rerank),
    (Operation::Score, others::score),
    (Operation::Classify, others::classify),
    (Operation::Pooling, others::pooling),
    (Operation::Moderations, others::moderations),
    (Operation::Speech, others::speech),
    (Operation::Transcriptions, others::transcript),
    (Operation::Translations, others::transcript),
    (Operation::ImageGenerations, others::images),
    (Operation::ImageEdits, others::images),
    (Operation::ImageVariations, others::images),
    (Operation::CountTokens, text::count_tokens),
    (Operation::InputTokens, text::input_tokens),
    (Operation::Tokenize, text::tokenize),
    (Operation::Detokenize, text::detokenize),
    (Operation::ApplyTemplate, text::apply_template),
    (Operation::OllamaEmbed, ollama::embed),
    (Operation::OllamaEmbeddings, ollama::embeddings),
    (Operation::Passthrough, text::nothing),
];

fn writer(operation: Operation) -> Writer {
    if let Some((_, write)) = WHOLE.iter().find(|(whole, _)| *whole == operation) {
        return Writer::Whole(*write);
    }
    Writer::Generated(match operation.row().events {
        EventForm::ChatDelta | EventForm::Any => {
            Generated { whole: chat::whole, events: chat::events }
        }
        EventForm::CompletionText => {
            Generated { whole: completions::whole, events: completions::events }
        }
        EventForm::TypedDelta => {
            Generated { whole: responses_api::whole, events: responses_api::events }
        }
        EventForm::BlockDelta => Generated { whole: messages::whole, events: messages::events },
        EventForm::Content => Generated { whole: native::whole, events: native::events },
        EventForm::JsonLine if operation == Operation::OllamaGenerate => {
            Generated { whole: ollama::generate, events: ollama::generate_lines }
        }
        EventForm::JsonLine => Generated { whole: ollama::chat, events: ollama::chat_lines },
    })
}

/// Returns an engine's error in the dialect of the operation.
pub(super) fn refusal(
    operation: Option<Operation>,
    status: u16,
    code: &str,
    message: &str,
) -> WholeResponse {
    WholeResponse::value(status, &error_value(operation, status, code, message))
}

fn error_value(operation: Option<Operation>, status: u16, code: &str, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        404 => "not_found_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    match operation.map(|operation| operation.row().dialect.row().error_form) {
        Some(ErrorForm::Typed) => {
            json!({"type": "error", "error": {"type": kind, "message": message}})
        }
        Some(ErrorForm::Plain) => json!({"error": message}),
        Some(ErrorForm::Detailed) | None => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
    }
}

/// Returns an unnamed event, as in most of OpenAI's streams.
fn unnamed_event(value: &Value) -> Vec<u8> {
    format!("data: {value}\n\n").into_bytes()
}

/// Returns an event named by its type.
fn named_event(value: &Value) -> Vec<u8> {
    let name = value.get("type").and_then(Value::as_str);
    debug_assert!(name.is_some(), "an event has a type: {value}");
    let name = name.unwrap_or("");
    format!("event: {name}\ndata: {value}\n\n").into_bytes()
}

/// Returns a deterministic 64-bit hash (FNV-1a), for ids and invented numbers.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        // FNV-1a: the same on every machine and in every version, unlike the hashes of `std`.
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
