//! The only place where failures become statuses: of an attempt, of a body, of a decision.

use std::time::Duration;

use bytes::Bytes;
use pingora::http::ResponseHeader;

use crate::api::ErrorCode;
use crate::fleet::Outcome;
use crate::routing::RouteError;
use crate::units::Timestamp;
use crate::upstream::connect::DialError;
use crate::upstream::exchange::Stop;

/// An answer of a backend that is held back, because another backend may do better.
#[derive(Debug)]
pub(crate) struct HeldAnswer {
    pub(crate) header: Box<ResponseHeader>,
    pub(crate) body: Bytes,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
}

/// How an attempt failed before a byte of it reached the client.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection, or it closed before the whole request was written.
    NotSent(DialError),
    /// The backend closed without an answer. `is_unread`: it cannot have read the whole request.
    Unanswered { is_unread: bool },
    /// It refused with 429 or 503.
    Refused(HeldAnswer),
    /// It answered 5xx and the configuration says to repeat those.
    Failed(HeldAnswer),
    /// A clock ran out.
    TimedOut(ErrorCode),
    /// Its answer is not one to relay.
    BadAnswer(&'static str),
    /// The client left.
    ClientGone,
}

/// Whether the same request may go to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It cannot have begun there, or was refused outright.
    Safe,
    /// It may have begun: only where the operator says so.
    IfUnansweredAllowed,
    /// Never.
    No,
}

impl Failure {
    /// The failure behind a stop within an exchange.
    pub(crate) fn from_stop(stop: Stop, is_unread: bool) -> Self {
        match stop {
            Stop::ClientGone => Self::ClientGone,
            Stop::TimedOut(code) => Self::TimedOut(code),
            Stop::ClosedWhileSending => Self::NotSent(DialError::Refused),
            Stop::Closed => Self::Unanswered { is_unread },
            Stop::Bad(reason) => Self::BadAnswer(bad_answer_text(reason)),
        }
    }

    /// The rule on repeats: only what cannot have begun at an engine, and explicit refusals.
    pub(crate) fn repeat(&self) -> Repeat {
        match self {
            Self::NotSent(_)
            | Self::Refused(_)
            | Self::Failed(_)
            | Self::Unanswered { is_unread: true } => Repeat::Safe,
            Self::Unanswered { is_unread: false } => Repeat::IfUnansweredAllowed,
            Self::TimedOut(_) | Self::BadAnswer(_) | Self::ClientGone => Repeat::No,
        }
    }

    /// What the backend's health and breaker learn.
    pub(crate) fn outcome(&self, rest: Duration) -> Outcome {
        match self {
            Self::NotSent(_) | Self::TimedOut(_) => Outcome::Unreachable,
            Self::Unanswered { .. } | Self::BadAnswer(_) | Self::Failed(_) => Outcome::Fault,
            Self::Refused(held) => Outcome::Busy { rest, status: held.status },
            Self::ClientGone => Outcome::Cancel,
        }
    }

    /// The error the client gets when this was the last attempt.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::NotSent(DialError::TimedOut) => ErrorCode::ConnectTimeout,
            Self::NotSent(
                DialError::NoAddress | DialError::Refused | DialError::Tls | DialError::Http2,
            ) => ErrorCode::ConnectFailed,
            Self::Unanswered { .. } => ErrorCode::UpstreamClosed,
            Self::Refused(_) => ErrorCode::AllBackendsBusy,
            Self::TimedOut(code) => *code,
            Self::BadAnswer(_) | Self::Failed(_) => ErrorCode::BadUpstreamResponse,
            Self::ClientGone => ErrorCode::InternalError,
        }
    }

    /// The same in words, without addresses.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::NotSent(DialError::TimedOut) => {
                "No backend accepted a connection in time".to_owned()
            }
            Self::NotSent(
                DialError::NoAddress | DialError::Refused | DialError::Tls | DialError::Http2,
            ) => "No backend accepted a connection".to_owned(),
            Self::Unanswered { .. } => {
                "The backend closed the connection without an answer; the request is not \
                 repeated, because it may have been processed"
                    .to_owned()
            }
            Self::Refused(held) => format!("The backend answered {}", held.status),
            Self::Failed(held) => format!("The backend answered {}", held.status),
            Self::TimedOut(code) => timeout_message(*code).to_owned(),
            Self::BadAnswer(reason) => (*reason).to_owned(),
            Self::ClientGone => "The client left".to_owned(),
        }
    }
}

fn bad_answer_text(reason: crate::upstream::response_head::BadAnswer) -> &'static str {
    use crate::upstream::response_head::BadAnswer;
    match reason {
        BadAnswer::NotHttp => "The backend's answer is not HTTP",
        BadAnswer::HeadTooLarge => "The head of the backend's answer is too large",
        BadAnswer::Switching => "The backend switched protocols, which nobody asked for",
        BadAnswer::Framing => "The backend's answer is framed in contradicting ways",
        BadAnswer::Informational => "The backend sent interim responses without an end",
        BadAnswer::Chunks => "The chunks of the backend's answer are malformed",
    }
}

/// What a clock that ran out, or a stream that broke, says to the client.
pub(crate) fn timeout_message(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::FirstTokenTimeout => "The backend sent no token in time",
        ErrorCode::BetweenTokensTimeout => "The backend stopped sending tokens",
        ErrorCode::ResponseTimeout => "The backend did not answer in time",
        ErrorCode::TotalTimeout => "The request took longer than it may",
        ErrorCode::ConnectTimeout => "No backend accepted a connection in time",
        ErrorCode::BadUpstreamResponse => "The rest of the backend's answer cannot be relayed",
        _ => "The backend closed the connection in the middle of its answer",
    }
}

/// An error penstock answers itself.
#[derive(Debug, Clone)]
pub(crate) struct OwnError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
    pub(crate) param: Option<&'static str>,
    pub(crate) retry_after: Option<Duration>,
    /// Whether the rest of the request cannot be trusted or is not worth reading.
    pub(crate) closes: bool,
}

impl OwnError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        // Nothing was begun anywhere, so coming back soon is safe.
        let is_safe = code.row().status == 503 || code == ErrorCode::ConnectTimeout;
        let retry_after = is_safe.then_some(Duration::from_secs(1));
        Self { code, message: message.into(), param: None, retry_after, closes: false }
    }

    pub(crate) fn about(self, param: Option<&'static str>) -> Self {
        Self { param, ..self }
    }

    pub(crate) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// The answer to a request nobody can take.
    pub(crate) fn from_route(error: &RouteError, now: Timestamp) -> Self {
        let own = Self::new(error.code(), error.to_string());
        match error {
            RouteError::CoolingDown { until, .. } => {
                let wait = until.since(now).max(Duration::from_secs(1));
                Self { retry_after: Some(wait), ..own }
            }
            RouteError::ModelNotFound { .. } => own.about(Some("model")),
            RouteError::NoHealthyBackend { .. }
            | RouteError::CapabilityMismatch { .. }
            | RouteError::FallbackChainExhausted { .. }
            | RouteError::Saturated { .. }
            | RouteError::DiscoveryPending { .. }
            | RouteError::AllTried { .. } => own,
        }
    }
}
