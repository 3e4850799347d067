//! Names of header fields, and which of them never travel past one connection.

use http::header::{self, HeaderName};

/// `x-request-id`.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `x-api-key`, Anthropic's way to send a key.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Milliseconds to the first token that a client wants.
pub(crate) const SLO_TTFT: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
/// Milliseconds per token that a client wants.
pub(crate) const SLO_TPOT: HeaderName = HeaderName::from_static("x-slo-tpot-ms");
/// The priority of a request.
pub(crate) const PRIORITY: HeaderName = HeaderName::from_static("x-priority");
/// The name of its objective.
pub(crate) const OBJECTIVE: HeaderName = HeaderName::from_static("x-gateway-inference-objective");

/// Fields that tell a load balancer what to do with a request: no engine gets them.
pub(crate) fn is_control(name: &HeaderName) -> bool {
    [&SLO_TTFT, &SLO_TPOT, &PRIORITY, &OBJECTIVE].contains(&name)
        || [
            "x-gateway-inference-fairness-id",
            "x-prediction-based-scheduling",
            "x-prediction-based-scheduling-off",
        ]
        .contains(&name.as_str())
}

/// Hop-by-hop fields (RFC 9110 §7.6.1): they concern one connection and are never forwarded.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == header::CONNECTION
        || *name == header::TRANSFER_ENCODING
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::UPGRADE
        || matches!(
            name.as_str(),
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "http2-settings"
        )
}
