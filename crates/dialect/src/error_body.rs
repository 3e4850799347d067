//! The body of an engine's error, in any of its forms.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::event::is_failure;
use super::json::{Fields, Text, is_string};

/// The maximum number of characters of an error that is not JSON.
const MAX_PLAIN: usize = 2048;

/// The content of an engine's error.
#[derive(Debug, Default)]
pub(super) struct EngineError<'a> {
    pub(super) message: Cow<'a, str>,
    pub(super) kind: Option<Text<'a>>,
    pub(super) param: Option<&'a RawValue>,
    pub(super) code: Option<&'a RawValue>,
    /// The name of the status, as in Google's APIs, or the status itself.
    pub(super) status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ErrorObject<'a> {
    message: Option<Text<'a>>,
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
    param: Option<&'a RawValue>,
    code: Option<&'a RawValue>,
    status: Option<&'a RawValue>,
}

static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"error\""));

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ObjectKind<'a> {
    object: Option<Text<'a>>,
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
}

/// Returns whether the data of an event, or a whole response, is an object of the kind `error`, as
/// those of Anthropic and of older vLLM.
pub(super) fn is_report(data: &[u8]) -> bool {
    // Nearly no event of a response has the word.
    if ERROR.find(data).is_none() {
        return false;
    }
    let is_error = |name: Option<Text<'_>>| name.is_some_and(|name| *name == *"error");
    let named = serde_json::from_slice::<ObjectKind<'_>>(data);
    named.is_ok_and(|named| is_error(named.object) || is_error(named.kind))
}

/// Returns the text of an `error` member: a string, or an object with `message`.
pub(super) fn message_of(error: &RawValue) -> Cow<'_, str> {
    of_member(error).message
}

/// Returns all words of an engine's error: message, type and code, in any form.
pub(super) fn text_of(body: &[u8]) -> String {
    let error = read_error(body, 0);
    let kind = error.kind.as_deref().unwrap_or_default();
    let code = error.code.map_or("", RawValue::get);
    format!("{} {kind} {code}", error.message)
}

/// Reads the body of an error that came with `status`.
pub(super) fn read_error(body: &[u8], status: u16) -> EngineError<'_> {
    let mut error = read_known_form(body)
        .unwrap_or_else(|| EngineError { message: plain_text(body), ..EngineError::default() });
    if error.message.is_empty() {
        error.message = format!("The backend responded with status {status}").into();
    }
    error
}

/// Reads `{"error": "text"}`, `{"error": {"message": …}}`, `{"message": …}`, `{"detail": …}`, the
/// error of a choice, and a list that begins with one of these.
fn read_known_form(body: &[u8]) -> Option<EngineError<'_>> {
    if body.trim_ascii_start().starts_with(b"[") {
        let list: Vec<&RawValue> = serde_json::from_slice(body).ok()?;
        return read_object(list.first()?.get().as_bytes());
    }
    read_object(body)
}

fn read_object(body: &[u8]) -> Option<EngineError<'_>> {
    let mut fields = Fields::of_body(body).ok()?;
    if let Some(error) = fields.take("error").or_else(|| fields.take("detail")) {
        let error = of_member(error);
        // xAI has a text, and the code beside it.
        return Some(EngineError { code: error.code.or_else(|| fields.take("code")), ..error });
    }
    if let Some(error) = fields.take("choices").and_then(of_choices) {
        return Some(error);
    }
    let body: ErrorObject<'_> = serde_json::from_slice(body).ok()?;
    body.message.is_some().then(|| of_object(body))
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct FailedChoice<'a> {
    error: Option<&'a RawValue>,
    finish_reason: Option<Text<'a>>,
}

/// Reads the error of the choices whose generation failed.
fn of_choices(choices: &RawValue) -> Option<EngineError<'_>> {
    let choices: Vec<FailedChoice<'_>> = serde_json::from_str(choices.get()).ok()?;
    let failed = choices
        .into_iter()
        .find(|choice| choice.finish_reason.as_deref().is_some_and(is_failure))?;
    Some(failed.error.map_or_else(
        || EngineError { message: FAILED.into(), ..EngineError::default() },
        of_member,
    ))
}

/// The message of a generation that failed without one.
const FAILED: &str = "The backend reports that the generation failed";

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
        status: object.status,
    }
}

fn plain_text(body: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(body);
    text.trim().chars().take(MAX_PLAIN).collect::<String>().into()
}
