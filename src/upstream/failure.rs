//! Why an attempt fails: no connection, an exchange that stops early, a response that is held back.

use std::time::Duration;

use bytes::Bytes;
use pingora::http::ResponseHeader;

use super::response_head::BadResponse;
use super::shortage::Shortage;
use crate::api::ErrorCode;
use crate::wire::body_budget::BodyClaim;

/// Why there is no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// The name has not been resolved.
    NoAddress,
    /// Refused or unreachable.
    Refused,
    /// Not connected within the connect timeout.
    TimedOut,
    /// The TLS handshake failed, or its settings cannot be used.
    Tls,
    /// The backend does not speak HTTP/2.
    Http2,
    /// Connected, and closed before the whole request was written.
    ClosedEarly,
    /// This machine has run out of something: no fault of the backend.
    OutOf(Shortage),
}

impl ConnectError {
    /// For logs and errors, without addresses.
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

/// How a backend ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// In order, with a FIN: everything it received until then is acknowledged.
    Closed,
    /// By a reset, or by an error of the network.
    Reset,
}

/// Why an exchange stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeError {
    /// The client closed its connection.
    ClientGone,
    /// A deadline passed.
    TimedOut(ErrorCode),
    /// The backend closed before the whole request was written.
    ClosedWhileSending,
    /// The backend ended the connection after the whole request, before or within its response.
    Ended(ConnectionEnd),
    /// The response cannot be relayed.
    BadResponse(BadResponse),
}

/// A backend's response that is held back, because another backend may do better.
#[derive(Debug)]
pub(crate) struct HeldResponse {
    pub(crate) header: Box<ResponseHeader>,
    pub(crate) body: Bytes,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// Its share of the memory for responses.
    pub(crate) _claim: BodyClaim,
}

/// How an attempt failed before a byte of a response reached the client.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection, or it closed before the whole request was written.
    NotSent(ConnectError),
    /// The backend ended the connection without a byte of a response. `is_unread`: it cannot have read
    /// the whole request.
    NoResponse { end: ConnectionEnd, is_unread: bool },
    /// It refused with 429 or 503.
    Refused(HeldResponse),
    /// It responded 5xx, and the configuration retries those.
    ServerError(HeldResponse),
    /// A deadline passed.
    TimedOut(ErrorCode),
    /// Its response cannot be relayed.
    BadResponse(BadResponse),
    /// The client left.
    ClientGone,
}

impl Failure {
    /// The failure that an exchange ended with. `is_unread`: see [`Failure::NoResponse`].
    pub(crate) fn from_exchange(error: ExchangeError, is_unread: bool) -> Self {
        match error {
            ExchangeError::ClientGone => Self::ClientGone,
            ExchangeError::TimedOut(code) => Self::TimedOut(code),
            ExchangeError::ClosedWhileSending => Self::NotSent(ConnectError::ClosedEarly),
            ExchangeError::Ended(end) => Self::NoResponse { end, is_unread },
            ExchangeError::BadResponse(reason) => Self::BadResponse(reason),
        }
    }

    /// Whether the backend ended a connection that it cannot have read a whole request from.
    pub(crate) fn is_unread_end(&self) -> bool {
        matches!(
            self,
            Self::NotSent(ConnectError::ClosedEarly) | Self::NoResponse { is_unread: true, .. }
        )
    }
}
