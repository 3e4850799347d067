//! From a scanned request to a response: decide, attempt, and retry on another backend (failover)
//! where the failure is safe to retry and the budget allows it.

use std::task::{Context, Waker};

use pingora_proxy::Session;

use super::Proxy;
use super::attempt::AttemptEnd;
use super::context::{RequestContext, ScannedRequest, Served};
use super::decision::{Decided, decide};
use super::failure::OwnError;
use super::forward::make_attempt;
use super::own_response::{send_error, send_held};
use super::shadow::show_shadow;
use crate::clock::now;
use crate::fleet::Outcome;
use crate::routing::{RouteError, RoutingDecision};
use crate::upstream::failure::Failure;
use crate::upstream::retry_safety::RetrySafety;

/// Finds a backend for the request and relays its response, or responds why there is none.
pub(crate) async fn serve(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    mut request: ScannedRequest,
) -> Served {
    proxy.retries.earn(&ctx.generation.config.routing.retry_budget);
    let mut last_failure = None;
    loop {
        let Decided { decision, permit, trace, captured } = match decide(proxy, ctx, &request) {
            Ok(decided) => decided,
            Err(error) => {
                return match last_failure {
                    Some(failure) => send_failure(proxy, session, ctx, failure).await,
                    None => send_route_error(proxy, session, ctx, &error).await,
                };
            }
        };
        // No engine should start on a response that has no reader.
        if ctx.record.attempts > 0 && is_client_gone(ctx) {
            return ctx.client_gone();
        }
        ctx.record.attempts += 1;
        proxy.observers.routed(ctx, &request, &decision, captured.as_deref());
        if let Some(trace) = trace {
            show_shadow(session, ctx, &request, &decision, trace);
        }
        request.decision = Some(decision);
        match make_attempt(proxy, session, ctx, &mut request, permit).await {
            AttemptEnd::Relayed(served) => {
                learn_cached(ctx, &request, &decision);
                return served;
            }
            AttemptEnd::Failed(Failure::ClientGone) => return ctx.client_gone(),
            AttemptEnd::Failed(failure) => {
                request.tried.insert(decision.backend);
                forget_recorded(ctx, &request, &decision);
                if !may_retry(proxy, ctx, &failure) {
                    return send_failure(proxy, session, ctx, failure).await;
                }
                last_failure = Some(failure);
            }
        }
    }
}

/// Whether the failure is safe to retry, and neither `routing.max_retries` nor the retry budget is
/// used up. The budget is charged last, so that only retries that happen are paid for.
fn may_retry(proxy: &Proxy, ctx: &RequestContext, failure: &Failure) -> bool {
    let routing = &ctx.generation.config.routing;
    let is_safe = match RetrySafety::of(failure) {
        RetrySafety::Safe => true,
        RetrySafety::IfUnansweredAllowed => routing.retry_unanswered,
        RetrySafety::Unsafe => false,
    };
    is_safe
        && ctx.record.attempts <= routing.max_retries
        && proxy.retries.spend(&routing.retry_budget, now())
}

/// Responds with what the last attempt failed with: a backend's own refusal where it sent one.
async fn send_failure(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: Failure,
) -> Served {
    match failure {
        Failure::Refused(held) | Failure::ServerError(held) => {
            ctx.record.outcome = Some(Outcome::Fault);
            send_held(proxy, session, ctx, held).await
        }
        Failure::NotSent(_)
        | Failure::NoResponse { .. }
        | Failure::TimedOut(_)
        | Failure::BadResponse(_)
        | Failure::ClientGone => {
            send_error(proxy, session, ctx, OwnError::from_failure(&failure)).await
        }
    }
}

/// Responds with why no attempt could be made.
async fn send_route_error(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    error: &RouteError,
) -> Served {
    send_error(proxy, session, ctx, OwnError::from_route(error, now())).await
}

/// Updates the prefix index with what the engine reported as cached.
fn learn_cached(ctx: &mut RequestContext, request: &ScannedRequest, decision: &RoutingDecision) {
    let cached = ctx.record.usage.and_then(|usage| usage.cached_tokens);
    if let (Some(cached), Some(weighted)) = (cached, ctx.generation.router.weighted()) {
        weighted.learn(&request.fleet, decision, cached);
        ctx.record.expected_cached = decision.scores.map(|scores| scores.expected_tokens());
    }
}

/// The backend did not serve the prompt, so its cache does not hold it either.
fn forget_recorded(ctx: &RequestContext, request: &ScannedRequest, decision: &RoutingDecision) {
    if let Some(weighted) = ctx.generation.router.weighted() {
        weighted.take_back(&request.fleet, decision);
    }
}

fn is_client_gone(ctx: &RequestContext) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    ctx.client.as_ref().is_some_and(|client| client.poll_gone(&mut cx).is_ready())
}
