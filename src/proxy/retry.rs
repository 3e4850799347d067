//! From a scanned request to a response: decide, attempt, and retry on another backend (failover)
//! where the failure is safe to retry and the budget allows it.

use std::time::Duration;

use pingora_proxy::Session;

use super::Proxy;
use super::attempt::{AttemptEnd, Unsuited};
use super::context::{RequestContext, ScannedRequest, Served};
use super::context_shift::{learn_refusal, pass_over_small, send_refusal, shorten_for};
use super::conversion::NotConverted;
use super::decision::Undecided;
use super::failure::OwnError;
use super::forward::make_attempt;
use super::own_response::{send_error, send_held};
use super::queue::{Unadmitted, decide_in_turn};
use super::reserved::Decided;
use super::response::record_backend;
use crate::api::Dialect;
use crate::clock::now;
use crate::fleet::{Outcome, Topology};
use crate::routing::{RouteError, RoutingDecision};
use crate::upstream::failure::Failure;
use crate::upstream::retry_safety::safety_of;

/// Finds a backend for the request and relays its response, or responds why there is none.
pub(crate) async fn serve(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    mut request: ScannedRequest,
) -> Served {
    proxy.retries.earn(&ctx.generation.config.routing.retry_budget);
    let mut last_failure = None;
    let mut not_converted = None;
    let mut has_met_limit = false;
    loop {
        pass_over_small(ctx, &mut request);
        let headers = &session.req_header().headers;
        let decided = decide_in_turn(proxy, ctx, headers, &mut request).await;
        let Decided { decision, permit } = match decided {
            Ok(decided) => decided,
            Err(Unadmitted::Queue(error)) => return send_error(proxy, session, ctx, error).await,
            Err(Unadmitted::Undecided(Undecided::ClientGone)) => return ctx.client_gone(),
            Err(Unadmitted::Undecided(Undecided::NoRoute(error))) => {
                if shorten_for(ctx, &mut request, &error) {
                    continue;
                }
                let reason = Unserved::because_of(last_failure, not_converted, error);
                return send_unserved(proxy, session, ctx, &mut request, reason).await;
            }
        };
        request.decision = Some(decision);
        let end = make_attempt(proxy, session, ctx, &mut request, &decision, permit).await;
        match end {
            // A backend that serves the operation itself may take the request.
            Err(Unsuited::NotConverted(reason)) => {
                request.tried.insert(decision.backend);
                not_converted = Some(reason);
            }
            Ok(AttemptEnd::Relayed(served)) => {
                record_expected_cached(ctx, &decision);
                return served;
            }
            Err(Unsuited::TooLong(too_long)) => {
                request.tried.insert(decision.backend);
                if !learn_refusal(ctx, &mut request, decision, *too_long)
                    && let Some(served) = send_refusal(proxy, session, ctx, &mut request).await
                {
                    return served;
                }
            }
            // The same backend may take what is left of the request.
            Err(Unsuited::Unsupported) => {}
            Err(Unsuited::Moved(reserved)) => {
                request.tried.insert(decision.backend);
                request.moved = Some(reserved);
            }
            Ok(AttemptEnd::Failed(Failure::ClientGone)) => return ctx.client_gone(),
            Ok(AttemptEnd::Failed(failure)) => {
                request.tried.insert(decision.backend);
                let is_refused_again = has_met_limit && matches!(failure, Failure::Refused(_));
                if is_refused_again || !may_retry(proxy, ctx, &failure) {
                    let is_last = is_refused_again || decision.candidates <= 1;
                    let last = LastAttempt { failure, decided: Some(decision), is_last };
                    return send_failure(proxy, session, ctx, &request.fleet, last).await;
                }
                has_met_limit |= is_rate_limit(&failure);
                last_failure = Some(failure);
            }
        }
    }
}

/// Whether the failure is safe to retry, and neither `routing.max_retries` nor the retry budget is
/// used up.
pub(super) fn may_retry(proxy: &Proxy, ctx: &RequestContext, failure: &Failure) -> bool {
    let routing = &ctx.generation.config.routing;
    proxy.retries.may_retry(safety_of(failure), ctx.record.attempts, routing, now())
}

/// Whether the backend limits the client's rate. Such a refusal is retried on one other backend and no
/// further: a limit of the model or the key would be met everywhere, and every refusal starts a cooldown.
pub(super) fn is_rate_limit(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(held) if held.status == 429)
}

/// The attempt after which no other follows.
struct LastAttempt {
    failure: Failure,
    decided: Option<RoutingDecision>,
    /// Whether every backend that could take the request has been tried.
    is_last: bool,
}

/// Why a request ends without a response that was relayed.
enum Unserved {
    Failed(Failure),
    NotConverted(NotConverted),
    NoRoute(RouteError),
}

impl Unserved {
    /// The last attempt says more than that there is no other.
    fn because_of(
        failure: Option<Failure>,
        not_converted: Option<NotConverted>,
        error: RouteError,
    ) -> Self {
        match (failure, not_converted) {
            (Some(failure), _) => Self::Failed(failure),
            (None, Some(reason)) => Self::NotConverted(reason),
            (None, None) => Self::NoRoute(error),
        }
    }
}

/// Responds to a request that no backend is left for.
async fn send_unserved(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    reason: Unserved,
) -> Served {
    if let Some(served) = send_refusal(proxy, session, ctx, request).await {
        return served;
    }
    match reason {
        Unserved::Failed(failure) => {
            let last = LastAttempt { failure, decided: request.decision, is_last: true };
            send_failure(proxy, session, ctx, &request.fleet, last).await
        }
        Unserved::NotConverted(reason) => {
            send_error(proxy, session, ctx, NotConverted::to_error(reason)).await
        }
        Unserved::NoRoute(error) => {
            send_error(proxy, session, ctx, route_error(ctx.dialect, &error)).await
        }
    }
}

/// Responds with what the last attempt failed with: a backend's own refusal where it sent one.
async fn send_failure(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    fleet: &Topology,
    last: LastAttempt,
) -> Served {
    let LastAttempt { failure, decided, is_last } = last;
    let serving = decided.as_ref().and_then(|decision| decision.serving(fleet));
    let backend = serving.and_then(|serving| fleet.backends.get(usize::from(serving.backend)));
    if let (Failure::Refused(_) | Failure::ServerError(_), Some(serving), Some(backend)) =
        (&failure, serving, backend)
    {
        record_backend(ctx, serving, backend);
    }
    match failure {
        Failure::Refused(held) => {
            let status = held.status;
            ctx.record.outcome = Some(Outcome::Busy { cooldown: Duration::ZERO, status });
            send_held(proxy, session, ctx, held, is_last).await
        }
        Failure::ServerError(held) => {
            ctx.record.outcome = Some(Outcome::Fault);
            send_held(proxy, session, ctx, held, false).await
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

/// Why no attempt could be made, in the words of the client's dialect.
pub(super) fn route_error(dialect: Dialect, error: &RouteError) -> OwnError {
    let own = OwnError::from_route(error, now());
    match (error, dialect) {
        // Ollama's clients look for these words.
        (RouteError::ModelNotFound { alias, .. }, Dialect::Ollama) => {
            OwnError::new(own.code, format!("model '{alias}' not found"))
        }
        _ => own,
    }
}

/// Records how many tokens of the prompt were expected in the cache, beside the engine's count of them.
fn record_expected_cached(ctx: &mut RequestContext, decision: &RoutingDecision) {
    let cached = ctx.record.usage.and_then(|usage| usage.cached_tokens);
    let scores = decision.scores.filter(|_| cached.is_some());
    ctx.record.expected_cached = scores.map(|scores| scores.expected_tokens());
}
