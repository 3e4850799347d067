//! The errors penstock makes itself: one table of codes. docs/reference/errors.md is generated from
//! it; `dialect` writes their bodies.

mod rows;

use std::time::Duration;

use crate::named;
pub use rows::ERROR_CODES;

named! {
    /// The cause of an error, by the name that clients see in `error.code`.
    #[repr(u8)]
    #[expect(missing_docs, reason = "each variant is described by its row in ERROR_CODES")]
    pub enum ErrorCode {
        InvalidRequest = "invalid_request",
        InvalidJson = "invalid_json",
        InvalidType = "invalid_type",
        AmbiguousField = "ambiguous_field",
        NotConvertible = "not_convertible",
        MissingModel = "missing_model",
        CapabilityMismatch = "capability_mismatch",
        TokenLimitTooSmall = "token_limit_too_small",
        ContextLengthExceeded = "context_length_exceeded",
        InvalidApiKey = "invalid_api_key",
        KeyExpired = "key_expired",
        KeyRevoked = "key_revoked",
        KeyNotYetValid = "key_not_yet_valid",
        WrongApiKey = "wrong_api_key",
        ModelNotAllowed = "model_not_allowed",
        ManagementNotAllowed = "management_not_allowed",
        ModelNotFound = "model_not_found",
        ResponseNotFound = "response_not_found",
        UnknownPath = "unknown_path",
        MethodNotAllowed = "method_not_allowed",
        HeaderTimeout = "header_timeout",
        BodyTimeout = "body_timeout",
        BodyTooLarge = "body_too_large",
        UriTooLong = "uri_too_long",
        UnsupportedEncoding = "unsupported_encoding",
        UpgradeRequired = "upgrade_required",
        HeadTooLarge = "head_too_large",
        BackendsCoolingDown = "backends_cooling_down",
        TooManyEnsembles = "too_many_ensembles",
        RateLimited = "rate_limited",
        BudgetExceeded = "budget_exceeded",
        ObjectiveMissed = "objective_missed",
        BadUpstreamResponse = "bad_upstream_response",
        UpstreamClosed = "upstream_closed",
        NoOllamaBackend = "no_ollama_backend",
        TooManyCommands = "too_many_commands",
        NoBackendInZone = "no_backend_in_zone",
        BudgetsUnreached = "budgets_unreached",
        NoHealthyBackend = "no_healthy_backend",
        FallbackChainExhausted = "fallback_chain_exhausted",
        AllBackendsBusy = "all_backends_busy",
        QueueFull = "queue_full",
        DiscoveryPending = "discovery_pending",
        BodyMemoryFull = "body_memory_full",
        ResponseMemoryFull = "response_memory_full",
        UsageUnavailable = "usage_unavailable",
        TokenKeysUnavailable = "token_keys_unavailable",
        TooManyConnections = "too_many_connections",
        OutOfResources = "out_of_resources",
        ConnectFailed = "connect_failed",
        QueueTimeout = "queue_timeout",
        ConnectTimeout = "connect_timeout",
        FirstTokenTimeout = "first_token_timeout",
        BetweenTokensTimeout = "between_tokens_timeout",
        ResponseTimeout = "response_timeout",
        TotalTimeout = "total_timeout",
        InternalError = "internal_error",
    }
}

/// One row of the error table.
#[derive(Debug)]
pub struct ErrorRow {
    /// The code that the row describes.
    pub code: ErrorCode,
    /// `error.code` on the wire.
    pub name: &'static str,
    /// The HTTP status of the response.
    pub status: u16,
    /// `error.type` in the OpenAI dialect.
    pub kind: &'static str,
    /// `error.type` in the Anthropic dialect.
    pub anthropic_kind: &'static str,
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
    #[expect(clippy::indexing_slicing, reason = "a test checks that the rows are in order")]
    pub fn row(self) -> &'static ErrorRow {
        &ERROR_CODES[self as usize]
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
