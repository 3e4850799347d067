//! The distributed trace of a request: continued from the client's `traceparent`, else started
//! here.

use http::HeaderMap;
use penstock_api::{TRACEPARENT, TraceContext};
use penstock_config::TracingConfig;

use crate::seeds::Seeds;

/// The trace of a request; `None` when traces are not propagated.
pub(crate) fn trace_of(
    headers: &HeaderMap,
    config: &TracingConfig,
    seeds: &Seeds,
) -> Option<TraceContext> {
    if !config.propagate {
        return None;
    }
    let span = seeds.next();
    let mut given = headers.get_all(TRACEPARENT).iter();
    let continued = match (given.next(), given.next()) {
        (Some(only), None) => TraceContext::follow(only.as_bytes(), span),
        (Some(_), Some(_)) | (None, _) => None,
    };
    continued.or_else(|| {
        let trace_id = u128::from(seeds.next()) << 64 | u128::from(seeds.next());
        let is_sampled = seeds.next_share() < config.sample;
        Some(TraceContext::begin(trace_id, span, is_sampled))
    })
}
