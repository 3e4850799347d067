//! Header fields that tell a load balancer what to do with a request. No engine receives them.

use http::header::HeaderName;

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
