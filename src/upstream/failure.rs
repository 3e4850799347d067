//! The reasons why an attempt fails: no connection, an exchange that stops early, a response that
//! is withheld.

use std::time::Duration;

use bytes::Bytes;
use penstock_api::ErrorCode;
use penstock_api::units::TokenCount;
use penstock_dialect::ErrorMeaning;
use pingora::http::ResponseHeader;

use super::response_head::InvalidResponse;
use super::retry_after::retry_after;
use super::shortage::Shortage;
use crate::wire::body_budget::BodyClaim;

/// The reason why there is no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// The name has not been resolved.
    NoAddress,
    Refused,
    /// Not connected within the connect timeout.
    TimedOut,
    /// The TLS handshake failed, or its settings cannot be used.
    Tls,
    /// The backend does not speak HTTP/2.
    Http2,
    /// Connected, then closed before the whole request was written.
    ClosedEarly,
    /// This machine has run out of a resource; the backend is not at fault.
    OutOf(Shortage),
}

impl ConnectError {
    /// The text for logs and errors, without addresses.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NoAddress => "the backend's name does not resolve",
            Self::Refused => "connection refused",
            Self::TimedOut => "connect timed out",
            Self::Tls => "TLS handshake failed",
            Self::Http2 => "the backend does not speak HTTP/2",
            Self::ClosedEarly => {
                "the backend closed the connection before it had the whole request"
            }
            Self::OutOf(shortage) => shortage.text(),
        }
    }
}

/// The end of a connection by its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// In order, with a FIN: everything that the backend received until then is acknowledged.
    Closed,
    /// By a reset, or by an error of the network.
    Reset,
}

/// The reason why an exchange stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeError {
    /// The client closed its connection.
    ClientGone,
    TimedOut(ErrorCode),
    /// The backend closed before the whole request was written.
    ClosedWhileSending,
    /// The backend ended the connection after the whole request, before or within its response.
    Ended(ConnectionEnd),
    /// The response cannot be relayed.
    BadResponse(InvalidResponse),
}

/// A response that is withheld from the client, because another backend may do better.
#[derive(Debug)]
pub(crate) struct HeldResponse {
    pub(crate) header: Box<ResponseHeader>,
    pub(crate) body: Bytes,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// The response's share of the memory for responses.
    pub(crate) _claim: BodyClaim,
}

impl HeldResponse {
    /// A response with `header`, of which `body` is held in the memory of `claim`.
    pub(crate) fn new(header: Box<ResponseHeader>, body: Bytes, claim: BodyClaim) -> Self {
        let (status, retry_after) = (header.status.as_u16(), retry_after(&header));
        Self { header, body, status, retry_after, _claim: claim }
    }

    /// Sets the status of an engine's error that came with a 200 to that of its meaning. `model`:
    /// the engine's name of the model; `request`: the client's body, which the error may quote.
    // SDKs go by the status: with the 200 they would take the error for a response.
    pub(crate) fn set_status_of_error(&mut self, model: &str, request: &[u8]) {
        if self.status < 400 {
            self.status = ErrorMeaning::read(&self.body, model, request).status();
        }
    }
}

/// The reason why a response is withheld from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldReason {
    /// The backend limits the rate of its client. Every other backend may enforce the same limit.
    RateLimited,
    /// The request is larger than a limit of the client's rate: no wait helps it, and others are
    /// not limited.
    TooLarge,
    /// The backend has no room for the request now.
    Overloaded,
    /// The backend does not accept the key that penstock sends, or its account is out of credit:
    /// 401, 402, or another status with an error that says so.
    KeyRejected,
    /// The backend does not accept that key, by a sentence of its provider: any status.
    KeyInvalid,
    /// The backend forbids the request to penstock's own key: 403.
    Forbidden,
    /// The backend does not have the model.
    ModelMissing,
    /// The backend does not have the path of the operation.
    OperationMissing,
    /// The model cannot do there what the request needs, by the words of its engine.
    CapabilityMissing,
    /// The context there, by the words of its engine, is too short for the request, and that of
    /// another backend may not be.
    ContextTooShort(TokenCount),
    /// The backend reported a failure, or nothing at all, instead of any token.
    NoWork,
    /// The backend sent something else instead of a result: a redirect, the page of a web server.
    NoResult,
    /// The backend sent a 5xx, and the configuration retries those.
    ServerError,
    /// The request itself is at fault, and only an ensemble gets the response.
    Client,
}

/// The failure of an attempt before a byte of a response reached the client.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// No connection, or it closed before the whole request was written.
    NotSent(ConnectError),
    /// The backend ended the connection without a byte of a response. `is_unread`: it cannot have
    /// read the whole request.
    NoResponse {
        end: ConnectionEnd,
        is_unread: bool,
    },
    /// The response is withheld.
    Held(HoldReason, HeldResponse),
    TimedOut(ErrorCode),
    /// The response cannot be relayed.
    BadResponse(InvalidResponse),
    ClientGone,
}

impl AttemptFailure {
    /// The failure that `error` means. `is_unread`: see [`AttemptFailure::NoResponse`].
    pub(crate) fn from_exchange(error: ExchangeError, is_unread: bool) -> Self {
        match error {
            ExchangeError::ClientGone => Self::ClientGone,
            ExchangeError::TimedOut(code) => Self::TimedOut(code),
            ExchangeError::ClosedWhileSending => Self::NotSent(ConnectError::ClosedEarly),
            ExchangeError::Ended(end) => Self::NoResponse { end, is_unread },
            ExchangeError::BadResponse(reason) => Self::BadResponse(reason),
        }
    }

    /// The reason why a response is withheld, if there is one.
    pub(crate) fn refusal(&self) -> Option<HoldReason> {
        match self {
            Self::Held(refusal, _) => Some(*refusal),
            _ => None,
        }
    }

    /// Returns whether a refusal says what is wrong with the request: another backend may serve it,
    /// but says no better why it does not.
    pub(crate) fn explains_request(&self) -> bool {
        matches!(
            self.refusal(),
            Some(HoldReason::ContextTooShort(_) | HoldReason::CapabilityMissing)
        )
    }

    /// The wait that a refusal requests.
    pub(crate) fn requested_wait(&self) -> Option<Duration> {
        match self {
            Self::Held(_, held) => held.retry_after,
            _ => None,
        }
    }

    /// Returns whether the backend refused the request because it is busy, and has not started on
    /// it.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Held(HoldReason::RateLimited | HoldReason::Overloaded, _))
    }

    /// Returns whether the backend limits the client's rate. Such a refusal is retried on one other
    /// backend only: a limit of the model or the key would be met everywhere, and every refusal
    /// starts a cooldown, or costs another account a request that is too large.
    pub(crate) fn is_rate_limit(&self) -> bool {
        matches!(self, Self::Held(HoldReason::RateLimited | HoldReason::TooLarge, _))
    }

    /// Returns whether the backend refused the request for a lack of room or for a limit.
    pub(crate) fn is_turned_away(&self) -> bool {
        self.is_busy() || self.is_rate_limit()
    }

    /// Returns whether the connection ended although the backend may have read the whole request.
    pub(crate) fn is_lost_connection(&self) -> bool {
        matches!(self, Self::NoResponse { is_unread: false, .. })
    }

    /// Returns whether the backend ended a connection before it can have read the whole request.
    pub(crate) fn is_unread_end(&self) -> bool {
        matches!(
            self,
            Self::NotSent(ConnectError::ClosedEarly) | Self::NoResponse { is_unread: true, .. }
        )
    }
}
