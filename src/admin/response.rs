//! Responses of the admin port, and the table of its errors.

use std::pin::Pin;

use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};
use penstock_api::units::{ByteSize, UnitError};
use penstock_core::routing::audit::DryRunRequestError;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use serde::Serialize;
use serde_json::json;

use crate::key_store::KeyStoreError;
use crate::lifecycle::{ReloadError, UpgradeError};
use crate::observe::usage::UsageError;

/// A response that another thread completes: the control loop, or the ledger's.
pub(super) type PendingResponse =
    Pin<Box<dyn Future<Output = Result<AdminResponse, AdminRefusal>> + Send>>;

pub(super) struct AdminResponse {
    status: StatusCode,
    kind: &'static str,
    body: Vec<u8>,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl AdminResponse {
    pub(super) fn text(text: String) -> Self {
        Self::of("text/plain; charset=utf-8", text)
    }

    /// An HTML page with its content security policy.
    pub(super) fn page(html: String, policy: &str) -> Self {
        let policy = HeaderValue::from_str(policy).ok();
        debug_assert!(policy.is_some(), "a policy is a valid header value");
        let field = policy.map(|policy| (header::CONTENT_SECURITY_POLICY, policy));
        let fields = field.into_iter().collect();
        Self { fields, ..Self::of("text/html; charset=utf-8", html) }
    }

    /// A body of another content type.
    pub(super) fn of(kind: &'static str, body: String) -> Self {
        Self::of_bytes(kind, body.into_bytes())
    }

    /// A body of another content type, already encoded.
    pub(super) fn of_bytes(kind: &'static str, body: Vec<u8>) -> Self {
        Self { status: StatusCode::OK, kind, body, fields: Vec::new() }
    }

    /// A value as indented JSON.
    pub(super) fn json(value: &impl Serialize) -> Self {
        let mut text = to_json(serde_json::to_string_pretty(value));
        text.push('\n');
        Self::of("application/json", text)
    }

    /// Returns the same response with another status than 200.
    #[must_use]
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Sends the response; without its body if the request was HEAD.
    pub(super) async fn send(
        self,
        session: &mut ServerSession,
        is_head: bool,
    ) -> pingora::Result<()> {
        let mut head = ResponseHeader::build(self.status, Some(8))?;
        head.insert_header(header::CONTENT_TYPE, HeaderValue::from_static(self.kind))?;
        head.insert_header(header::CONTENT_LENGTH, self.body.len())?;
        // All pages are of this moment, and one has the secret of a key.
        head.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
        // Clients and engines choose many of the names: no browser must take them for markup.
        head.insert_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))?;
        for (name, value) in self.fields {
            head.insert_header(name, value)?;
        }
        session.write_response_header(Box::new(head)).await?;
        if !is_head {
            session.write_response_body(self.body.into(), true).await?;
        }
        Ok(())
    }
}

/// The reason why the admin port refuses a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminRefusal {
    #[error("requests from web pages are refused: there is an Origin header")]
    FromWebPage,
    #[error(
        "the Host header names neither an IP address nor localhost; send the token to use names"
    )]
    ForeignHost,
    #[error("send the token of `admin.token_file` as 'Authorization: Bearer TOKEN'")]
    NoToken,
    #[error("unknown path; GET / lists all endpoints")]
    UnknownPath,
    #[error("the endpoint does not support this method")]
    MethodNotAllowed { allow: String },
    #[error("unknown backend '{name}'")]
    UnknownBackend { name: String },
    #[error("no shadow strategy is configured (`routing.shadow`)")]
    NoShadow,
    #[error("no latencies are predicted: set `routing.predict: true`, or the strategy slo")]
    NoPredictions,
    #[error("not a request to predict: {reason}")]
    InvalidQuote { reason: String },
    #[error("'n' must be a whole number")]
    NotACount,
    #[error("'by' is a list of key, model, backend and day")]
    NotADimension,
    #[error("'{name}' is a day as 2026-11-23, or a number of days ago as 7d")]
    NotADay { name: &'static str },
    #[error("'simulate': {0}")]
    NotADuration(UnitError),
    #[error("'capture' must be true or false")]
    NotAChoice,
    #[error("{0}")]
    InvalidDryRun(#[from] DryRunRequestError),
    #[error("{0}")]
    Usage(#[from] UsageError),
    #[error("the body is larger than {limit} (limits.max_body_size)")]
    BodyTooLarge { limit: ByteSize },
    #[error("the body did not arrive within `limits.body_read_timeout`")]
    BodyTimeout,
    #[error("the body is incomplete")]
    BodyCut,
    #[error("there is no store of keys: set `auth.store`")]
    NoKeyStore,
    #[error("the body is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("'overlap' is a duration such as \"24h\", and the only field")]
    NotAnOverlap,
    #[error("{0}")]
    Keys(#[from] KeyStoreError),
    #[error("{0}")]
    ReloadFailed(ReloadError),
    #[error("{0}")]
    UpgradeFailed(UpgradeError),
}

fn key_store_error(error: &KeyStoreError) -> (StatusCode, &'static str) {
    match error {
        KeyStoreError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
        KeyStoreError::Unknown { .. } => (StatusCode::NOT_FOUND, "unknown_key"),
        KeyStoreError::NotRevoked { .. } => (StatusCode::NOT_FOUND, "unknown_token"),
        KeyStoreError::Damaged { .. } => (StatusCode::CONFLICT, "key_damaged"),
        KeyStoreError::Revoked { .. } => (StatusCode::CONFLICT, "key_revoked"),
        KeyStoreError::Full { .. } | KeyStoreError::TooManyRevoked { .. } => {
            (StatusCode::CONFLICT, "too_many_keys")
        }
        KeyStoreError::File(_)
        | KeyStoreError::Replaced
        | KeyStoreError::NoRandomness
        | KeyStoreError::NoHash { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "key_store_unavailable")
        }
    }
}

/// Serialization fails only for maps with non-string keys and for failing `Serialize` impls.
pub(super) fn to_json(serialized: serde_json::Result<String>) -> String {
    debug_assert!(serialized.is_ok(), "the value has string keys only");
    serialized.unwrap_or_else(|_impossible| "null".to_owned())
}

impl AdminRefusal {
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::FromWebPage => (StatusCode::FORBIDDEN, "foreign_origin"),
            Self::ForeignHost => (StatusCode::FORBIDDEN, "foreign_host"),
            Self::NoToken => (StatusCode::UNAUTHORIZED, "invalid_token"),
            Self::UnknownPath => (StatusCode::NOT_FOUND, "unknown_path"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::UnknownBackend { .. } => (StatusCode::NOT_FOUND, "unknown_backend"),
            Self::NoShadow => (StatusCode::NOT_FOUND, "no_shadow"),
            Self::NoPredictions => (StatusCode::NOT_FOUND, "no_predictions"),
            Self::InvalidQuote { .. } => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::NotADuration(_)
            | Self::NotACount
            | Self::NotAChoice
            | Self::NotADimension
            | Self::NotADay { .. } => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::Usage(UsageError::Invalid { .. }) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::Usage(UsageError::UnknownModel { .. }) => {
                (StatusCode::NOT_FOUND, "model_not_found")
            }
            Self::Usage(UsageError::TooManyStreams { .. } | UsageError::Ledger(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "usage_unavailable")
            }
            Self::NoKeyStore => (StatusCode::NOT_FOUND, "no_key_store"),
            Self::NotJson(_) | Self::NotAnOverlap => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::Keys(error) => key_store_error(error),
            Self::InvalidDryRun(_) => (StatusCode::BAD_REQUEST, "invalid_explain_request"),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            Self::BodyCut => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::ReloadFailed(
                ReloadError::Config(_) | ReloadError::NoBackends { .. } | ReloadError::StoreRemoved,
            ) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_configuration"),
            Self::ReloadFailed(ReloadError::Regression(_)) => {
                (StatusCode::CONFLICT, "simulated_regression")
            }
            Self::ReloadFailed(ReloadError::Gate(_)) => (StatusCode::CONFLICT, "not_simulated"),
            Self::ReloadFailed(ReloadError::NoFile) => {
                (StatusCode::CONFLICT, "no_configuration_file")
            }
            Self::ReloadFailed(ReloadError::Busy | ReloadError::Stopping) => {
                (StatusCode::SERVICE_UNAVAILABLE, "busy")
            }
            Self::ReloadFailed(ReloadError::Shadow(_) | ReloadError::Unreadable) => {
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

    pub(super) fn to_response(&self) -> AdminResponse {
        let (status, code) = self.status_and_code();
        let body = json!({"error": {"code": code, "message": self.to_string()}});
        let field = match self {
            // A 401 names its scheme, and a 405 its methods (RFC 9110 §15.5.2 and §15.5.6).
            Self::NoToken => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::MethodNotAllowed { allow } => {
                HeaderValue::from_str(allow).ok().map(|allow| (header::ALLOW, allow))
            }
            // As on the data port: nothing was started, so an early retry is safe.
            _ if status == StatusCode::SERVICE_UNAVAILABLE => {
                Some((header::RETRY_AFTER, HeaderValue::from_static("1")))
            }
            _ => None,
        };
        let retries = matches!(status.as_u16(), 408 | 503);
        let retries = HeaderValue::from_static(if retries { "true" } else { "false" });
        let should_retry = (HeaderName::from_static("x-should-retry"), retries);
        let fields = field.into_iter().chain([should_retry]).collect();
        AdminResponse { fields, ..AdminResponse::json(&body).with_status(status) }
    }
}
