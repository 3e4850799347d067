//! The response to a request that no further attempt is made for: the last attempt explains more
//! than the lack of a backend.

use http::header;
use penstock_core::fleet::{Outcome, Topology};
use penstock_core::routing::{RouteError, RoutingDecision};

use crate::proxy::Proxy;
use crate::proxy::decision::{DecisionFailure, record_rejections};
use crate::proxy::failure::{OwnError, held_outcome};
use crate::proxy::flow::{Flow, RequestContext, Served};
use crate::proxy::own_response::{
    OwnResponse, advise_against_retry, send, send_error, send_held, to_retry_after,
};
use crate::proxy::queue::AdmissionFailure;
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::proxy::retry::{LastAttempt, Past};
use crate::proxy::return_time::{return_time, time_of_room};
use crate::proxy::similar_model::with_similar_model;
use crate::upstream::failure::{AttemptFailure, HeldResponse, HoldReason};
use crate::upstream::retry_after::standard_field;

/// Sends a response of penstock's own.
pub(super) async fn send_own(
    flow: &mut Flow<'_>,
    response: Result<OwnResponse, OwnError>,
) -> Served {
    match response {
        Ok(response) => {
            flow.ctx.record.response.status = response.head.status.as_u16();
            send(flow, response).await
        }
        Err(error) => send_error(flow, error).await,
    }
}

/// Responds with the engine's own refusal, if there was one that explains the end of the request.
pub(super) async fn send_engine_refusal(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
) -> Option<Served> {
    let (held, decision) = request.shift.as_mut()?.last.take()?;
    record_backend(flow.ctx, &decision, &request.fleet);
    Some(send_held(flow, held).await)
}

/// Responds to a request without a further attempt.
pub(super) async fn send_admission_failure(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    past: Past,
    reason: AdmissionFailure,
) -> Served {
    match reason {
        AdmissionFailure::Decision(DecisionFailure::ClientGone) => flow.ctx.end_cancelled(),
        AdmissionFailure::Decision(DecisionFailure::NoRoute(error)) => {
            record_rejections(flow.ctx, request);
            send_unserved(flow, request, past, error).await
        }
        AdmissionFailure::Queue(error) => {
            record_rejections(flow.ctx, request);
            send_queue_end(flow, request, past.last, error).await
        }
    }
}

/// Responds to a request that no backend is left for. Its last attempt explains more than the lack
/// of a backend.
async fn send_unserved(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    past: Past,
    error: RouteError,
) -> Served {
    if let Some(served) = send_engine_refusal(flow, request).await {
        return served;
    }
    match (past.last, past.conversion_failure) {
        (Some(last), _) => {
            let last = Box::new(LastAttempt { is_last: true, ..*last });
            send_failure(flow, request, last).await
        }
        (None, Some(reason)) => send_error(flow, reason.to_error()).await,
        (None, None) => {
            let error = route_error(flow.proxy, request.view(flow.ctx), &error);
            let error = with_similar_model(flow.ctx, &request.model, error);
            send_error(flow, error).await
        }
    }
}

/// Responds to a request that waited in the queue in vain, or could not wait. Prefers an earlier
/// 429 to the queue's timeout: it shows the client what to change.
async fn send_queue_end(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    last: Option<Box<LastAttempt>>,
    error: OwnError,
) -> Served {
    match last {
        Some(last) if last.failure.is_rate_limit() => send_failure(flow, request, last).await,
        _ => send_error(flow, error).await,
    }
}

/// Responds with the failure of the last attempt: a backend's own refusal if it sent one.
pub(super) async fn send_failure(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    last: Box<LastAttempt>,
) -> Served {
    let LastAttempt { failure, decision, fleet, is_last } = *last;
    if matches!(failure, AttemptFailure::Held(..)) {
        record_backend(flow.ctx, &decision, &fleet);
    }
    match failure {
        // The body has nothing that a client of this API could read.
        AttemptFailure::Held(refusal, held) if has_no_error(refusal, &held) => {
            flow.ctx.record.response.outcome = Some(Outcome::Fault);
            let error = OwnError::from_failure(&AttemptFailure::Held(refusal, held));
            send_error(flow, error).await
        }
        AttemptFailure::Held(refusal, mut held) => {
            flow.ctx.record.response.outcome = Some(held_outcome(refusal, held.status));
            let is_busy = matches!(refusal, HoldReason::RateLimited | HoldReason::Overloaded);
            if is_busy {
                name_return_time(flow, request, &mut held)?;
            }
            // Every backend that could take the request has been tried, or would refuse it.
            if is_last && is_busy || refusal == HoldReason::TooLarge {
                advise_against_retry(&mut held)?;
            }
            send_held(flow, held).await
        }
        // The prompt has cost two engines their connections: it must not be sent again.
        AttemptFailure::NoResponse { .. } if flow.ctx.record.routing.lost_connections > 1 => {
            let error = OwnError::from_failure(&failure).without_retry();
            send_error(flow, error).await
        }
        AttemptFailure::NotSent(_)
        | AttemptFailure::NoResponse { .. }
        | AttemptFailure::TimedOut(_)
        | AttemptFailure::BadResponse(_)
        | AttemptFailure::ClientGone => {
            let own = OwnError::from_failure(&failure);
            let wait = own.retry_after.and_then(|least| {
                Some(time_of_room(flow.proxy, request.view(flow.ctx), false)?.max(least))
            });
            send_error(flow, own.after_known(wait)).await
        }
    }
}

/// Adds the time to return to a refusal whose backend names none that lies ahead: its clients would
/// return at once, and it is in cooldown.
fn name_return_time(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    held: &mut HeldResponse,
) -> pingora::Result<()> {
    let named = standard_field(&held.header).filter(|wait| !wait.is_zero());
    if named.is_some() || !matches!(held.status, 429 | 503 | 529) {
        return Ok(());
    }
    let Some(wait) = time_of_room(flow.proxy, request.view(flow.ctx), false) else { return Ok(()) };
    held.header.insert_header(header::RETRY_AFTER, to_retry_after(wait))?;
    held.retry_after = Some(wait);
    Ok(())
}

/// Records the backend of a decision, whose response the client gets.
fn record_backend(ctx: &mut RequestContext, decision: &RoutingDecision, fleet: &Topology) {
    if let Some(serving) = decision.serving(fleet)
        && let Some(backend) = fleet.backends.get(usize::from(serving.backend))
    {
        ctx.record_backend(serving, backend);
    }
}

/// Returns whether a response that is held back has no error to pass on.
fn has_no_error(refusal: HoldReason, held: &HeldResponse) -> bool {
    match refusal {
        HoldReason::NoResult => true,
        HoldReason::NoWork => held.body.is_empty(),
        _ => false,
    }
}

/// The error for a request that no attempt could be made for, in the words of the client's dialect,
/// with the time to return.
pub(crate) fn route_error(proxy: &Proxy, view: RequestView<'_>, error: &RouteError) -> OwnError {
    let own = OwnError::from_route(error);
    let own = match return_time(proxy, view, error) {
        Some(wait) => own.after(wait),
        None => own,
    };
    match (error, view.ctx.dialect.row().unknown_model) {
        (RouteError::ModelNotFound { alias, .. }, Some(message)) => {
            OwnError::new(own.code, message(alias))
        }
        _ => own,
    }
}
