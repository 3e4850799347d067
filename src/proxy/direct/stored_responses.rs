//! Stored responses of OpenAI's Responses API: `GET` and `DELETE /v1/responses/{id}`, its `cancel` and
//! its `input_items`. Only the backend that made a response has it, and only the key it was made for may
//! read it, as far as that is remembered.

use std::sync::Arc;

use pingora_proxy::Session;

use crate::api::{ErrorCode, Operation};
use crate::downstream::body::HeldBody;
use crate::fleet::{BackendId, Health, Topology};
use crate::proxy::Proxy;
use crate::proxy::attempt::AttemptEnd;
use crate::proxy::context::{RequestContext, ScannedRequest, Served};
use crate::proxy::direct::{DirectTerms, attempt_directly, decide_for, end_directly};
use crate::proxy::failure::OwnError;
use crate::proxy::own_response::send_error;
use crate::proxy::target::Target;
use crate::upstream::failure::Failure;

/// Serves a request for a stored response from the backend that made it, or, where that is not known,
/// from the first backend that has it.
pub(crate) async fn serve_stored(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    body: HeldBody,
) -> Served {
    let fleet = ctx.generation.fleet.topology();
    let path = session.req_header().uri.path();
    let compat = ctx.generation.config.server.compat;
    let stored = match Target::of(path, &ctx.generation.router.passthrough, compat) {
        Target::StoredResponse { id, .. } => {
            proxy.response_ids.backend_of(id.as_bytes(), ctx.key_owner())
        }
        _ => Ok(None),
    };
    let owner = match stored {
        Ok(owner) => owner,
        Err(error) => return send_error(proxy, session, ctx, error).await,
    };
    let order = candidates(&fleet, owner);
    let mut request = ScannedRequest::direct(ctx, Operation::Passthrough, Arc::clone(&fleet), body);
    let mut last_failure = None;
    for (index, backend) in order.iter().enumerate() {
        let Some(decision) = decide_for(&fleet, *backend) else { continue };
        let may_miss = index + 1 < order.len();
        let terms = DirectTerms { may_miss, is_limited: false };
        match attempt_directly(proxy, session, ctx, &mut request, &decision, terms).await {
            None | Some(AttemptEnd::Elsewhere(_)) => {}
            Some(AttemptEnd::Failed(failure)) if !matches!(failure, Failure::ClientGone) => {
                last_failure = Some(failure);
            }
            Some(end) => return end_directly(proxy, session, ctx, end).await,
        }
        if last_failure.is_some() && owner == Some(*backend) {
            // Others do not have it: their 404 would say that it is gone.
            break;
        }
    }
    match last_failure {
        Some(failure) => send_error(proxy, session, ctx, OwnError::from_failure(&failure)).await,
        None => {
            let message = "No healthy backend serves stored responses";
            let error = OwnError::new(ErrorCode::NoHealthyBackend, message);
            send_error(proxy, session, ctx, error).await
        }
    }
}

/// The backends to query, the owner first; the others only while they are up.
fn candidates(fleet: &Topology, owner: Option<BackendId>) -> Vec<BackendId> {
    let is_known = |id: &BackendId| fleet.backends.iter().any(|backend| backend.state.id == *id);
    let owner = owner.filter(is_known);
    let mut order: Vec<BackendId> = owner.into_iter().collect();
    for model in fleet.models() {
        for row in &model.serving {
            let is_up = matches!(row.state.status(), Health::Healthy | Health::Draining)
                && row.state.breaker.is_closed();
            let serves = row.native_operations.contains(Operation::Responses);
            if is_up && serves && !order.contains(&row.id) {
                order.push(row.id);
            }
        }
    }
    order
}
