//! The table of error codes.

use std::time::Duration;

use super::{ErrorCode, ErrorRow};

const REQUEST: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// The time after which a request that was not started may come again.
const EARLY: Duration = Duration::from_secs(1);

const fn error(code: ErrorCode, status: u16, when: &'static str) -> ErrorRow {
    let (kind, anthropic_kind) = match status {
        401 => ("authentication_error", "authentication_error"),
        403 => ("authentication_error", "permission_error"),
        404 | 405 => (REQUEST, "not_found_error"),
        413 => (REQUEST, "request_too_large"),
        429 => ("rate_limit_error", "rate_limit_error"),
        400..=499 => (REQUEST, REQUEST),
        503 => (SERVER, "overloaded_error"),
        504 => (SERVER, "timeout_error"),
        _ => (SERVER, "api_error"),
    };
    // A retry with the same bytes gets the same 4xx; 429 and 503 are temporary.
    let retry = matches!(status, 408 | 429 | 502 | 503 | 504);
    // Nothing was started anywhere, so an early retry is safe.
    let retry_after = if status == 503 { Some(EARLY) } else { None };
    let name = code.name();
    ErrorRow {
        code,
        name,
        status,
        kind,
        anthropic_kind,
        retry,
        retry_after,
        is_busy: false,
        message: None,
        when,
    }
}

/// A row that counts as `busy`.
const fn busy(code: ErrorCode, status: u16, when: &'static str) -> ErrorRow {
    ErrorRow { is_busy: true, ..error(code, status, when) }
}

impl ErrorRow {
    /// The row with the message of an attempt that ends with its code.
    const fn saying(self, message: &'static str) -> Self {
        Self { message: Some(message), ..self }
    }
}

/// Every error penstock makes itself, in the order of [`ErrorCode`].
pub const ERROR_CODES: &[ErrorRow] = &[
    error(ErrorCode::InvalidRequest, 400, "the HTTP request itself is malformed, or its query"),
    error(ErrorCode::InvalidJson, 400, "the body is not valid JSON, UTF-8 or multipart"),
    error(ErrorCode::InvalidType, 400, "a field penstock reads has the wrong type"),
    error(
        ErrorCode::AmbiguousField,
        400,
        "a field that penstock decides by is there in another spelling (`Model`), or in a second place (query and body), and an engine may read that one",
    ),
    error(
        ErrorCode::NotConvertible,
        400,
        "the backends of the model speak another API, which has no form for a field of the request",
    ),
    error(ErrorCode::MissingModel, 400, "no `model`, or an empty one"),
    error(
        ErrorCode::CapabilityMismatch,
        400,
        "no backend has the capabilities the request needs; the message lists them, and what each of up to five backends lacks",
    ),
    error(
        ErrorCode::TokenLimitTooSmall,
        400,
        "prompt and `max_tokens` alone exceed `tokens_per_minute` or `tokens_per_day` of the client: no wait helps",
    ),
    error(
        ErrorCode::ContextLengthExceeded,
        400,
        "the prompt is longer than every backend's context",
    ),
    error(ErrorCode::InvalidApiKey, 401, "the key is missing or unknown"),
    error(ErrorCode::KeyExpired, 401, "the key has expired"),
    error(ErrorCode::KeyRevoked, 401, "the key was revoked"),
    error(ErrorCode::KeyNotYetValid, 401, "the key is not valid yet"),
    error(ErrorCode::WrongApiKey, 403, "the key is unknown, where `server.compat` is nomyo"),
    error(ErrorCode::ModelNotAllowed, 403, "the key may not use this model"),
    error(
        ErrorCode::ManagementNotAllowed,
        403,
        "neither `ollama.manage_models` nor `manage_models` of the key allows to manage models, or to see the usage of all clients",
    ),
    error(ErrorCode::ModelNotFound, 404, "no backend serves the model"),
    error(
        ErrorCode::ResponseNotFound,
        404,
        "the stored response or conversation is another key's; the response is no longer remembered, where `auth.keys` lists keys; or no backend stores responses",
    ),
    error(ErrorCode::UnknownPath, 404, "the path is unknown"),
    error(ErrorCode::MethodNotAllowed, 405, "the path is known, the method is not; see `Allow`"),
    error(
        ErrorCode::HeaderTimeout,
        408,
        "the request head did not arrive within `limits.header_timeout`, on the admin port `admin.header_timeout`",
    ),
    error(
        ErrorCode::BodyTimeout,
        408,
        "the body did not arrive within `limits.body_read_timeout`, or slower than `limits.min_body_rate`",
    ),
    error(ErrorCode::BodyTooLarge, 413, "the body is larger than `limits.max_body_size`"),
    error(ErrorCode::UriTooLong, 414, "the request target is longer than 16 KiB"),
    error(
        ErrorCode::UnsupportedEncoding,
        415,
        "the body has a `Content-Encoding` that is not decoded, or several, or is not of the operation's media type",
    ),
    error(
        ErrorCode::UpgradeRequired,
        426,
        "a WebSocket on a path that is served over HTTP; clients such as Codex then send their requests",
    ),
    error(
        ErrorCode::HeadTooLarge,
        431,
        "the request head exceeds `limits.max_head_size` or `limits.max_headers`",
    ),
    busy(
        ErrorCode::BackendsCoolingDown,
        429,
        "every backend is in cooldown after a 429; see `Retry-After`",
    ),
    busy(
        ErrorCode::TooManyEnsembles,
        429,
        "ensembles reached `ensembles.in_flight`, or those of the key its `ensembles`",
    ),
    busy(
        ErrorCode::RateLimited,
        429,
        "a limit of the key (`auth.limits`, `auth.keys[].limits`) or of the client's address (`limits.per_client`) is used up; see `Retry-After`",
    ),
    ErrorRow {
        // An early retry finds the same budget.
        retry: false,
        ..busy(
            ErrorCode::BudgetExceeded,
            429,
            "a budget of the client has no room for what the request may cost; see `Retry-After`",
        )
    },
    busy(
        ErrorCode::ObjectiveMissed,
        429,
        "the request has a priority below 0, and its objectives are predicted to be missed on every backend (strategy `slo`), or were missed while it waited in a queue; see `Retry-After`",
    ),
    error(
        ErrorCode::BadUpstreamResponse,
        502,
        "the backend's response is not valid HTTP, is not the response to the request, or cannot be converted",
    )
    .saying("The rest of the backend's response cannot be relayed"),
    error(
        ErrorCode::UpstreamClosed,
        502,
        "the backend read the request and closed before its response was complete",
    ),
    error(ErrorCode::NoOllamaBackend, 501, "a command manages models, and no backend is an Ollama"),
    busy(
        ErrorCode::TooManyCommands,
        503,
        "more pulls, creates, copies, deletes, pushes and uploads at one time than `ollama.commands`",
    ),
    error(
        ErrorCode::NoBackendInZone,
        503,
        "a policy admits only some zones, and no backend there can take the request",
    ),
    busy(
        ErrorCode::BudgetsUnreached,
        503,
        "the server of `shared_state` is not reached, so that it is unknown whether a budget has room (`shared_state.budgets_alone: refuse`)",
    ),
    error(ErrorCode::NoHealthyBackend, 503, "backends serve the model, none of them is healthy"),
    error(
        ErrorCode::FallbackChainExhausted,
        503,
        "neither the model nor its fallbacks can be served now",
    ),
    busy(
        ErrorCode::AllBackendsBusy,
        503,
        "every backend, or the model on it, is at its limit of requests in flight or of backlog, or in cooldown after a 503",
    ),
    busy(
        ErrorCode::QueueFull,
        503,
        "every backend of the model is full, and `queue.size` requests wait; or another request took the place of this one: a more important one, or one of a key with fewer there; see `Retry-After`",
    ),
    busy(
        ErrorCode::DiscoveryPending,
        503,
        "some backend has not reported its models yet, and `discovery.give_up` has not passed",
    ),
    busy(ErrorCode::BodyMemoryFull, 503, "held bodies reached `limits.buffered_bodies`"),
    busy(
        ErrorCode::ResponseMemoryFull,
        503,
        "held responses reached `limits.buffered_responses`; see `Retry-After`",
    )
    .saying("Too many responses are held at once (limits.buffered_responses)"),
    error(
        ErrorCode::UsageUnavailable,
        503,
        "`usage.streams` are open, or the token ledger cannot be read",
    ),
    error(
        ErrorCode::TokenKeysUnavailable,
        503,
        "the keys of the token's issuer were never fetched, so it cannot be checked (`auth.jwt`)",
    ),
    error(ErrorCode::TooManyConnections, 503, "client connections reached `limits.connections`"),
    error(
        ErrorCode::OutOfResources,
        503,
        "penstock itself has run out of file descriptors, local ports or memory; the message names which",
    ),
    error(ErrorCode::ConnectFailed, 503, "no backend accepted a connection"),
    busy(
        ErrorCode::QueueTimeout,
        504,
        "the request waited for `queue.timeout`, and no backend had room; see `Retry-After`",
    ),
    ErrorRow {
        retry_after: Some(EARLY),
        ..error(
            ErrorCode::ConnectTimeout,
            504,
            "no backend accepted a connection within `timeouts.connect`",
        )
        .saying("No backend accepted a connection in time")
    },
    error(ErrorCode::FirstTokenTimeout, 504, "no token within `timeouts.first_token`")
        .saying("The backend sent no token in time"),
    error(
        ErrorCode::BetweenTokensTimeout,
        504,
        "no further token within `timeouts.between_tokens`",
    )
    .saying("The backend stopped sending tokens"),
    error(ErrorCode::ResponseTimeout, 504, "no complete response within `timeouts.response`")
        .saying("The backend did not respond in time"),
    error(ErrorCode::TotalTimeout, 504, "the request exceeded `timeouts.total`")
        .saying("The request took longer than it may"),
    error(ErrorCode::InternalError, 500, "an internal error of penstock"),
];
