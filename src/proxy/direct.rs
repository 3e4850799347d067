//! Requests for one backend rather than for a model: no strategy picks it, and nothing is retried
//! elsewhere. It is otherwise an attempt like any other: in flight, timed, its outcome recorded.

mod kept;
pub(super) mod passed_ids;
pub(super) mod passthrough;
pub(super) mod response_ids;
pub(super) mod show;
pub(super) mod stored_responses;
pub(super) mod tunnel;

use pingora_proxy::Session;

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd};
use super::context::{RequestContext, ScannedRequest};
use super::forward::{exchange, hold};
use super::outcome::{AttemptResult, record_outcome};
use super::response::relay;
use crate::fleet::{BackendId, InflightGuard, ModelId, PermitRequest, Topology};
use crate::routing::RoutingDecision;
use crate::upstream::failure::{ConnectError, Failure};

/// How a direct attempt ended.
pub(crate) enum DirectEnd {
    /// As any attempt does.
    Ended(AttemptEnd),
    /// The backend does not have what was requested, and another one may.
    Missing,
    /// The backend has as many requests in flight as it may.
    Full,
}

/// What a direct attempt is allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectTerms {
    /// Whether another backend follows when this one does not have what was requested.
    pub(crate) may_miss: bool,
    /// Whether `max_in_flight` applies.
    pub(crate) is_limited: bool,
}

/// A decision for `backend`: its first row, of whatever model. `None` while it serves no model.
pub(crate) fn decide_for(fleet: &Topology, backend: BackendId) -> Option<RoutingDecision> {
    (0..).zip(fleet.models()).find_map(|(number, model)| {
        let row = model.serving.iter().position(|row| row.id == backend)?;
        Some(RoutingDecision::direct(backend, ModelId(number), u32::try_from(row).ok()?))
    })
}

/// Sends a request to the backend of `decision`, and relays the response.
pub(crate) async fn attempt_directly(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    decision: &RoutingDecision,
    terms: DirectTerms,
) -> DirectEnd {
    let fleet = std::sync::Arc::clone(&request.fleet);
    let client = ctx.client.clone();
    let (Some(client), Some(serving)) = (&client, decision.serving(&fleet)) else {
        debug_assert!(false, "a decision names a backend of the fleet it was made on");
        return failed(Failure::NotSent(ConnectError::NoAddress));
    };
    let most = if terms.is_limited { serving.max_in_flight } else { u32::MAX };
    let permit = InflightGuard::try_reserve(&serving.state, most, &PermitRequest::default());
    let Some(permit) = permit else { return DirectEnd::Full };
    ctx.record.attempts += 1;
    request.decision = Some(*decision);
    let attempt = Attempt::start(ctx, decision, &fleet, client, permit, &proxy.seeds);
    let Some(attempt) = attempt else {
        return failed(Failure::NotSent(ConnectError::NoAddress));
    };
    let end = match exchange(proxy, session, ctx, request, &attempt).await {
        Ok(reply) if terms.may_miss && matches!(reply.head.status, 404 | 405 | 501) => {
            match hold(proxy, reply).await {
                Ok(_held) => None,
                Err(client_gone) => Some(AttemptEnd::Failed(client_gone)),
            }
        }
        Ok(reply) => {
            request.body = None;
            Some(AttemptEnd::Relayed(relay(proxy, session, ctx, request, reply, None).await))
        }
        Err(failure) => Some(AttemptEnd::Failed(failure)),
    };
    let result = match &end {
        Some(end) => AttemptResult::of(end, ctx, proxy.seeds.next_share()),
        None => AttemptResult::by_status(404, ctx),
    };
    record_outcome(&attempt, &result, &ctx.generation.router, &proxy.observers);
    end.map_or(DirectEnd::Missing, DirectEnd::Ended)
}

fn failed(failure: Failure) -> DirectEnd {
    DirectEnd::Ended(AttemptEnd::Failed(failure))
}
