//! Answers of the admin port, and the one table of its refusals.

use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::explain::QuestionError;
use crate::lifecycle::{ReloadError, UpgradeError};
use crate::units::ByteSize;

/// An answer.
pub(super) struct AdminResponse {
    status: StatusCode,
    kind: &'static str,
    body: Vec<u8>,
    field: Option<(HeaderName, HeaderValue)>,
}

impl AdminResponse {
    /// Plain text.
    pub(super) fn text(text: String) -> Self {
        Self::of("text/plain; charset=utf-8", text)
    }

    /// A page for browsers, and what it may do there.
    pub(super) fn page(html: String, policy: &str) -> Self {
        let policy = HeaderValue::from_str(policy).ok();
        debug_assert!(policy.is_some(), "a policy is plain text");
        let field = policy.map(|policy| (header::CONTENT_SECURITY_POLICY, policy));
        Self { field, ..Self::of("text/html; charset=utf-8", html) }
    }

    /// A body of another kind.
    pub(super) fn of(kind: &'static str, body: String) -> Self {
        Self { status: StatusCode::OK, kind, body: body.into_bytes(), field: None }
    }

    /// A value, indented for people.
    pub(super) fn json(value: &impl Serialize) -> Self {
        // Maps with other keys than texts are all that could fail, and there are none.
        let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
        text.push('\n');
        Self::of("application/json", text)
    }

    /// The same answer with another status than 200.
    #[must_use]
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The answer as it leaves; to a HEAD request without its body.
    pub(super) fn into_response(self, is_head: bool) -> Response<Vec<u8>> {
        let length = HeaderValue::from(self.body.len());
        let mut response = Response::new(if is_head { Vec::new() } else { self.body });
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::CONTENT_LENGTH, length);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some((name, value)) = self.field {
            headers.insert(name, value);
        }
        response
    }
}

/// Why the admin port does not do as it is asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("requests from web pages are refused: there is an Origin header")]
    FromWebPage,
    #[error(
        "the Host header names neither an IP address nor localhost; send the token to use names"
    )]
    ForeignHost,
    #[error("send the token of `admin.token_file` as 'Authorization: Bearer TOKEN'")]
    NoToken,
    #[error("there is no such path; GET / lists what there is")]
    UnknownPath,
    #[error("the path is known, the method is not")]
    MethodNotAllowed { allow: &'static str },
    #[error("there is no backend '{name}'")]
    UnknownBackend { name: String },
    #[error("no strategy is tried out: there is no `routing.shadow`")]
    NoShadow,
    #[error("'n' must be a whole number")]
    NotACount,
    #[error("'capture' must be true or false")]
    NotAChoice,
    #[error("{0}")]
    NotAQuestion(#[from] QuestionError),
    #[error("the body is larger than {limit} (limits.max_body_size)")]
    BodyTooLarge { limit: ByteSize },
    #[error("the body did not arrive within `limits.body_read_timeout`")]
    BodyTimeout,
    #[error("the body broke off")]
    BodyCut,
    #[error("{0}")]
    ReloadFailed(ReloadError),
    #[error("{0}")]
    UpgradeFailed(UpgradeError),
}

impl Refusal {
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::FromWebPage => (StatusCode::FORBIDDEN, "foreign_origin"),
            Self::ForeignHost => (StatusCode::FORBIDDEN, "foreign_host"),
            Self::NoToken => (StatusCode::UNAUTHORIZED, "invalid_token"),
            Self::UnknownPath => (StatusCode::NOT_FOUND, "unknown_path"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::UnknownBackend { .. } => (StatusCode::NOT_FOUND, "unknown_backend"),
            Self::NoShadow => (StatusCode::NOT_FOUND, "no_shadow"),
            Self::NotACount | Self::NotAChoice => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::NotAQuestion(_) => (StatusCode::BAD_REQUEST, "invalid_question"),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            Self::BodyCut => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::ReloadFailed(ReloadError::Config(_)) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_configuration")
            }
            Self::ReloadFailed(ReloadError::NoFile) => {
                (StatusCode::CONFLICT, "no_configuration_file")
            }
            Self::ReloadFailed(ReloadError::Busy | ReloadError::Stopping) => {
                (StatusCode::SERVICE_UNAVAILABLE, "busy")
            }
            Self::ReloadFailed(ReloadError::Shadow(_)) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "reload_failed")
            }
            Self::UpgradeFailed(UpgradeError::Busy | UpgradeError::Stopping) => {
                (StatusCode::SERVICE_UNAVAILABLE, "busy")
            }
            Self::UpgradeFailed(UpgradeError::FirstProcess | UpgradeError::NotServing) => {
                (StatusCode::CONFLICT, "cannot_upgrade")
            }
            Self::UpgradeFailed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "upgrade_failed"),
        }
    }

    /// The answer that says so.
    pub(super) fn to_response(&self) -> AdminResponse {
        let (status, code) = self.status_and_code();
        let body = json!({"error": {"code": code, "message": self.to_string()}});
        let field = match self {
            Self::NoToken => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::MethodNotAllowed { allow } => {
                Some((header::ALLOW, HeaderValue::from_static(allow)))
            }
            _ => None,
        };
        AdminResponse { field, ..AdminResponse::json(&body).with_status(status) }
    }
}
