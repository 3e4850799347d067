//! The table of error codes.

use std::time::Duration;

use super::{ErrorCode, ErrorRow};

const REQUEST: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// The time after which a request that was not started may come again.
const EARLY: Duration = Duration::from_secs(1);

const fn error(code: ErrorCode, name: &'static str, status: u16, when: &'static str) -> ErrorRow {
    let kind = match status {
        401 | 403 => "authentication_error",
        429 => "rate_limit_error",
        400..=499 => REQUEST,
        _ => SERVER,
    };
    // A retry with the same bytes gets the same 4xx; 429 and 503 are temporary.
    let retry = matches!(status, 408 | 429 | 502 | 503 | 504);
    // Nothing was started anywhere, so an early retry is safe.
    let retry_after = if status == 503 { Some(EARLY) } else { None };
    ErrorRow { code, name, status, kind, retry, retry_after, is_busy: false, message: None, when }
}

/// A row that counts as `busy`.
const fn busy(code: ErrorCode, name: &'static str, status: u16, when: &'static str) -> ErrorRow {
    ErrorRow { is_busy: true, ..error(code, name, status, when) }
}

impl ErrorRow {
    /// The row with the message of an attempt that ends with its code.
    const fn saying(self, message: &'static str) -> Self {
        Self { message: Some(message), ..self }
    }
}

/// Every error penstock makes itself, in the order of [`ErrorCode`].
pub const ERROR_CODES: &[ErrorRow] = &[
    error(
        ErrorCode::InvalidRequest,
        "invalid_request",
        400,
        "the HTTP request itself is malformed, or its query",
    ),
    error(
        ErrorCode::InvalidJson,
        "invalid_json",
        400,
        "the body is not valid JSON, UTF-8 or multipart",
    ),
    error(ErrorCode::InvalidType, "invalid_type", 400, "a field penstock reads has the wrong type"),
    error(
        ErrorCode::AmbiguousField,
        "ambiguous_field",
        400,
        "a field that penstock decides by is there in another spelling (`Model`), or in a second place (query and body), and an engine may read that one",
    ),
    error(
        ErrorCode::NotConvertible,
        "not_convertible",
        400,
        "the backends of the model speak another API, which has no form for a field of the request",
    ),
    error(ErrorCode::MissingModel, "missing_model", 400, "no `model`, or an empty one"),
    error(
        ErrorCode::CapabilityMismatch,
        "capability_mismatch",
        400,
        "no backend has the capabilities the request needs; the message lists them, and what each of up to five backends lacks",
    ),
    error(
        ErrorCode::TokenLimitTooSmall,
        "token_limit_too_small",
        400,
        "prompt and `max_tokens` alone exceed `tokens_per_minute` or `tokens_per_day` of the client: no wait helps",
    ),
    error(
        ErrorCode::ContextLengthExceeded,
        "context_length_exceeded",
        400,
        "the prompt is longer than every backend's context",
    ),
    error(ErrorCode::InvalidApiKey, "invalid_api_key", 401, "the key is missing or unknown"),
    error(ErrorCode::KeyExpired, "key_expired", 401, "the key has expired"),
    error(ErrorCode::KeyRevoked, "key_revoked", 401, "the key was revoked"),
    error(ErrorCode::KeyNotYetValid, "key_not_yet_valid", 401, "the key is not valid yet"),
    error(
        ErrorCode::WrongApiKey,
        "wrong_api_key",
        403,
        "the key is unknown, where `server.compat` is nomyo",
    ),
    error(ErrorCode::ModelNotAllowed, "model_not_allowed", 403, "the key may not use this model"),
    error(
        ErrorCode::ManagementNotAllowed,
        "management_not_allowed",
        403,
        "neither `ollama.manage_models` nor `manage_models` of the key allows to manage models, or to see the usage of all clients",
    ),
    error(ErrorCode::ModelNotFound, "model_not_found", 404, "no backend serves the model"),
    error(
        ErrorCode::ResponseNotFound,
        "response_not_found",
        404,
        "the stored response or conversation is another key's; the response is no longer remembered, where `auth.keys` lists keys; or no backend stores responses",
    ),
    error(ErrorCode::UnknownPath, "unknown_path", 404, "the path is unknown"),
    error(
        ErrorCode::MethodNotAllowed,
        "method_not_allowed",
        405,
        "the path is known, the method is not; see `Allow`",
    ),
    error(
        ErrorCode::HeaderTimeout,
        "header_timeout",
        408,
        "the request head did not arrive within `limits.header_timeout`, on the admin port `admin.header_timeout`",
    ),
    error(
        ErrorCode::BodyTimeout,
        "body_timeout",
        408,
        "the body did not arrive within `limits.body_read_timeout`, or slower than `limits.min_body_rate`",
    ),
    error(
        ErrorCode::BodyTooLarge,
        "body_too_large",
        413,
        "the body is larger than `limits.max_body_size`",
    ),
    error(ErrorCode::UriTooLong, "uri_too_long", 414, "the request target is longer than 16 KiB"),
    error(
        ErrorCode::UnsupportedEncoding,
        "unsupported_encoding",
        415,
        "the body has a `Content-Encoding` that is not decoded, or several, or is not of the operation's media type",
    ),
    error(
        ErrorCode::UpgradeRequired,
        "upgrade_required",
        426,
        "a WebSocket on a path that is served over HTTP; clients such as Codex then send their requests",
    ),
    error(
        ErrorCode::HeadTooLarge,
        "head_too_large",
        431,
        "the request head exceeds `limits.max_head_size` or `limits.max_headers`",
    ),
    busy(
        ErrorCode::BackendsCoolingDown,
        "backends_cooling_down",
        429,
        "every backend is in cooldown after a 429; see `Retry-After`",
    ),
    busy(
        ErrorCode::TooManyEnsembles,
        "too_many_ensembles",
        429,
        "ensembles reached `ensembles.in_flight`, or those of the key its `ensembles`",
    ),
    busy(
        ErrorCode::RateLimited,
        "rate_limited",
        429,
        "a limit of the key (`auth.limits`, `auth.keys[].limits`) or of the client's address (`limits.per_client`) is used up; see `Retry-After`",
    ),
    ErrorRow {
        // An early retry finds the same budget.
        retry: false,
        ..busy(
            ErrorCode::BudgetExceeded,
            "budget_exceeded",
            429,
            "a budget of the client has no room for what the request may cost; see `Retry-After`",
        )
    },
    busy(
        ErrorCode::ObjectiveMissed,
        "objective_missed",
        429,
        "the request has a priority below 0, and its objectives are predicted to be missed on every backend (strategy `slo`), or were missed while it waited in a queue; see `Retry-After`",
    ),
    error(
        ErrorCode::BadUpstreamResponse,
        "bad_upstream_response",
        502,
        "the backend's response is not valid HTTP",
    )
    .saying("The rest of the backend's response cannot be relayed"),
    error(
        ErrorCode::UpstreamClosed,
        "upstream_closed",
        502,
        "the backend read the request and closed without a response",
    ),
    error(
        ErrorCode::NoOllamaBackend,
        "no_ollama_backend",
        501,
        "a command manages models, and no backend is an Ollama",
    ),
    busy(
        ErrorCode::TooManyCommands,
        "too_many_commands",
        503,
        "more pulls, creates, copies, deletes, pushes and uploads at one time than `ollama.commands`",
    ),
    error(
        ErrorCode::NoBackendInZone,
        "no_backend_in_zone",
        503,
        "a policy admits only some zones, and no backend there can take the request",
    ),
    busy(
        ErrorCode::BudgetsUnreached,
        "budgets_unreached",
        503,
        "the server of `shared_state` is not reached, so that it is unknown whether a budget has room (`shared_state.budgets_alone: refuse`)",
    ),
    error(
        ErrorCode::NoHealthyBackend,
        "no_healthy_backend",
        503,
        "backends serve the model, none of them is healthy",
    ),
    error(
        ErrorCode::FallbackChainExhausted,
        "fallback_chain_exhausted",
        503,
        "neither the model nor its fallbacks can be served now",
    ),
    busy(
        ErrorCode::AllBackendsBusy,
        "all_backends_busy",
        503,
        "every backend, or the model on it, is at its limit of requests in flight or of backlog, or in cooldown after a 503",
    ),
    busy(
        ErrorCode::QueueFull,
        "queue_full",
        503,
        "every backend of the model is full, and `queue.size` requests wait; or another request took the place of this one: a more important one, or one of a key with fewer there; see `Retry-After`",
    ),
    busy(
        ErrorCode::DiscoveryPending,
        "discovery_pending",
        503,
        "some backend has not reported its models yet, and `discovery.give_up` has not passed",
    ),
    busy(
        ErrorCode::BodyMemoryFull,
        "body_memory_full",
        503,
        "held bodies reached `limits.buffered_bodies`",
    ),
    busy(
        ErrorCode::ResponseMemoryFull,
        "response_memory_full",
        503,
        "held responses reached `limits.buffered_responses`; see `Retry-After`",
    )
    .saying("Too many responses are held at once (limits.buffered_responses)"),
    error(
        ErrorCode::UsageUnavailable,
        "usage_unavailable",
        503,
        "`usage.streams` are open, or the token ledger cannot be read",
    ),
    error(
        ErrorCode::TokenKeysUnavailable,
        "token_keys_unavailable",
        503,
        "the keys of the token's issuer were never fetched, so it cannot be checked (`auth.jwt`)",
    ),
    error(
        ErrorCode::TooManyConnections,
        "too_many_connections",
        503,
        "client connections reached `limits.connections`",
    ),
    error(
        ErrorCode::OutOfResources,
        "out_of_resources",
        503,
        "penstock itself has run out of file descriptors, local ports or memory; the message names which",
    ),
    error(ErrorCode::ConnectFailed, "connect_failed", 503, "no backend accepted a connection"),
    busy(
        ErrorCode::QueueTimeout,
        "queue_timeout",
        504,
        "the request waited for `queue.timeout`, and no backend had room; see `Retry-After`",
    ),
    ErrorRow {
        retry_after: Some(EARLY),
        ..error(
            ErrorCode::ConnectTimeout,
            "connect_timeout",
            504,
            "no backend accepted a connection within `timeouts.connect`",
        )
        .saying("No backend accepted a connection in time")
    },
    error(
        ErrorCode::FirstTokenTimeout,
        "first_token_timeout",
        504,
        "no token within `timeouts.first_token`",
    )
    .saying("The backend sent no token in time"),
    error(
        ErrorCode::BetweenTokensTimeout,
        "between_tokens_timeout",
        504,
        "no further token within `timeouts.between_tokens`",
    )
    .saying("The backend stopped sending tokens"),
    error(
        ErrorCode::ResponseTimeout,
        "response_timeout",
        504,
        "no complete response within `timeouts.response`",
    )
    .saying("The backend did not respond in time"),
    error(ErrorCode::TotalTimeout, "total_timeout", 504, "the request exceeded `timeouts.total`")
        .saying("The request took longer than it may"),
    error(ErrorCode::InternalError, "internal_error", 500, "an internal error of penstock"),
];
