//! The meaning of an engine's error, regardless of its status.

mod credit;
mod named_model;
mod quotes;
mod request_size;

use credit::{CREDIT_NAMES, is_for_now};
use named_model::NamedModel;
pub(super) use quotes::RequestText;
use request_size::exceeds_limit;
use serde_json::value::RawValue;

use super::error_body::read_error;

/// The meaning of an engine's error for the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorMeaning {
    /// The backend limits the rate of its client.
    RateLimited,
    /// The request exceeds a limit by itself: no wait helps it.
    TooLarge,
    /// The account with the backend has no credit: only its owner can end that.
    OutOfCredit,
    /// The backend has no room for the request now.
    Overloaded,
    /// The backend does not have the model.
    ModelMissing,
    /// Something else is missing that the client named, such as the model of a tool.
    NamedMissing,
    /// A content policy rejected the prompt.
    Moderated,
    /// Another error.
    Other,
}

const RATE_NAMES: &[&str] =
    &["rate_limit", "ratelimit", "too_many_requests", "resource_exhausted", "insufficient_quota"];
const RATE_PHRASES: &[&str] = &["rate limit", "rate-limit", "too many requests"];
const LOAD_NAMES: &[&str] = &["overload", "service_unavailable"];
const LOAD_PHRASES: &[&str] = &["overload", "server busy", "at capacity", "over capacity"];
const MISSING_PHRASES: &[&str] =
    &["not found", "not_found", "does not exist", "doesn't exist", "no such model"];
const MODERATION: &[&str] =
    &["moderat", "flagged", "content_policy", "content policy", "content_filter", "safety"];

impl ErrorMeaning {
    /// Reads an engine's error. `model` is the backend's name for the model, `request` the body
    /// sent to the backend.
    ///
    /// Names of types and codes are the engine's own. A message may quote the request, so a phrase
    /// in it counts only if the request does not contain it: no client can make a backend look busy
    /// through its prompt.
    pub fn read(error: &[u8], model: &str, request: &[u8]) -> Self {
        // Without a status: the words alone count.
        let error = read_error(error, 0);
        let code = error.code.map_or("", RawValue::get);
        let names =
            format!("{} {code}", error.kind.as_deref().unwrap_or_default()).to_ascii_lowercase();
        // ASCII alone, as in the request: other letters could become a phrase in lower case.
        let message = error.message.to_ascii_lowercase();
        let is_named = |list: &[&str]| list.iter().any(|name| names.contains(name));
        let request = RequestText::new(request);
        let is_said = |list: &[&str]| {
            let said = list.iter().find(|phrase| message.contains(*phrase));
            said.is_some_and(|phrase| !request.may_contain(phrase))
        };
        let has_credit = is_for_now(&message) || !is_named(CREDIT_NAMES);
        // A number is the status that the backend means, whatever the response has.
        match code.trim().trim_matches('"') {
            "402" => return Self::OutOfCredit,
            "429" if has_credit && !exceeds_limit(&message) => return Self::RateLimited,
            "503" | "529" => return Self::Overloaded,
            _ => {}
        }
        if let Some(missing) = missing_model(&names, &error.message, model, &request) {
            missing
        } else if exceeds_limit(&message) {
            Self::TooLarge
        } else if !has_credit {
            Self::OutOfCredit
        } else if is_named(MODERATION) || is_said(MODERATION) {
            Self::Moderated
        } else if is_named(RATE_NAMES) || is_said(RATE_PHRASES) {
            Self::RateLimited
        } else if is_named(LOAD_NAMES) || is_said(LOAD_PHRASES) {
            Self::Overloaded
        } else {
            Self::Other
        }
    }

    /// Returns the status that a response with this error should have had.
    pub fn status(self) -> u16 {
        match self {
            Self::RateLimited | Self::TooLarge => 429,
            Self::OutOfCredit => 402,
            Self::Overloaded => 503,
            Self::ModelMissing | Self::NamedMissing => 404,
            Self::Moderated => 403,
            Self::Other => 502,
        }
    }
}

/// The meaning of an error about a model that is missing; `None` for other errors. `names`: its
/// type and code.
fn missing_model(
    names: &str,
    message: &str,
    model: &str,
    request: &RequestText<'_>,
) -> Option<ErrorMeaning> {
    let said = message.to_ascii_lowercase();
    let is_coded = names.contains("model_not_found")
        || names.contains("not_found") && said.starts_with("model:");
    let lacks = MISSING_PHRASES.iter().any(|phrase| said.contains(phrase));
    if !(is_coded || lacks && said.contains("model")) {
        return None;
    }
    match NamedModel::find(message, model, request) {
        NamedModel::Requested => Some(ErrorMeaning::ModelMissing),
        NamedModel::OfClient => Some(ErrorMeaning::NamedMissing),
        NamedModel::Unknown => is_coded.then_some(ErrorMeaning::ModelMissing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(error: &str) -> ErrorMeaning {
        ErrorMeaning::read(error.as_bytes(), "llama3:8b", b"{}")
    }

    #[test]
    fn errors_are_understood_in_every_form() {
        for (error, expected) in [
            (
                r#"{"error":{"message":"slow down","type":"rate_limit_error"}}"#,
                ErrorMeaning::RateLimited,
            ),
            (r#"{"error":{"message":"x","code":429}}"#, ErrorMeaning::RateLimited),
            (r#"{"error":"Too Many Requests"}"#, ErrorMeaning::RateLimited),
            (
                r#"{"error":{"message":"Tokens: Limit 10, Requested 20","code":429}}"#,
                ErrorMeaning::TooLarge,
            ),
            (
                r#"{"error":{"message":"x","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                ErrorMeaning::OutOfCredit,
            ),
            (r#"{"error":{"message":"Insufficient Balance"}}"#, ErrorMeaning::Other),
            (
                r#"{"error":{"message":"This needs more credits","code":402}}"#,
                ErrorMeaning::OutOfCredit,
            ),
            (
                r#"{"error":{"message":"insufficient_quota: please retry after 26 seconds","code":"429"}}"#,
                ErrorMeaning::RateLimited,
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                ErrorMeaning::Overloaded,
            ),
            (
                r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#,
                ErrorMeaning::Overloaded,
            ),
            (
                r#"{"error":{"message":"The model `llama3:8b` does not exist.","code":404}}"#,
                ErrorMeaning::ModelMissing,
            ),
            (r#"{"error":"model 'llama3:8b' not found"}"#, ErrorMeaning::ModelMissing),
            (
                r#"{"error":{"message":"no","type":"x","code":"model_not_found"}}"#,
                ErrorMeaning::ModelMissing,
            ),
            (
                r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}"#,
                ErrorMeaning::ModelMissing,
            ),
            (
                r#"{"error":{"message":"No such File object: file-1","type":"invalid_request_error"}}"#,
                ErrorMeaning::Other,
            ),
            (
                r#"{"error":{"message":"Your input was flagged","code":403}}"#,
                ErrorMeaning::Moderated,
            ),
            (r#"{"error":"the draft model is not found"}"#, ErrorMeaning::Other),
            (r#"{"detail":"Not Found"}"#, ErrorMeaning::Other),
            ("404 page not found", ErrorMeaning::Other),
            ("", ErrorMeaning::Other),
        ] {
            assert_eq!(meaning(error), expected, "{error}");
        }
    }

    #[test]
    fn model_of_a_tool_is_the_clients_matter() {
        let request = br#"{"model":"m","tools":[{"model":"gpt-image-9"}]}"#;
        for (error, expected) in [
            (
                r#"{"error":{"message":"The model `gpt-image-9` does not exist.","code":"model_not_found"}}"#,
                ErrorMeaning::NamedMissing,
            ),
            (r#"{"error":"model 'gpt-image-9' not found"}"#, ErrorMeaning::NamedMissing),
            (
                r#"{"error":{"message":"The model `other` does not exist.","code":"model_not_found"}}"#,
                ErrorMeaning::ModelMissing,
            ),
            (
                r#"{"error":{"message":"The model `m` does not exist.","code":"model_not_found"}}"#,
                ErrorMeaning::ModelMissing,
            ),
        ] {
            assert_eq!(ErrorMeaning::read(error.as_bytes(), "m", request), expected, "{error}");
        }
    }

    #[test]
    fn quoted_prompt_does_not_make_a_backend_look_busy() {
        let error =
            br#"{"error":{"message":"cannot parse 'I am OVERLOADED'","type":"server_error"}}"#;
        let read = |request: &[u8]| ErrorMeaning::read(error, "m", request);
        assert_eq!(read(b"{\"prompt\":\"I am Overloaded\"}"), ErrorMeaning::Other);
        assert_eq!(read(b"{\"prompt\":\"hi\"}"), ErrorMeaning::Overloaded);
        assert_eq!(read(br#"{"prompt":"I am \u006fverloaded"}"#), ErrorMeaning::Other, "escaped");
    }
}
