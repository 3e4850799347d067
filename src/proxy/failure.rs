//! Maps the failures that any attempt, body or decision can have to error codes and outcomes.

use std::time::Duration;

use penstock_api::ErrorCode;
use penstock_core::fleet::{Outcome, RefusedPart};
use penstock_core::routing::RouteError;

use crate::downstream::body::BodyError;
use crate::upstream::failure::{
    AttemptFailure, ConnectError, ConnectionEnd, ExchangeError, HoldReason,
};
use crate::upstream::relay::ReadWholeError;

/// The outcome of a failure, for the backend's health and circuit breaker. `cooldown`: the time
/// that a refusal pauses it.
pub(crate) fn outcome_of(failure: &AttemptFailure, cooldown: Duration) -> Outcome {
    match failure {
        // The shortage is this machine's: the backend has done nothing wrong.
        AttemptFailure::NotSent(ConnectError::OutOf(_)) => Outcome::Shortage,
        AttemptFailure::NotSent(_) => Outcome::Unreachable,
        AttemptFailure::NoResponse { .. }
        | AttemptFailure::TimedOut(_)
        | AttemptFailure::BadResponse(_) => Outcome::Fault,
        AttemptFailure::Held(refusal, held) => match held_outcome(*refusal, held.status) {
            Outcome::Busy { status, .. } => Outcome::Busy { cooldown, status },
            outcome => outcome,
        },
        AttemptFailure::ClientGone => Outcome::Cancel,
    }
}

/// The outcome of a response that is held back, without the time of a cooldown.
pub(crate) fn held_outcome(refusal: HoldReason, status: u16) -> Outcome {
    match refusal {
        HoldReason::RateLimited => busy(status, 429),
        HoldReason::Overloaded => busy(status, 503),
        HoldReason::KeyRejected => {
            // An account without credit may be reported with any status.
            let status = if status == 401 { 401 } else { 402 };
            Outcome::Refused { part: RefusedPart::Backend, status }
        }
        HoldReason::KeyInvalid => Outcome::Refused { part: RefusedPart::Backend, status: 401 },
        HoldReason::ModelMissing => Outcome::Refused { part: RefusedPart::Model, status: 404 },
        HoldReason::Forbidden
        | HoldReason::NoWork
        | HoldReason::NoResult
        | HoldReason::ServerError => Outcome::Fault,
        HoldReason::TooLarge
        | HoldReason::OperationMissing
        | HoldReason::CapabilityMissing
        | HoldReason::ContextTooShort(_)
        | HoldReason::Client => Outcome::Client,
    }
}

/// The outcome of a busy backend. `usual`: the status if the error came with a 200.
fn busy(status: u16, usual: u16) -> Outcome {
    let status = if status < 400 { usual } else { status };
    Outcome::Busy { cooldown: Duration::ZERO, status }
}

/// The outcome of a response that cannot be read or converted. If penstock is too busy to hold it,
/// that says nothing about the backend.
pub(crate) fn unreadable_outcome(code: ErrorCode) -> Outcome {
    if code.row().is_busy { Outcome::Shortage } else { Outcome::Fault }
}

/// The error of a failed attempt; `None` if its client left, which is no error.
pub(crate) fn code_of(failure: &AttemptFailure) -> Option<ErrorCode> {
    Some(match failure {
        AttemptFailure::NotSent(ConnectError::TimedOut) => ErrorCode::ConnectTimeout,
        AttemptFailure::NotSent(ConnectError::OutOf(_)) => ErrorCode::OutOfResources,
        AttemptFailure::NotSent(
            ConnectError::NoAddress
            | ConnectError::Refused
            | ConnectError::Tls
            | ConnectError::Http2
            | ConnectError::ClosedEarly,
        ) => ErrorCode::ConnectFailed,
        AttemptFailure::NoResponse { .. } => ErrorCode::UpstreamClosed,
        AttemptFailure::Held(HoldReason::RateLimited, _) => ErrorCode::BackendsCoolingDown,
        AttemptFailure::Held(HoldReason::Overloaded, _) => ErrorCode::AllBackendsBusy,
        AttemptFailure::Held(HoldReason::CapabilityMissing, _) => ErrorCode::CapabilityMismatch,
        AttemptFailure::Held(HoldReason::ContextTooShort(_), _) => ErrorCode::ContextLengthExceeded,
        AttemptFailure::Held(HoldReason::TooLarge | HoldReason::Client, _) => {
            ErrorCode::InvalidRequest
        }
        AttemptFailure::Held(
            HoldReason::KeyRejected
            | HoldReason::KeyInvalid
            | HoldReason::Forbidden
            | HoldReason::ModelMissing
            | HoldReason::OperationMissing
            | HoldReason::NoWork
            | HoldReason::NoResult
            | HoldReason::ServerError,
            _,
        ) => ErrorCode::BadUpstreamResponse,
        AttemptFailure::TimedOut(code) => *code,
        AttemptFailure::BadResponse(_) => ErrorCode::BadUpstreamResponse,
        AttemptFailure::ClientGone => return None,
    })
}

/// The code of a backend's own error that is sent in a stream.
pub(crate) fn code_of_status(status: u16) -> ErrorCode {
    match status {
        429 => ErrorCode::BackendsCoolingDown,
        503 | 529 => ErrorCode::AllBackendsBusy,
        400..=499 => ErrorCode::InvalidRequest,
        _ => ErrorCode::BadUpstreamResponse,
    }
}

/// The message of a failure, without addresses.
fn message_of(failure: &AttemptFailure) -> String {
    match failure {
        AttemptFailure::NotSent(ConnectError::TimedOut) => {
            timeout_message(ErrorCode::ConnectTimeout).to_owned()
        }
        AttemptFailure::NotSent(error @ ConnectError::OutOf(_)) => error.text().to_owned(),
        AttemptFailure::NotSent(
            ConnectError::NoAddress
            | ConnectError::Refused
            | ConnectError::Tls
            | ConnectError::Http2
            | ConnectError::ClosedEarly,
        ) => "No backend accepted a connection".to_owned(),
        AttemptFailure::NoResponse { end, .. } => {
            let ended = match end {
                ConnectionEnd::Closed => "closed",
                ConnectionEnd::Reset => "reset",
            };
            format!(
                "The backend {ended} the connection without a response, and may have processed the request"
            )
        }
        AttemptFailure::Held(HoldReason::NoWork, held) if held.body.is_empty() => {
            format!("The backend's response is empty (status {})", held.status)
        }
        AttemptFailure::Held(HoldReason::NoResult, held) => {
            format!("The backend's response is not that of an engine (status {})", held.status)
        }
        AttemptFailure::Held(_, held) => format!("The backend responded with {}", held.status),
        AttemptFailure::TimedOut(code) => timeout_message(*code).to_owned(),
        AttemptFailure::BadResponse(reason) => reason.to_string(),
        AttemptFailure::ClientGone => "The client left".to_owned(),
    }
}

/// The message for a deadline that passed, or a response that broke off.
pub(crate) fn timeout_message(code: ErrorCode) -> &'static str {
    let closed = "The backend closed the connection in the middle of its response";
    code.row().message.unwrap_or(closed)
}

/// The maximum number of bytes in a message: it may quote a name that a client made up, of any
/// length.
const MAX_MESSAGE: usize = 2048;

/// Cuts a message after [`MAX_MESSAGE`] bytes.
fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        message.push('…');
    }
    message
}

/// An error penstock responds with itself.
#[derive(Debug, Clone)]
pub(crate) struct OwnError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
    pub(crate) param: Option<&'static str>,
    pub(crate) retry_after: Option<Duration>,
    /// True if the remaining bytes of the request cannot be trusted or are not worth reading.
    pub(crate) closes: bool,
    /// True if clients should not send the request again, whatever its code says.
    pub(crate) is_final: bool,
}

impl OwnError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message = bounded(message.into());
        let retry_after = code.row().retry_after;
        Self { code, message, param: None, retry_after, closes: false, is_final: false }
    }

    /// Marks the error as final: a retry would only do harm.
    pub(crate) fn without_retry(self) -> Self {
        Self { is_final: true, retry_after: None, ..self }
    }

    /// Sets `wait` as the time after which a retry makes sense.
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Sets the time after which a retry makes sense, if it is known.
    pub(crate) fn after_known(self, wait: Option<Duration>) -> Self {
        Self { retry_after: wait.or(self.retry_after), ..self }
    }

    pub(crate) fn about(self, param: Option<&'static str>) -> Self {
        Self { param, ..self }
    }

    pub(crate) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// Ends the connection with the response if `condition` holds.
    pub(crate) fn closing_if(self, condition: bool) -> Self {
        Self { closes: self.closes || condition, ..self }
    }

    /// The error for a body that was not read; `None` when the client is gone.
    pub(crate) fn from_body(error: &BodyError) -> Option<Self> {
        Some(Self::new(error.code()?, error.to_string()).closing_if(error.closes()))
    }

    /// The error after the last failed attempt.
    pub(crate) fn from_failure(failure: &AttemptFailure) -> Self {
        // Without a code nothing is sent: no client is left.
        Self::new(code_of(failure).unwrap_or(ErrorCode::InternalError), message_of(failure))
    }

    /// The error for a response that could not be read whole.
    pub(crate) fn from_unread(error: ReadWholeError) -> Self {
        let code = match error {
            ReadWholeError::TooLarge => {
                let message = "The backend's response is too large to be converted";
                return Self::new(ErrorCode::BadUpstreamResponse, message);
            }
            ReadWholeError::MemoryFull => ErrorCode::ResponseMemoryFull,
            ReadWholeError::Broken(ExchangeError::BadResponse(_)) => ErrorCode::BadUpstreamResponse,
            ReadWholeError::Broken(ExchangeError::TimedOut(code)) => code,
            ReadWholeError::Broken(
                ExchangeError::ClientGone
                | ExchangeError::ClosedWhileSending
                | ExchangeError::Ended(_),
            ) => ErrorCode::UpstreamClosed,
        };
        Self::new(code, timeout_message(code))
    }

    /// The error of a request that no backend can take.
    pub(crate) fn from_route(error: &RouteError) -> Self {
        let own = Self::new(error.code(), error.to_string());
        let own = if error.is_final() { own.without_retry() } else { own };
        match error {
            RouteError::ModelNotFound { .. } => own.about(Some("model")),
            RouteError::NoBackendInZone { .. }
            | RouteError::NoHealthyBackend { .. }
            | RouteError::CoolingDown { .. }
            | RouteError::ObjectiveMissed { .. }
            | RouteError::CapabilityMismatch { .. }
            | RouteError::FallbackChainExhausted { .. }
            | RouteError::Saturated { .. }
            | RouteError::DiscoveryPending { .. }
            | RouteError::AllTried { .. } => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_at_a_character() {
        let error = OwnError::new(ErrorCode::ModelNotFound, "é".repeat(5000));
        assert_eq!(error.message.len(), MAX_MESSAGE + '…'.len_utf8());
        assert!(error.message.ends_with("é…"));
        assert_eq!(bounded("short".to_owned()), "short");
    }
}
