//! Header fields of requests: those that tell a load balancer what to do with a request, which no
//! engine receives, and the credentials that callers of both ports send; and the bytes of a token,
//! as names of fields and methods are.

use http::HeaderMap;
use http::header::{self, HeaderName};

/// The client's objective for the time to the first token, in milliseconds.
pub const SLO_TTFT: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
/// The client's objective for the time per token, in milliseconds.
pub const SLO_TPOT: HeaderName = HeaderName::from_static("x-slo-tpot-ms");
/// The priority of a request.
pub const PRIORITY: HeaderName = HeaderName::from_static("x-priority");
/// The configured objective that a request names.
pub const OBJECTIVE: HeaderName = HeaderName::from_static("x-gateway-inference-objective");

/// The tenant that a request belongs to.
pub const FAIRNESS_ID: HeaderName = HeaderName::from_static("x-gateway-inference-fairness-id");

/// A policy that is to hold for the request.
pub const POLICY: HeaderName = HeaderName::from_static("x-penstock-policy");
/// If true, backends below the tier of its policy must not take the request.
pub const STRICT: HeaderName = HeaderName::from_static("x-penstock-strict");

/// Requests a `server-timing` field in the response.
pub const TIMING: HeaderName = HeaderName::from_static("x-penstock-timing");

/// Returns whether the field is one of these, or one that other load balancers read.
pub fn is_control_field(name: &HeaderName) -> bool {
    let ours =
        [&SLO_TTFT, &SLO_TPOT, &PRIORITY, &OBJECTIVE, &FAIRNESS_ID, &POLICY, &STRICT, &TIMING];
    // Most names end here: only few fields of a request are compared with the whole list.
    name.as_str().starts_with("x-")
        && (ours.contains(&name)
            || ["x-prediction-based-scheduling", "x-prediction-based-scheduling-off"]
                .contains(&name.as_str()))
}

/// Returns the token of `Authorization: Bearer TOKEN`; the scheme is case-insensitive (RFC 9110
/// §11.1).
pub fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    token_of(headers.get(header::AUTHORIZATION)?.as_bytes())
}

/// Returns the token in the value of an `Authorization` header.
pub fn token_of(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    // More than one space may follow the scheme (RFC 9110 §11.4).
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Returns whether a byte may be in a token (RFC 9110 §5.6.2).
#[inline]
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
