//! The errors penstock makes itself: one table of codes. docs/reference/errors.md is generated from
//! it; `dialect` writes their bodies.

mod rows;

use std::time::Duration;

pub use rows::ERROR_CODES;

/// The cause of an error, as clients see it in `error.code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each variant is described by its row in ERROR_CODES")]
pub enum ErrorCode {
    InvalidRequest,
    InvalidJson,
    InvalidType,
    AmbiguousField,
    NotConvertible,
    MissingModel,
    CapabilityMismatch,
    TokenLimitTooSmall,
    ContextLengthExceeded,
    InvalidApiKey,
    KeyExpired,
    KeyRevoked,
    KeyNotYetValid,
    WrongApiKey,
    ModelNotAllowed,
    ManagementNotAllowed,
    ModelNotFound,
    ResponseNotFound,
    UnknownPath,
    MethodNotAllowed,
    HeaderTimeout,
    BodyTimeout,
    BodyTooLarge,
    UriTooLong,
    UnsupportedEncoding,
    UpgradeRequired,
    HeadTooLarge,
    BackendsCoolingDown,
    TooManyEnsembles,
    RateLimited,
    BudgetExceeded,
    ObjectiveMissed,
    BadUpstreamResponse,
    UpstreamClosed,
    NoOllamaBackend,
    TooManyCommands,
    NoBackendInZone,
    BudgetsUnreached,
    NoHealthyBackend,
    FallbackChainExhausted,
    AllBackendsBusy,
    QueueFull,
    DiscoveryPending,
    BodyMemoryFull,
    ResponseMemoryFull,
    UsageUnavailable,
    TokenKeysUnavailable,
    TooManyConnections,
    OutOfResources,
    ConnectFailed,
    QueueTimeout,
    ConnectTimeout,
    FirstTokenTimeout,
    BetweenTokensTimeout,
    ResponseTimeout,
    TotalTimeout,
    InternalError,
}

/// One row of the error table.
#[derive(Debug)]
pub struct ErrorRow {
    pub code: ErrorCode,
    /// `error.code` on the wire.
    pub name: &'static str,
    pub status: u16,
    /// `error.type` in the OpenAI dialect.
    pub kind: &'static str,
    /// The value of `x-should-retry`.
    pub retry: bool,
    /// The `Retry-After` of a response that knows no better time.
    pub retry_after: Option<Duration>,
    /// True if requests that end with it count as `busy`. Those of the other codes count by their
    /// status, as a fault or a client's error.
    pub is_busy: bool,
    /// The message of an attempt that ends with it, if the code alone determines the message.
    pub message: Option<&'static str>,
    /// The situation in which it occurs, for docs/reference/errors.md.
    pub when: &'static str,
}

impl ErrorCode {
    /// Returns this code's row of [`ERROR_CODES`].
    #[expect(
        clippy::indexing_slicing,
        reason = "the table has a row per variant; a test checks the order"
    )]
    pub fn row(self) -> &'static ErrorRow {
        &ERROR_CODES[self as usize]
    }

    /// Returns `error.type` in Anthropic's dialect.
    pub fn anthropic_kind(self) -> &'static str {
        match self.row().status {
            400 | 408 | 414 | 415 | 426 | 431 => "invalid_request_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 | 405 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_row_per_code_in_order() {
        for (index, row) in ERROR_CODES.iter().enumerate() {
            assert_eq!(row.code as usize, index, "{}", row.name);
        }
    }
}
