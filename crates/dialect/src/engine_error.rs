//! Errors of engines: their text is kept in the client's dialect.

use penstock_api::{Dialect, ErrorCode, ErrorForm, Operation};
use serde_json::value::RawValue;

use super::context_shift::recognized_words;
use super::error_body::{EngineError, read_error};
use super::json::ObjectWriter;

/// An engine's error, for a client of another API.
struct Reported<'a> {
    error: EngineError<'a>,
    /// True if the prompt was too long; the message then has the phrase that the client recognizes.
    is_too_long: bool,
}

impl<'a> Reported<'a> {
    fn of_body(body: &'a [u8], status: u16) -> Self {
        Self::of_error(read_error(body, status), body)
    }

    fn of_message(message: &'a str) -> Self {
        let error = EngineError { message: message.into(), ..EngineError::default() };
        Self::of_error(error, message.as_bytes())
    }

    fn of_error(mut error: EngineError<'a>, body: &[u8]) -> Self {
        let words = recognized_words(&error.message, body);
        let is_too_long = words.is_some();
        if let Some(words) = words.filter(|words| !words.is_empty()) {
            error.message = format!("{}: {words}", error.message).into();
        }
        Self { error, is_too_long }
    }
}

/// Converts the body of an engine's error to the client's dialect. The text is kept whatever its
/// form, even if it was not JSON.
pub fn convert_error(client: Operation, status: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_error(client.row().dialect, status, &Reported::of_body(body, status), &mut out);
    out
}

/// Returns the event that reports an engine's error to a client that has the head of its stream,
/// and no event. `code` is its name in streams whose errors have no room for an engine's own names.
pub fn convert_error_event(
    client: Operation,
    code: ErrorCode,
    status: u16,
    body: &[u8],
) -> Vec<u8> {
    let reported = Reported::of_body(body, status);
    if let Some(write) = client.row().unstarted_error {
        return write(code, &reported.error.message);
    }
    let mut out = Vec::with_capacity(256);
    write_error_event(client.row().dialect, status, &reported, &mut out);
    out
}

/// Writes the event that reports an engine's failure with `message` within a started stream.
pub(super) fn write_event(client: Operation, message: &str, out: &mut Vec<u8>) {
    write_error_event(client.row().dialect, 500, &Reported::of_message(message), out);
}

fn write_error_event(dialect: Dialect, status: u16, reported: &Reported<'_>, out: &mut Vec<u8>) {
    let row = dialect.row();
    out.extend_from_slice(row.error_event_start.as_bytes());
    write_error(dialect, status, reported, out);
    out.extend_from_slice(row.framing.event_end());
}

/// Writes the body that reports an engine's failure with `message`.
pub(super) fn write_body(client: Operation, message: &str, out: &mut Vec<u8>) {
    write_error(client.row().dialect, 500, &Reported::of_message(message), out);
}

fn write_error(dialect: Dialect, status: u16, reported: &Reported<'_>, out: &mut Vec<u8>) {
    let error = &reported.error;
    let mut body = ObjectWriter::new(out);
    match dialect.row().error_form {
        ErrorForm::Plain => body.text("error", &error.message),
        ErrorForm::Typed => {
            body.text("type", "error");
            let mut object = body.object("error");
            object.text("type", anthropic_kind(status));
            object.text("message", &error.message);
        }
        ErrorForm::Detailed => {
            let mut object = body.object("error");
            object.text("message", &error.message);
            object.text("type", error.kind.as_deref().unwrap_or(openai_kind(status)));
            object.raw("param", error.param.map_or("null", RawValue::get));
            match error.code.map_or("null", RawValue::get) {
                // opencode reads the code.
                "null" if reported.is_too_long => {
                    object.text("code", ErrorCode::ContextLengthExceeded.row().name);
                }
                code => object.raw("code", code),
            }
        }
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
