//! From a scanned request to a response: decide, attempt, and retry on another backend (failover)
//! where the failure is safe to retry and the budget allows it.

use std::sync::Arc;
use std::time::Duration;

use http::header;
use penstock_api::Dialect;
use penstock_clock::now;
use penstock_config::RetryUnanswered;
use penstock_core::fleet::{Outcome, Topology};
use penstock_core::routing::{RetrySafety, RouteError, RoutingDecision};

use crate::proxy::attempt::{AttemptEnd, Elsewhere};
use crate::proxy::context::{RequestContext, ScannedRequest, Served};
use crate::proxy::conversion::NotConverted;
use crate::proxy::decision::{Undecided, route_input};
use crate::proxy::failure::{OwnError, held_outcome};
use crate::proxy::flow::Flow;
use crate::proxy::forward::{Recipient, make_attempt};
use crate::proxy::own_response::{OwnResponse, send, send_error, send_held, to_retry_after};
use crate::proxy::queue::{Unadmitted, decide_in_turn, keep_to_cooling, may_wait_after};
use crate::proxy::rewrite::rewrites;
use crate::proxy::similar_model::with_similar_model;
use crate::upstream::failure::{Failure, Refusal};
use crate::upstream::retry_safety::safety_of;

/// Finds a backend for the request and relays its response, or responds with the reason that there
/// is none.
pub(crate) async fn serve(flow: &mut Flow<'_>, mut request: Box<ScannedRequest>) -> Served {
    // Once per request, whatever its number of attempts: the budget is a share of the requests.
    flow.proxy.retries.earn(&flow.ctx.generation.config.routing.retry_budget);
    let mut past = Past::default();
    loop {
        for rewrite in rewrites(request.kinds) {
            rewrite.before(flow.ctx, &mut request);
        }
        let decided = decide_in_turn(flow, &mut request).await;
        let decided = match decided {
            Ok(decided) => decided,
            Err(Unadmitted::Undecided(Undecided::NoRoute(error)))
                if is_rewritten(flow.ctx, &mut request, &error) =>
            {
                continue;
            }
            Err(reason) => {
                let sent = send_unadmitted(flow, &mut request, past, reason);
                return Box::pin(sent).await;
            }
        };
        let decision = decided.decision;
        // Boxed, as what follows: a request that waits in a queue should not carry room for it.
        let attempt = make_attempt(flow, Recipient::Client, &mut request, decided);
        let end = Box::pin(attempt).await;
        let last = match after_attempt(flow, &mut request, &mut past, decision, end) {
            Next::Attempt => continue,
            Next::Served(served) => return served,
            Next::Last(last) => last,
        };
        let sent = match last {
            LastWord::Own(response) => Some(Box::pin(send_own(flow, *response)).await),
            LastWord::Failure(attempt) => Some(Box::pin(send_failure(flow, attempt)).await),
            LastWord::Refusal => Box::pin(send_refusal(flow, &mut request)).await,
        };
        if let Some(served) = sent {
            return served;
        }
    }
}

/// The step after an attempt.
enum Next {
    Attempt,
    /// No step: the client has its response, or is gone.
    Served(Served),
    /// A response that explains why no attempt follows.
    Last(LastWord),
}

/// The response after the last attempt.
enum LastWord {
    Own(Box<Result<OwnResponse, OwnError>>),
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
        AttemptEnd::Own { response, .. } => return Next::Last(LastWord::Own(Box::new(response))),
        AttemptEnd::Failed(Failure::ClientGone) => return Next::Served(flow.ctx.client_gone()),
        AttemptEnd::Failed(failure) => {
            let fleet = Arc::clone(&request.fleet);
            let is_refused_again = past.has_met_limit && failure.is_busy();
            // After the comparison, which is about the attempts before this one.
            past.has_met_limit |= failure.is_rate_limit();
            // Otherwise every refused request would reach the backends in cooldown. A request that
            // was not refused would fail without them.
            request.may_probe &= !failure.is_busy();
            let goes_on = goes_on(flow, request, &failure, is_refused_again);
            let is_last = is_refused_again || decision.candidates <= 1;
            let attempt = Box::new(LastAttempt { failure, decision, fleet, is_last });
            if !goes_on {
                return Next::Last(LastWord::Failure(attempt));
            }
            past.last = Some(attempt);
        }
        // A backend that serves the operation itself may take the request.
        AttemptEnd::Elsewhere(Elsewhere::NotConverted(reason)) => {
            request.tried.insert(decision.backend);
            past.not_converted = Some(reason);
        }
        AttemptEnd::Elsewhere(Elsewhere::TooLong(too_long)) => {
            request.tried.insert(decision.backend);
            let mut refused = Some(*too_long);
            let mut kinds = rewrites(request.kinds);
            if !kinds.any(|kind| kind.too_long(flow.ctx, request, &decision, &mut refused)) {
                return Next::Last(LastWord::Refusal);
            }
        }
        // The same backend may take the remainder of the request.
        AttemptEnd::Changed => {}
        AttemptEnd::Moved(reserved) => {
            request.tried.insert(decision.backend);
            request.moved = Some(reserved);
        }
        AttemptEnd::Text(_)
        | AttemptEnd::Unreadable(_)
        | AttemptEnd::Elsewhere(Elsewhere::Missing) => {
            debug_assert!(false, "a client's request is relayed, fails, or goes elsewhere");
            request.tried.insert(decision.backend);
        }
    }
    Next::Attempt
}

/// Sends a response of penstock's own.
async fn send_own(flow: &mut Flow<'_>, response: Result<OwnResponse, OwnError>) -> Served {
    match response {
        Ok(response) => {
            flow.ctx.record.response.status = response.head.status.as_u16();
            send(flow, response).await
        }
        Err(error) => send_error(flow, error).await,
    }
}

/// Changes a request that no backend can take. Returns whether another decision may follow.
fn is_rewritten(
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    error: &RouteError,
) -> bool {
    rewrites(request.kinds).any(|rewrite| rewrite.unroutable(ctx, request, error))
}

/// Responds with the engine's own refusal, if there was one that explains the end of the request.
async fn send_refusal(flow: &mut Flow<'_>, request: &mut ScannedRequest) -> Option<Served> {
    let mut kinds = rewrites(request.kinds);
    let (held, decision) = kinds.find_map(|rewrite| rewrite.take_refusal(request))?;
    if let Some(serving) = decision.serving(&request.fleet)
        && let Some(backend) = request.fleet.backends.get(usize::from(serving.backend))
    {
        flow.ctx.record_backend(serving, backend);
    }
    Some(send_held(flow, held, false).await)
}

/// Returns whether another attempt may follow a failed one; `request` remembers the backends to
/// avoid. `is_refused_again`: after one backend limited its client's rate, another refused it too.
fn goes_on(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    failure: &Failure,
    is_refused_again: bool,
) -> bool {
    let Some(decision) = request.decision else { return false };
    let lacks_operation = matches!(failure, Failure::Held(Refusal::OperationMissing, _))
        && decision.serving(&request.fleet).is_some_and(|serving| {
            let sent = serving.conversion(request.profile.operation);
            serving.state.lessons.lacking().contains(sent.unwrap_or(request.profile.operation))
        });
    let waits = may_wait_after(flow, failure);
    if waits {
        flow.ctx.record.queue.refusals += 1;
        // A limit of the model or the key is met everywhere: another backend would cool down, too.
        if is_refused_again {
            keep_to_cooling(flow.ctx, request);
        }
    } else {
        // With another operation, the same backend may serve it.
        if !lacks_operation {
            request.tried.insert(decision.backend);
        }
        if is_refused_again || !may_retry(flow, request, failure) {
            return false;
        }
    }
    // A reload counts for the next attempt, unless the context shift refers to the old fleet.
    if request.shift.is_none() {
        request.decision = None;
    }
    if lacks_operation {
        request.fleet = flow.ctx.generation.fleet.topology();
    }
    true
}

/// Returns whether the failure is safe to retry, and neither `routing.max_retries` nor the retry
/// budget is used up.
pub(crate) fn may_retry(flow: &mut Flow<'_>, request: &ScannedRequest, failure: &Failure) -> bool {
    flow.ctx.record.routing.lost_connections += u32::from(failure.is_lost_connection());
    let routing = &flow.ctx.generation.config.routing;
    let safety = match safety_of(failure) {
        // A prompt that has cost two engines their connections may cost the others theirs.
        RetrySafety::IfLostAllowed
            if routing.retry_unanswered == RetryUnanswered::Lost
                && (flow.ctx.record.routing.lost_connections > 1 || !request.is_repeatable()) =>
        {
            RetrySafety::Unsafe
        }
        safety => safety,
    };
    // A refusal after which the request waits is no retry: no engine has started on it.
    let attempts = flow.ctx.record.routing.attempts.saturating_sub(flow.ctx.record.queue.refusals);
    flow.proxy.retries.may_retry(safety, attempts, routing, now())
}

/// The attempt after which no other follows, unless the request finds a backend in the queue.
struct LastAttempt {
    failure: Failure,
    decision: RoutingDecision,
    fleet: Arc<Topology>,
    /// True if every backend that could take the request has been tried.
    is_last: bool,
}

/// The history of a request's attempts.
#[derive(Default)]
struct Past {
    last: Option<Box<LastAttempt>>,
    /// True if a backend has limited the client's rate.
    has_met_limit: bool,
    not_converted: Option<NotConverted>,
}

/// Responds to a request without a further attempt.
async fn send_unadmitted(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    past: Past,
    reason: Unadmitted,
) -> Served {
    match reason {
        Unadmitted::Undecided(Undecided::ClientGone) => flow.ctx.client_gone(),
        Unadmitted::Undecided(Undecided::NoRoute(error)) => {
            send_unserved(flow, request, past, error).await
        }
        Unadmitted::Queue(error) => send_queue_end(flow, past.last, error).await,
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
    if let Some(served) = send_refusal(flow, request).await {
        return served;
    }
    match (past.last, past.not_converted) {
        (Some(last), _) => {
            let last = Box::new(LastAttempt { is_last: true, ..*last });
            send_failure(flow, last).await
        }
        (None, Some(reason)) => send_error(flow, NotConverted::to_error(reason)).await,
        (None, None) => {
            let wait = return_time(flow, request, &error);
            let error = route_error(flow.ctx.dialect, &error, flow.proxy.seeds.next_share());
            let error = match wait {
                Some(wait) => error.after(wait),
                None => error,
            };
            let error = with_similar_model(flow.ctx, &request.model, error);
            send_error(flow, error).await
        }
    }
}

/// The wait after which a refused request should return, if that is predicted.
fn return_time(flow: &Flow<'_>, request: &ScannedRequest, error: &RouteError) -> Option<Duration> {
    let (model, wait, together) = match error {
        RouteError::ObjectiveMissed { model, wait, together, .. } => (model, *wait, *together),
        RouteError::Saturated { model } => {
            let router = &flow.ctx.generation.router;
            let room =
                router.room(&route_input(router, flow.ctx, request, &request.tried, None))?;
            (model, room.wait, room.together)
        }
        _ => return None,
    };
    Some(flow.proxy.returns.after(model, wait, together, now()))
}

/// Responds to a request that waited in the queue in vain, or could not wait. Prefers an earlier
/// 429 to the queue's timeout: it shows the client what to change.
async fn send_queue_end(
    flow: &mut Flow<'_>,
    last: Option<Box<LastAttempt>>,
    error: OwnError,
) -> Served {
    match last {
        Some(mut last) if last.failure.is_rate_limit() => {
            if let (Failure::Held(_, held), Some(wait)) = (&mut last.failure, error.retry_after)
                && held.retry_after.is_none()
            {
                held.header.insert_header(header::RETRY_AFTER, to_retry_after(wait))?;
                held.retry_after = Some(wait);
            }
            send_failure(flow, last).await
        }
        _ => send_error(flow, error).await,
    }
}

/// Responds with the failure of the last attempt: a backend's own refusal if it sent one.
async fn send_failure(flow: &mut Flow<'_>, last: Box<LastAttempt>) -> Served {
    let LastAttempt { failure, decision, fleet, is_last } = *last;
    let serving = decision.serving(&fleet);
    let backend = serving.and_then(|serving| fleet.backends.get(usize::from(serving.backend)));
    if let (Failure::Held(..), Some(serving), Some(backend)) = (&failure, serving, backend) {
        flow.ctx.record_backend(serving, backend);
    }
    match failure {
        // Without a body there is nothing to pass on.
        Failure::Held(Refusal::NoWork, held) if held.body.is_empty() => {
            flow.ctx.record.response.outcome = Some(Outcome::Fault);
            let error = OwnError::from_failure(&Failure::Held(Refusal::NoWork, held));
            send_error(flow, error).await
        }
        Failure::Held(refusal, held) => {
            flow.ctx.record.response.outcome = Some(held_outcome(refusal, held.status));
            let is_busy = matches!(refusal, Refusal::RateLimited | Refusal::Overloaded);
            send_held(flow, held, is_last && is_busy).await
        }
        // The prompt has cost two engines their connections: it must not be sent again.
        Failure::NoResponse { .. } if flow.ctx.record.routing.lost_connections > 1 => {
            let error = OwnError::from_failure(&failure).without_retry();
            send_error(flow, error).await
        }
        Failure::NotSent(_)
        | Failure::NoResponse { .. }
        | Failure::TimedOut(_)
        | Failure::BadResponse(_)
        | Failure::ClientGone => send_error(flow, OwnError::from_failure(&failure)).await,
    }
}

/// The error for a request that no attempt could be made for, in the words of the client's dialect.
/// `share`: random, in 0..1.
pub(crate) fn route_error(dialect: Dialect, error: &RouteError, share: f64) -> OwnError {
    let own = OwnError::from_route(error, now(), share);
    match (error, dialect.row().unknown_model) {
        (RouteError::ModelNotFound { alias, .. }, Some(message)) => {
            OwnError::new(own.code, message(alias))
        }
        _ => own,
    }
}

/// Records how many tokens of the prompt were expected in the cache, beside the engine's count of
/// them.
fn record_expected_cached(ctx: &mut RequestContext, decision: &RoutingDecision) {
    let cached = ctx.record.response.usage.and_then(|usage| usage.cached_tokens);
    let scores = decision.scores.filter(|_| cached.is_some());
    ctx.record.routing.expected_cached = scores.map(|scores| scores.expected_tokens());
}
