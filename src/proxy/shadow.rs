//! Shows decisions to the shadow strategy (`routing.shadow`).

use std::sync::Arc;

use http::header::HeaderValue;
use pingora_proxy::Session;

use super::context::{RequestContext, ScannedRequest};
use crate::clock::now;
use crate::fleet::Probe;
use crate::routing::audit::{ObservedDecision, Shadow};
use crate::routing::{RoutingDecision, Trace};

/// Shows a decision to the shadow, where there is one. Only first attempts count: a retry goes where
/// the failure allows.
pub(crate) fn show_shadow(
    session: &Session,
    ctx: &RequestContext,
    request: &ScannedRequest,
    decision: &RoutingDecision,
    trace: Trace,
) {
    let Some(shadow) = ctx.generation.shadow.as_deref() else { return };
    let Some(body) = request.body.as_ref().filter(|_| ctx.record.attempts == 1) else { return };
    shadow.observe(ObservedDecision {
        at: now(),
        request: request.profile,
        body: body.bytes.clone(),
        session: session_of(session, shadow),
        topology: Arc::clone(&request.fleet),
        model: decision.model,
        row: decision.row,
        is_next_probe: decision.probe == Probe::Cooldown,
        trace,
    });
}

fn session_of(session: &Session, shadow: &Shadow) -> Option<u64> {
    let headers = &session.req_header().headers;
    let values = |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    shadow.session_field()?.read(values)
}
