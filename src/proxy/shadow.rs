//! Shows decisions to the shadow strategy (`routing.shadow`).

use std::sync::Arc;

use http::header::HeaderValue;
use pingora_proxy::Session;

use super::context::{RequestContext, ScannedRequest};
use crate::clock::now;
use crate::fleet::InflightGuard;
use crate::routing::RoutingDecision;
use crate::shadow::{InFlight, Shadow, Sighting};

/// Shows a decision to the shadow, where there is one. Only first attempts count: a retry goes where
/// the failure allows. The result is kept for as long as the attempt lasts.
pub(crate) fn show_shadow(
    session: &Session,
    ctx: &RequestContext,
    request: &ScannedRequest,
    (decision, guard): (&RoutingDecision, &InflightGuard),
) -> Option<InFlight> {
    let shadow = ctx.generation.shadow.as_deref()?;
    let body = request.body.as_ref().filter(|_| ctx.record.attempts == 1)?;
    shadow.show(Sighting {
        at: now(),
        request: request.profile,
        body: body.bytes.clone(),
        session: session_of(session, shadow),
        fleet: Arc::clone(&request.fleet),
        place: (decision.model, decision.row),
        backend: decision.backend,
        taken: guard.taken(),
    })
}

fn session_of(session: &Session, shadow: &Shadow) -> Option<u64> {
    let headers = &session.req_header().headers;
    let values = |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    shadow.session_field()?.read(values)
}
