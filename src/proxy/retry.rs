//! From a scanned request to a response: decide, attempt, and retry on another backend (failover)
//! where the failure is safe to retry and the budget allows it.

mod last_response;

pub(crate) use last_response::route_error;

use std::sync::Arc;

use penstock_api::Effect;
use penstock_clock::now;
use penstock_config::RetryUnanswered;
use penstock_core::fleet::Topology;
use penstock_core::routing::{RetrySafety, RoutingDecision};
use penstock_scan::is_switched_off;

use crate::proxy::attempt::{AttemptEnd, Elsewhere};
use crate::proxy::conversion::ConversionFailure;
use crate::proxy::decision::{DecisionFailure, decide, decide_moved};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext, Served};
use crate::proxy::forward::{Recipient, make_attempt};
use crate::proxy::own_response::OwnResponse;
use crate::proxy::queue::{
    AdmissionFailure, decide_after_cooldown, decide_from_queue, has_others_waiting, has_queue,
    keep_to_cooling, may_wait_after,
};
use crate::proxy::request::{Decided, ScannedRequest};
use crate::proxy::retry::last_response::{
    send_admission_failure, send_engine_refusal, send_failure, send_own,
};
use crate::proxy::rewrite::context_shift::{learn_refusal, pass_over_small, shorten_for};
use crate::upstream::failure::{AttemptFailure, HoldReason};
use crate::upstream::retry_safety::safety_of;

/// The last attempt that failed. Its failure is the response if no other backend is left.
struct LastAttempt {
    failure: AttemptFailure,
    decision: RoutingDecision,
    fleet: Arc<Topology>,
    /// True if every backend that could take the request has been tried, or would refuse it.
    is_last: bool,
}

/// The history of a request's attempts.
#[derive(Default)]
struct Past {
    last: Option<Box<LastAttempt>>,
    /// True if a backend has limited the client's rate.
    has_met_limit: bool,
    conversion_failure: Option<ConversionFailure>,
}

/// Finds a backend for the request and relays its response, or responds with the reason that there
/// is none.
pub(crate) async fn serve(flow: &mut Flow<'_>, mut request: Box<ScannedRequest>) -> Served {
    // Once per request, whatever its number of attempts: the budget is a share of the requests.
    flow.proxy.retries.earn(&flow.ctx.generation.config.routing.retry_budget);
    let mut past = Past::default();
    loop {
        if request.shift.is_some() {
            pass_over_small(flow.ctx, &mut request);
        }
        let decided = decide_in_turn(flow, &mut request).await;
        let decided = match decided {
            Ok(decided) => decided,
            Err(AdmissionFailure::Decision(DecisionFailure::NoRoute(error)))
                if request.shift.is_some() && shorten_for(flow.ctx, &mut request, &error) =>
            {
                continue;
            }
            Err(reason) => {
                let sent = send_admission_failure(flow, &mut request, past, reason);
                return Box::pin(sent).await;
            }
        };
        let decision = decided.decision;
        // Boxed, as what follows: a request that waits in a queue should not carry room for it.
        let attempt = make_attempt(flow, Recipient::Client, &mut request, decided);
        let end = Box::pin(attempt).await;
        let sent = match after_attempt(flow, &mut request, &mut past, decision, end) {
            Next::Attempt => None,
            Next::Served(served) => Some(served),
            Next::Own(response) => Some(Box::pin(send_own(flow, *response)).await),
            Next::Failure(attempt) => Some(Box::pin(send_failure(flow, &request, attempt)).await),
            Next::Refusal => Box::pin(send_engine_refusal(flow, &mut request)).await,
        };
        if let Some(served) = sent {
            return served;
        }
    }
}

/// Picks a backend for the next attempt, as [`decide`] does. If all of them are full and a queue is
/// configured, the request waits until it is its turn; if others wait already, it lines up behind
/// them.
///
/// # Errors
/// When no backend can take it, it has waited for too long or cannot wait, or its client has left.
pub(crate) async fn decide_in_turn(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
) -> Result<Box<Decided>, AdmissionFailure> {
    if let Some(reserved) = request.moved.take() {
        return Ok(decide_moved(flow, request, *reserved));
    }
    if flow.proxy.has_waiting() && has_others_waiting(flow, request) {
        return Box::pin(decide_from_queue(flow, request, None)).await;
    }
    let decided = match flow.ctx.record.queue.refusals {
        0 => decide(flow, request),
        _ => decide_after_cooldown(flow, request),
    };
    match decided {
        Err(DecisionFailure::NoRoute(error)) if error.may_pass() && has_queue(flow.proxy) => {
            // Boxed: no other request should carry room for it.
            Box::pin(decide_from_queue(flow, request, Some(error))).await
        }
        decided => decided.map_err(AdmissionFailure::Decision),
    }
}

/// The step after an attempt.
enum Next {
    Attempt,
    /// No step: the client has its response, or is gone.
    Served(Served),
    /// A response of penstock's own.
    Own(Box<Result<OwnResponse, OwnError>>),
    /// The failure of the last attempt.
    Failure(Box<LastAttempt>),
    /// An engine's refusal of a conversation that cannot be shortened, if there is one.
    Refusal,
}

/// Decides what follows an attempt at `decision`; `request` and `past` remember what it showed.
fn after_attempt(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    past: &mut Past,
    decision: RoutingDecision,
    end: AttemptEnd,
) -> Next {
    match end {
        AttemptEnd::Relayed(served) => {
            record_expected_cached(flow.ctx, &decision);
            return Next::Served(served);
        }
        AttemptEnd::Own { response, .. } => return Next::Own(Box::new(response)),
        AttemptEnd::Failed(AttemptFailure::ClientGone) => {
            return Next::Served(flow.ctx.end_cancelled());
        }
        AttemptEnd::Failed(failure) => {
            let fleet = Arc::clone(&request.fleet);
            let is_refused_again = past.has_met_limit && failure.is_turned_away();
            // After the comparison, which is about the attempts before this one.
            past.has_met_limit |= failure.is_rate_limit();
            // Otherwise every refused request would reach the backends in cooldown. A request that
            // was not refused would fail without them.
            request.may_probe &= !failure.is_turned_away();
            let goes_on = goes_on(flow, request, decision, &failure, is_refused_again);
            let is_last = is_refused_again || decision.candidates <= 1;
            let attempt = Box::new(LastAttempt { failure, decision, fleet, is_last });
            // A refusal that says what is wrong with the request is the last word.
            let earlier = past.last.take().filter(|last| last.failure.explains_request());
            let attempt = earlier.unwrap_or(attempt);
            if !goes_on {
                return Next::Failure(attempt);
            }
            past.last = Some(attempt);
        }
        // A backend that serves the operation itself may take the request.
        AttemptEnd::Elsewhere(Elsewhere::Conversion(reason)) => {
            request.tried.insert(decision.backend);
            past.conversion_failure = Some(reason);
        }
        AttemptEnd::Elsewhere(Elsewhere::TooLong(too_long)) => {
            request.tried.insert(decision.backend);
            if !learn_refusal(flow.ctx, request, decision, *too_long) {
                return Next::Refusal;
            }
        }
        // The same backend may take the remainder of the request.
        AttemptEnd::Changed => {}
        AttemptEnd::Moved(reserved) => {
            request.tried.insert(decision.backend);
            request.moved = Some(reserved);
        }
        AttemptEnd::Gathered(_) | AttemptEnd::Elsewhere(Elsewhere::Missing) => {
            debug_assert!(false, "a client's request is relayed, fails, or goes elsewhere");
            request.tried.insert(decision.backend);
        }
    }
    Next::Attempt
}

/// Returns whether another attempt may follow a failed one; `request` remembers the backends to
/// avoid. `is_refused_again`: after one backend limited its client's rate, another refused it too.
fn goes_on(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    decision: RoutingDecision,
    failure: &AttemptFailure,
    is_refused_again: bool,
) -> bool {
    let lacks_operation = failure.refusal() == Some(HoldReason::OperationMissing)
        && decision.serving(&request.fleet).is_some_and(|serving| {
            let sent = serving.conversion(request.profile.operation);
            serving.state.lessons.lacking().contains(sent.unwrap_or(request.profile.operation))
        });
    let waits = may_wait_after(flow, failure);
    if waits {
        flow.ctx.record.queue.refusals += 1;
        // A limit of the model or the key is met everywhere: another backend would cool down, too.
        if is_refused_again {
            keep_to_cooling(flow, request);
        }
    } else {
        if let Some(HoldReason::ContextTooShort(context)) = failure.refusal()
            && let Some(model) = request.fleet.model(decision.model)
        {
            request.tried.insert_all(&model.without_longer_context(&request.profile, context));
        }
        // With another operation, the same backend may serve it.
        if !lacks_operation {
            request.tried.insert(decision.backend);
        }
        if is_refused_again || !take_retry(flow, request, failure) {
            return false;
        }
    }
    // A reload counts for a next attempt that waits in the queue, unless the context shift refers
    // to the old fleet.
    if request.shift.is_none() {
        request.decision = None;
    }
    if lacks_operation {
        request.fleet = flow.ctx.generation.fleet.topology();
    }
    true
}

/// Takes a retry if the failure is safe to retry, and neither `routing.max_retries` nor the retry
/// budget is used up.
pub(crate) fn take_retry(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    failure: &AttemptFailure,
) -> bool {
    flow.ctx.record.routing.lost_connections += u32::from(failure.is_lost_connection());
    let routing = &flow.ctx.generation.config.routing;
    let safety = match safety_of(failure) {
        // A prompt that has cost two engines their connections may cost the others theirs.
        RetrySafety::IfLostAllowed
            if routing.retry_unanswered == RetryUnanswered::Lost
                && (flow.ctx.record.routing.lost_connections > 1 || !is_repeatable(request)) =>
        {
            RetrySafety::Unsafe
        }
        safety => safety,
    };
    // A refusal after which the request waits is no retry: no engine has started on it.
    let attempts = flow.ctx.record.routing.attempts.saturating_sub(flow.ctx.record.queue.refusals);
    flow.proxy.retries.take_retry(safety, attempts, routing, now())
}

/// Returns whether the request may be sent again after it was lost: it has no effect beside its
/// response.
fn is_repeatable(request: &ScannedRequest) -> bool {
    match request.profile.operation.row().effect {
        Effect::None => request.profile.residency_change.is_none(),
        // The backend of a converted request stores nothing.
        Effect::StoredResponse => {
            request.conversion.is_some() || is_switched_off(request.body(), b"store")
        }
        Effect::Lasting => false,
    }
}

/// Records how many tokens of the prompt were expected in the cache, beside the engine's count of
/// them.
fn record_expected_cached(ctx: &mut RequestContext, decision: &RoutingDecision) {
    let cached = ctx.record.response.usage.and_then(|usage| usage.cached_tokens);
    let scores = decision.scores.filter(|_| cached.is_some());
    ctx.record.routing.expected_cached = scores.map(|scores| scores.cached_tokens);
}
