//! The meaning of an engine's error, regardless of its status.

mod client_fault;
mod credit;
mod named_model;
mod quotes;
mod request_size;

use client_fault::client_status;
use credit::{CREDIT_NAMES, is_for_now, key_refusal};
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
    /// The backend does not have the path.
    PathMissing,
    /// Something else is missing that the client named, such as the model of a tool.
    NamedMissing,
    /// A content policy rejected the prompt.
    Moderated,
    /// The provider rejects the key or its account, in a sentence that is known: as a response with
    /// this status, 401 or 402.
    KeyRefused(u16),
    /// The request is at fault, as a response with this 4xx says.
    Client(u16),
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
/// The beginning of LM Studio's message about a path that it lacks, which it sends with a 200.
const PATH_PHRASE: &str = "unexpected endpoint or method";
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
        let status = error.status.map_or("", RawValue::get);
        let code = error.code.map_or(status, RawValue::get);
        let kind = error.kind.as_deref().unwrap_or_default();
        let names = format!("{kind} {code} {status}").to_ascii_lowercase();
        // ASCII alone, as in the request: other letters could become a phrase in lower case.
        let message = error.message.to_ascii_lowercase();
        let is_named = |list: &[&str]| list.iter().any(|name| names.contains(name));
        let request = RequestText::new(request);
        let is_said = |list: &[&str]| {
            let said = list.iter().find(|phrase| message.contains(*phrase));
            said.is_some_and(|phrase| !request.may_contain(phrase))
        };
        if let Some((sentence, status)) = key_refusal(&names, &message)
            && !request.may_contain(sentence)
        {
            return Self::KeyRefused(status);
        }
        if message.starts_with(PATH_PHRASE) && !request.may_contain(PATH_PHRASE) {
            return Self::PathMissing;
        }
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
            client_status(code, &names).map_or(Self::Other, Self::Client)
        }
    }

    /// Returns the status that a response with this error should have had.
    pub fn status(self) -> u16 {
        match self {
            Self::RateLimited | Self::TooLarge => 429,
            Self::OutOfCredit => 402,
            Self::Overloaded => 503,
            Self::ModelMissing | Self::PathMissing | Self::NamedMissing => 404,
            Self::Moderated => 403,
            Self::KeyRefused(status) | Self::Client(status) => status,
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
                ErrorMeaning::Client(400),
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
    fn path_that_lm_studio_lacks_is_missing_unless_the_request_says_so() {
        let error = r#"{"error":"Unexpected endpoint or method. (POST /v1/messages)"}"#;
        assert_eq!(meaning(error), ErrorMeaning::PathMissing);
        assert_eq!(meaning(error).status(), 404);
        let quoted = r#"{"error":"bad role: Unexpected endpoint or method."}"#;
        assert_eq!(meaning(quoted), ErrorMeaning::Other);
        let request = br#"{"messages":[{"role":"Unexpected endpoint or method"}]}"#;
        let read = ErrorMeaning::read(error.as_bytes(), "m", request);
        assert_eq!(read, ErrorMeaning::Other);
    }

    #[test]
    fn fault_of_a_client_has_the_status_of_its_code_or_its_name() {
        for (error, status) in [
            (r#"{"error":{"message":"x","type":"BadRequestError","param":null,"code":400}}"#, 400),
            (r#"{"error":{"message":"x","code":"413"}}"#, 413),
            (r#"{"error":{"message":"x","code":422}}"#, 422),
            (r#"{"object":"error","message":"x","type":"NotFoundError","code":404}"#, 404),
            (r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#, 400),
            (r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#, 400),
            (r#"{"type":"error","error":{"type":"authentication_error","message":"x"}}"#, 401),
            (r#"{"type":"error","error":{"type":"permission_error","message":"x"}}"#, 403),
            (r#"{"type":"error","error":{"type":"request_too_large","message":"x"}}"#, 413),
            (
                r#"{"error":{"message":"x","type":"invalid_request_error","code":"invalid_api_key"}}"#,
                401,
            ),
            (r#"[{"error":{"message":"x","status":"INVALID_ARGUMENT"}}]"#, 400),
            (r#"{"message":"x","status":400}"#, 400),
        ] {
            assert_eq!(meaning(error), ErrorMeaning::Client(status), "{error}");
            assert_eq!(meaning(error).status(), status, "{error}");
        }
        for error in [
            r#"{"error":{"message":"x","code":408}}"#,
            r#"{"error":{"message":"x","code":500}}"#,
            r#"{"error":{"message":"invalid_request_error","type":"server_error"}}"#,
        ] {
            assert_eq!(meaning(error), ErrorMeaning::Other, "{error}");
        }
    }

    #[test]
    fn sentence_of_a_provider_about_its_key_is_no_clients_to_write() {
        const CREDIT: &str = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.";
        let anthropic = |message: &str| {
            format!(
                r#"{{"type":"error","error":{{"type":"invalid_request_error","message":"{message}"}}}}"#
            )
        };
        assert_eq!(meaning(&anthropic(CREDIT)), ErrorMeaning::KeyRefused(402));
        let google = r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}"#;
        assert_eq!(meaning(google), ErrorMeaning::KeyRefused(401));
        assert_eq!(meaning(&format!("[{google}]")), ErrorMeaning::KeyRefused(401));
        let xai = r#"{"code":"Client specified an invalid argument","error":"Incorrect API key provided: xa***. You can obtain an API key from https://console.x.ai."}"#;
        assert_eq!(meaning(xai), ErrorMeaning::KeyRefused(401));
        let deepseek = r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#;
        assert_eq!(meaning(deepseek), ErrorMeaning::KeyRefused(402));
        // Not at the start of the message, without the provider's type, or in the request.
        let quoted = anthropic(&format!("bad role: {CREDIT}"));
        assert_eq!(meaning(&quoted), ErrorMeaning::Client(400));
        let other = google.replace("INVALID_ARGUMENT", "X");
        assert_eq!(meaning(&other), ErrorMeaning::Client(400));
        let request = format!(r#"{{"messages":[{{"role":"{CREDIT}"}}]}}"#);
        let read = ErrorMeaning::read(anthropic(CREDIT).as_bytes(), "m", request.as_bytes());
        assert_eq!(read, ErrorMeaning::Client(400));
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
