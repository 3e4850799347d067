//! Errors of engines: their text survives in whatever dialect the client speaks.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{Fields, Object, Text, is_string};
use crate::api::{Dialect, ErrorCode, Operation, StreamFraming};

/// The most characters of an error that is not JSON.
const MAX_PLAIN: usize = 2048;

/// What an engine's error says.
#[derive(Debug, Default)]
struct EngineError<'a> {
    message: Cow<'a, str>,
    kind: Option<Text<'a>>,
    param: Option<&'a RawValue>,
    code: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ErrorObject<'a> {
    #[serde(default, borrow)]
    message: Option<Text<'a>>,
    #[serde(default, borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(default, borrow)]
    param: Option<&'a RawValue>,
    #[serde(default, borrow)]
    code: Option<&'a RawValue>,
}

/// Converts the body of an engine's error to the client's dialect. The text survives whatever form it
/// had, and whether or not it was JSON.
pub fn convert_error(client: Operation, status: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_error(client.row().dialect, status, &read_error(body, status), &mut out);
    out
}

/// The event by which a client that has the head of its stream, and no event, sees an engine's error. `code`: what it is
/// called in streams whose errors have no room for an engine's own names.
pub fn convert_error_event(
    client: Operation,
    code: ErrorCode,
    status: u16,
    body: &[u8],
) -> Vec<u8> {
    let error = read_error(body, status);
    if let Some(write) = client.row().unstarted_error {
        return write(code, &error.message);
    }
    let mut out = Vec::with_capacity(256);
    write_error_event(client.row().dialect, status, &error, &mut out);
    out
}

/// The event by which a client whose stream has started sees that the engine failed with `message`.
pub(super) fn write_event(client: Operation, message: &str, out: &mut Vec<u8>) {
    let error = EngineError { message: message.into(), ..EngineError::default() };
    write_error_event(client.row().dialect, 500, &error, out);
}

fn write_error_event(dialect: Dialect, status: u16, error: &EngineError<'_>, out: &mut Vec<u8>) {
    let framing = dialect.row().framing;
    let before = match framing {
        StreamFraming::Lines => "",
        StreamFraming::Events if dialect == Dialect::Anthropic => "event: error\ndata: ",
        StreamFraming::Events => "data: ",
    };
    out.extend_from_slice(before.as_bytes());
    write_error(dialect, status, error, out);
    out.extend_from_slice(framing.event_end());
}

/// The body by which a client sees that the engine failed with `message`.
pub(super) fn write_body(client: Operation, message: &str, out: &mut Vec<u8>) {
    let error = EngineError { message: message.into(), ..EngineError::default() };
    write_error(client.row().dialect, 500, &error, out);
}

/// The text of an `error` member: a string, or an object with `message`.
pub(super) fn message_of(error: &RawValue) -> Cow<'_, str> {
    of_member(error).message
}

/// The words of an engine's error.
pub(super) struct ErrorWords {
    pub(super) message: String,
    pub(super) kind: String,
    /// As it stands in the JSON.
    pub(super) code: String,
}

/// The words of an engine's error, in whatever form it has.
pub(super) fn words_of(body: &[u8]) -> ErrorWords {
    let error = read_error(body, 0);
    ErrorWords {
        kind: error.kind.as_deref().unwrap_or_default().to_owned(),
        code: error.code.map_or("", RawValue::get).to_owned(),
        message: error.message.into_owned(),
    }
}

/// All words of an engine's error in one text.
pub(super) fn text_of(body: &[u8]) -> String {
    let ErrorWords { message, kind, code } = words_of(body);
    format!("{message} {kind} {code}")
}

fn read_error(body: &[u8], status: u16) -> EngineError<'_> {
    let mut error = read_known_form(body)
        .unwrap_or_else(|| EngineError { message: plain_text(body), ..EngineError::default() });
    if error.message.is_empty() {
        error.message = format!("The backend responded with status {status}").into();
    }
    error
}

/// Reads `{"error": "text"}`, `{"error": {"message": …}}`, `{"message": …}` and `{"detail": …}`.
fn read_known_form(body: &[u8]) -> Option<EngineError<'_>> {
    let mut fields = Fields::of_body(body).ok()?;
    if let Some(error) = fields.take("error") {
        return Some(of_member(error));
    }
    if let Some(detail) = fields.take("detail") {
        return Some(of_member(detail));
    }
    let body: ErrorObject<'_> = serde_json::from_slice(body).ok()?;
    body.message.is_some().then(|| of_object(body))
}

fn of_member(error: &RawValue) -> EngineError<'_> {
    if is_string(error) {
        let text = serde_json::from_str(error.get()).unwrap_or_default();
        return EngineError { message: Cow::Owned(text), ..EngineError::default() };
    }
    match serde_json::from_str::<ErrorObject<'_>>(error.get()) {
        Ok(object) if object.message.is_some() => of_object(object),
        _ => EngineError { message: error.get().into(), ..EngineError::default() },
    }
}

fn of_object(object: ErrorObject<'_>) -> EngineError<'_> {
    EngineError {
        message: object.message.map(|text| text.to_string()).unwrap_or_default().into(),
        kind: object.kind,
        param: object.param,
        code: object.code,
    }
}

fn plain_text(body: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(body);
    text.trim().chars().take(MAX_PLAIN).collect::<String>().into()
}

fn write_error(dialect: Dialect, status: u16, error: &EngineError<'_>, out: &mut Vec<u8>) {
    let mut body = Object::new(out);
    if dialect == Dialect::Ollama {
        body.text("error", &error.message);
    } else if dialect == Dialect::Anthropic {
        body.text("type", "error");
        let mut object = body.object("error");
        object.text("type", anthropic_kind(status));
        object.text("message", &error.message);
    } else {
        let mut object = body.object("error");
        object.text("message", &error.message);
        object.text("type", error.kind.as_deref().unwrap_or(openai_kind(status)));
        object.raw("param", error.param.map_or("null", RawValue::get));
        object.raw("code", error.code.map_or("null", RawValue::get));
    }
}

fn openai_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

fn anthropic_kind(status: u16) -> &'static str {
    match status {
        413 => "request_too_large",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ => openai_kind(status),
    }
}
