//! Header fields that tell a load balancer what to do with a request: no engine gets them.

use http::header::HeaderName;

/// Milliseconds to the first token that a client wants.
pub const SLO_TTFT: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
/// Milliseconds per token that a client wants.
pub const SLO_TPOT: HeaderName = HeaderName::from_static("x-slo-tpot-ms");
/// The priority of a request.
pub const PRIORITY: HeaderName = HeaderName::from_static("x-priority");
/// The name of its objective.
pub const OBJECTIVE: HeaderName = HeaderName::from_static("x-gateway-inference-objective");

/// The tenant that a request belongs to.
pub const FAIRNESS_ID: HeaderName = HeaderName::from_static("x-gateway-inference-fairness-id");

/// Requests a `server-timing` field in the response.
pub const TIMING: HeaderName = HeaderName::from_static("x-penstock-timing");

/// Whether the field is one of these, or of those that other load balancers read.
pub fn is_control_field(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-")
        && ([&SLO_TTFT, &SLO_TPOT, &PRIORITY, &OBJECTIVE, &FAIRNESS_ID, &TIMING].contains(&name)
            || ["x-prediction-based-scheduling", "x-prediction-based-scheduling-off"]
                .contains(&name.as_str()))
}
