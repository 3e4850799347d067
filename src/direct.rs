//! Requests for one backend rather than for a model: no strategy picks it. A stored response and
//! the page of a model are looked for on one backend after the other; nothing else is retried
//! elsewhere. Each is otherwise an attempt like any other: in flight, timed, its outcome recorded.

pub(crate) mod ambiguous_fields;
mod kept;
pub(crate) mod passthrough;
mod path_model;
pub(crate) mod stored_responses;
mod switched;
pub(crate) mod tunnel;

use async_trait::async_trait;
use penstock_api::ErrorCode;
use penstock_core::fleet::{BackendId, InflightGuard, ModelId, PermitRequest, Topology};
use penstock_core::routing::RoutingDecision;

use crate::proxy::attempt::{AttemptEnd, Elsewhere};
use crate::proxy::exchange::Reply;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::forward::{Recipient, TakeResponse, make_attempt};
use crate::proxy::own_response::send_error;
use crate::proxy::request::{Decided, ScannedRequest};
use crate::proxy::response::{keep_connection, relay};
use crate::upstream::disposition::MAX_HELD;
use crate::upstream::failure::{AttemptFailure, ExchangeError};

/// The permissions of a direct attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectTerms {
    /// True if another backend follows when this one does not have what was requested.
    pub(crate) may_miss: bool,
    /// True if `max_in_flight` applies.
    pub(crate) is_limited: bool,
}

/// A decision for `backend`: its first row, of any model. `None` while it serves no model.
pub(crate) fn decide_for(fleet: &Topology, backend: BackendId) -> Option<RoutingDecision> {
    (0..).zip(fleet.models()).find_map(|(number, model)| {
        let row = model.serving.iter().position(|row| row.id == backend)?;
        Some(RoutingDecision::direct(backend, ModelId(number), u32::try_from(row).ok()?))
    })
}

/// Sends a request to the backend of `decision`, and relays the response. Returns `None` if the
/// backend is at its limit of requests in flight, or in a zone that the request may not reach.
pub(crate) async fn attempt_directly(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    decision: &RoutingDecision,
    terms: DirectTerms,
) -> Option<AttemptEnd> {
    // `make_attempt` refuses it, too, but as a fault of penstock: here the next backend is tried.
    let row = decision.serving(&request.fleet);
    if row.is_some_and(|row| !request.policy.restriction.admits_zone(row.zone)) {
        return None;
    }
    let decided = reserve_directly(flow, &request.fleet, *decision, terms.is_limited)?;
    let to = DirectRecipient { may_miss: terms.may_miss };
    Some(make_attempt(flow, Recipient::Other(&to), request, decided).await)
}

/// Takes the in-flight permit of the backend of `decision`, and counts the attempt. Returns `None`
/// if `max_in_flight` applies (`is_limited`) and is reached.
pub(crate) fn reserve_directly(
    flow: &mut Flow<'_>,
    fleet: &Topology,
    decision: RoutingDecision,
    is_limited: bool,
) -> Option<Box<Decided>> {
    let serving = decision.serving(fleet);
    debug_assert!(serving.is_some(), "a decision names a backend of the fleet it was made on");
    let serving = serving?;
    let most = if is_limited { serving.max_in_flight } else { u32::MAX };
    let permit = InflightGuard::try_reserve(&serving.state, most, &PermitRequest::default())?;
    flow.ctx.record.routing.attempts += 1;
    Some(Box::new(Decided { decision, permit }))
}

/// Returns the end of an attempt, if it is final; `None` if another backend may be tried. A failure
/// then becomes `last_failure`.
pub(crate) fn final_end(
    end: Option<AttemptEnd>,
    last_failure: &mut Option<AttemptFailure>,
) -> Option<AttemptEnd> {
    match end {
        None | Some(AttemptEnd::Elsewhere(_)) => None,
        Some(AttemptEnd::Failed(failure)) if !matches!(failure, AttemptFailure::ClientGone) => {
            *last_failure = Some(failure);
            None
        }
        end => end,
    }
}

/// The client of a request for one backend.
struct DirectRecipient {
    /// True if another backend follows when this one does not have what was requested.
    may_miss: bool,
}

#[async_trait]
impl TakeResponse for DirectRecipient {
    async fn take(
        &self,
        flow: &mut Flow<'_>,
        request: &mut ScannedRequest,
        mut reply: Reply<'_>,
    ) -> Result<AttemptEnd, AttemptFailure> {
        if self.may_miss && matches!(reply.head.status, 404 | 405 | 501) {
            // Read, so that the connection may be used again.
            let read = reply.exchange.read_until(&mut reply.started, |read| read.len() >= MAX_HELD);
            if matches!(read.await, Err(ExchangeError::ClientGone)) {
                return Err(AttemptFailure::ClientGone);
            }
            keep_connection(flow.proxy, reply);
            return Ok(AttemptEnd::Elsewhere(Elsewhere::Missing));
        }
        request.body = None;
        Ok(AttemptEnd::Relayed(relay(flow, request, reply).await))
    }
}

/// Ends a request for one backend after its attempt. Responds with an error if nothing was sent.
pub(crate) async fn end_directly(flow: &mut Flow<'_>, end: AttemptEnd) -> Served {
    match end {
        AttemptEnd::Relayed(served) => served,
        AttemptEnd::Failed(AttemptFailure::ClientGone) => flow.ctx.end_cancelled(),
        AttemptEnd::Failed(failure) => send_error(flow, OwnError::from_failure(&failure)).await,
        AttemptEnd::Own { .. }
        | AttemptEnd::Gathered(_)
        | AttemptEnd::Elsewhere(_)
        | AttemptEnd::Changed
        | AttemptEnd::Moved(_) => {
            debug_assert!(false, "a request for one backend is relayed, or fails");
            let message = "The request has no response";
            send_error(flow, OwnError::new(ErrorCode::InternalError, message)).await
        }
    }
}
