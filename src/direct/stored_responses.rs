//! Stored responses of OpenAI's Responses API: `GET` and `DELETE /v1/responses/{id}`, its `cancel`
//! and its `input_items`. Only the backend that made a response has it, and only the key it was
//! made for may read it, as far as that is remembered.

use std::sync::Arc;

use penstock_api::{ErrorCode, Operation};
use penstock_clock::now;
use penstock_core::fleet::{BackendId, BackendSet, Health, Openings, Topology};
use penstock_core::routing::{PolicyScope, ReturnLine};

use crate::direct::{DirectTerms, attempt_directly, decide_for, end_directly, final_end};
use crate::downstream::body::HeldBody;
use crate::proxy::Proxy;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::send_error;
use crate::proxy::policies;
use crate::proxy::request::ScannedRequest;

/// Serves a request for a stored response from the backend that made it. If that is unknown, it is
/// served from the first that has it.
pub(crate) async fn serve_stored(flow: &mut Flow<'_>, id: &str, body: HeldBody) -> Served {
    let fleet = flow.ctx.generation.fleet.topology();
    let owner = match flow.proxy.response_ids.backend_of(id.as_bytes(), flow.ctx.key_owner()) {
        Ok(owner) => owner,
        Err(error) => return send_error(flow, error).await,
    };
    let scope = match policies::of_unread(flow.ctx, &flow.client.head().headers) {
        Ok(scope) => scope,
        Err(error) => return send_error(flow, error).await,
    };
    let mut order = candidates(&fleet, owner);
    // A response stays where it was made: only its own backend is outside the zones, if any.
    order.retain(|id| {
        let backend = fleet.backends.iter().find(|one| one.state.id == *id);
        owner == Some(*id) || backend.is_some_and(|one| policies::admits(&scope, &fleet, one))
    });
    let at = flow.ctx.arrived_at;
    let mut request = ScannedRequest::direct(at, Arc::clone(&fleet), body, scope);
    let mut last_failure = None;
    for (index, backend) in order.iter().enumerate() {
        request.policy = scope;
        let Some(decision) = decide_for(&fleet, *backend) else { continue };
        // The 404 of the last one goes to the client.
        let may_miss = index + 1 < order.len();
        let terms = DirectTerms { may_miss, is_limited: false };
        if owner == Some(*backend) {
            request.policy = PolicyScope::default();
        }
        let end = attempt_directly(flow, &mut request, &decision, terms).await;
        if let Some(end) = final_end(end, &mut last_failure) {
            return end_directly(flow, end).await;
        }
        if last_failure.is_some() && owner == Some(*backend) {
            // The other backends do not have it: their 404 would say that it is gone.
            break;
        }
    }
    match last_failure {
        Some(failure) => send_error(flow, OwnError::from_failure(&failure)).await,
        None => {
            let error = unserved(flow.proxy, &fleet, &scope, id);
            send_error(flow, error).await
        }
    }
}

/// The error when no backend was queried: none is up, or none stores responses, so that there is no
/// such response.
fn unserved(proxy: &Proxy, fleet: &Topology, scope: &PolicyScope, id: &str) -> OwnError {
    let rows = fleet.models().iter().flat_map(|model| &model.serving);
    let storing = rows.filter(|row| row.native_operations.contains(Operation::Responses));
    let (mut backends, mut openings) = (BackendSet::default(), Openings::default());
    let (mut may_be_stored, now) = (false, now());
    for row in storing {
        may_be_stored = true;
        let backend = fleet.backends.get(usize::from(row.backend));
        if let Some(backend) = backend.filter(|one| policies::admits(scope, fleet, one)) {
            backends.insert(row.id);
            openings.add_unlimited(row.state.time_until_usable(&backend.config.health, now));
        }
    }
    // Such a backend exists, and only cannot be reached now: a 404 would be final for the client.
    if may_be_stored || !fleet.is_complete() {
        let message = "No healthy backend serves stored responses";
        let line = ReturnLine::Backends(backends);
        let wait = (!backends.is_empty()).then(|| proxy.returns.after(line, None, &openings, now));
        return OwnError::new(ErrorCode::NoHealthyBackend, message).after_known(wait);
    }
    let message = format!("Response '{id}' not found: no backend stores responses");
    OwnError::new(ErrorCode::ResponseNotFound, message)
}

/// The backends to query, the owner first; the others only while they are up.
fn candidates(fleet: &Topology, owner: Option<BackendId>) -> Vec<BackendId> {
    let owner = owner.filter(|id| fleet.backends.iter().any(|one| one.state.id == *id));
    let mut order: Vec<BackendId> = owner.into_iter().collect();
    for model in fleet.models() {
        for row in &model.serving {
            // A draining backend still has what it stores.
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
