//! One request in the queue of its model: joins it where every backend is full, waits for its turn, decides.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use http::HeaderMap;

use super::place::Place;
use crate::admission::queue::{Newcomer, QueueEnd, QueueRules, Turn, cost};
use crate::api::ErrorCode;
use crate::clock::now;
use crate::fleet::BackendSet;
use crate::proxy::Proxy;
use crate::proxy::context::{RequestContext, ScannedRequest};
use crate::proxy::decision::{Undecided, decide, decide_moved, route_input};
use crate::proxy::failure::{OwnError, retry_wait};
use crate::proxy::reserved::Decided;
use crate::routing::RouteError;
use crate::units::Timestamp;

/// Why no attempt follows.
pub(crate) enum Unadmitted {
    /// There is no decision.
    Undecided(Undecided),
    /// The request has waited, or could not.
    Queue(OwnError),
}

/// Picks a backend for the next attempt, as [`decide`] does. Where all of them are full and a queue is configured,
/// the request waits until it is its turn; where others wait already, it lines up behind them.
///
/// # Errors
/// When no backend can take it, it has waited for too long or cannot wait, or its client has left.
pub(crate) async fn decide_in_turn(
    proxy: &Proxy,
    ctx: &mut RequestContext,
    headers: &HeaderMap,
    request: &mut ScannedRequest,
) -> Result<Decided, Unadmitted> {
    if let Some(reserved) = request.moved.take() {
        return Ok(decide_moved(proxy, ctx, headers, request, *reserved));
    }
    if !proxy.queues.is_empty() && has_others_waiting(proxy, ctx, request) {
        return Box::pin(decide_from_queue(proxy, ctx, headers, request, None)).await;
    }
    match decide(proxy, ctx, headers, request) {
        Err(Undecided::NoRoute(error)) if may_wait(proxy, request, &error) => {
            // Boxed: no other request should carry room for it.
            Box::pin(decide_from_queue(proxy, ctx, headers, request, Some(error))).await
        }
        decided => decided.map_err(Unadmitted::Undecided),
    }
}

/// Whether a request that no backend can take now may wait for one. A retry does not: its client has waited.
fn may_wait(proxy: &Proxy, request: &ScannedRequest, error: &RouteError) -> bool {
    request.tried.is_empty() && error.may_pass() && proxy.generation().config.queue.size > 0
}

/// Whether requests wait for the model of a request that has not been decided before.
fn has_others_waiting(proxy: &Proxy, ctx: &RequestContext, request: &ScannedRequest) -> bool {
    request.tried.is_empty()
        && request.decision.is_none()
        && awaited(ctx, request).is_some_and(|(model, _)| proxy.queues.waiting(&model) > 0)
}

/// The model whose queue a request waits in, and the backends that can take it once they have room.
fn awaited(ctx: &RequestContext, request: &ScannedRequest) -> Option<(Box<str>, BackendSet)> {
    let router = &ctx.generation.router;
    let input = route_input(router, ctx, request, &request.tried, None);
    let (model, backends) = router.awaited(&input)?;
    Some((model.into(), backends))
}

/// What a request that waits carries.
struct Waiting {
    place: Place,
    since: Timestamp,
    until: Timestamp,
    /// When it is refused because its objective can no longer be met.
    late: Option<Timestamp>,
    /// Why the last decision came to nothing.
    reason: Option<RouteError>,
}

async fn decide_from_queue(
    proxy: &Proxy,
    ctx: &mut RequestContext,
    headers: &HeaderMap,
    request: &mut ScannedRequest,
    reason: Option<RouteError>,
) -> Result<Decided, Unadmitted> {
    let mut waiting = join(proxy, ctx, request, reason)?;
    loop {
        let called = wait(ctx, &waiting).await;
        ctx.record.queue_wait = Some(now().since(waiting.since));
        match called {
            Called::Turn => {}
            end => return Err(end_wait(proxy, waiting, end)),
        }
        if request.decision.is_none() {
            request.fleet = proxy.generation().fleet.topology();
        }
        match decide(proxy, ctx, headers, request) {
            Ok(decided) => {
                waiting.place.serve(cost_of(request, &decided));
                return Ok(decided);
            }
            Err(Undecided::NoRoute(error)) if keeps_waiting(proxy, &error) => {
                let backends = awaited(ctx, request).map(|(_, backends)| backends);
                waiting.place.pass(backends.unwrap_or_default(), &request.fleet);
                waiting.reason = Some(error);
            }
            Err(undecided) => {
                waiting.place.leave(QueueEnd::Refused);
                return Err(Unadmitted::Undecided(undecided));
            }
        }
    }
}

/// Whether a request that waits may find room later. One that waits also waits for a backend to recover.
fn keeps_waiting(proxy: &Proxy, error: &RouteError) -> bool {
    let is_down = matches!(error, RouteError::NoHealthyBackend { missing: None, .. });
    (error.may_pass() || is_down) && proxy.generation().config.queue.size > 0
}

/// Joins the queue of the request's model.
fn join(
    proxy: &Proxy,
    ctx: &RequestContext,
    request: &ScannedRequest,
    reason: Option<RouteError>,
) -> Result<Waiting, Unadmitted> {
    let config = &proxy.generation().config;
    let since = now();
    let total = ctx.generation.config.timeouts.total;
    let ends =
        [Some(since.after(config.queue.timeout)), total.map(|limit| ctx.arrived_at.after(limit))];
    let until = ends.into_iter().flatten().chain(request.deadline).min().unwrap_or(since);
    let unroutable = |reason| Unadmitted::Undecided(Undecided::NoRoute(reason));
    let saturated = || RouteError::Saturated { model: request.model.to_string() };
    let Some((model, backends)) = awaited(ctx, request) else {
        return Err(unroutable(reason.unwrap_or_else(saturated)));
    };
    match reason {
        // No backend will take it in time.
        Some(RouteError::CoolingDown { until: ends, .. }) if ends > until => {
            return Err(unroutable(reason.unwrap_or_else(saturated)));
        }
        _ => {}
    }
    let objectives = &request.objectives;
    let ttft = objectives.ttft_ms.map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1000.0));
    let due = ttft.map(|ttft| ctx.arrived_at.after(ttft));
    let newcomer = Newcomer {
        backends,
        priority: objectives.priority,
        owner: ctx.requester.client,
        weight: weight_of(ctx),
        due,
        until,
    };
    let queue = proxy.queues.of_model(&model);
    let rules = QueueRules::new(&config.queue);
    let joined = queue.join(&newcomer, rules, &request.fleet, since);
    let id = joined.map_err(|full| {
        let message = format!("{} requests wait for model '{model}', as many as may", rules.size);
        let wait = retry_wait(full.wait.unwrap_or(config.queue.timeout), proxy.seeds.next_share());
        Unadmitted::Queue(OwnError::new(ErrorCode::QueueFull, message).after(wait))
    })?;
    let late = due.filter(|_| objectives.is_sheddable()).filter(|due| *due < until);
    let place = Place::new(queue, id);
    Ok(Waiting { place, since, until, late, reason })
}

/// The share of a request's key.
fn weight_of(ctx: &RequestContext) -> u32 {
    let keys = &ctx.generation.config.auth.keys;
    ctx.key.and_then(|position| keys.get(position)).map_or(1, |key| key.weight)
}

/// What ended a wait.
enum Called {
    Turn,
    Displaced,
    TimedOut,
    Late,
    ClientGone,
}

async fn wait(ctx: &RequestContext, waiting: &Waiting) -> Called {
    let (end, called) = match waiting.late {
        Some(late) => (late, Called::Late),
        None => (waiting.until, Called::TimedOut),
    };
    let mut sleep = std::pin::pin!(tokio::time::sleep(end.since(now())));
    let mut called = Some(called);
    poll_fn(|cx| {
        match waiting.place.poll(cx) {
            Poll::Ready(Turn::Decide) => return Poll::Ready(Called::Turn),
            Poll::Ready(Turn::Displaced) => return Poll::Ready(Called::Displaced),
            Poll::Pending => {}
        }
        if ctx.client.as_ref().is_some_and(|client| client.poll_gone(cx).is_ready()) {
            return Poll::Ready(Called::ClientGone);
        }
        match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(called.take().unwrap_or(Called::TimedOut)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Gives the place up, and says why.
fn end_wait(proxy: &Proxy, waiting: Waiting, called: Called) -> Unadmitted {
    let Waiting { place, since, reason, .. } = waiting;
    let waited = now().since(since).as_secs_f64();
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let (end, code, message) = match called {
        Called::ClientGone | Called::Turn => return Unadmitted::Undecided(Undecided::ClientGone),
        Called::TimedOut => (
            QueueEnd::TimedOut,
            ErrorCode::QueueTimeout,
            format!("The request waited for {waited:.1} s{reason}"),
        ),
        Called::Late => (
            QueueEnd::Late,
            ErrorCode::ObjectiveMissed,
            format!(
                "The request waited for {waited:.1} s, its objective for the first token can no \
                 longer be met, and its priority is below 0"
            ),
        ),
        Called::Displaced => (
            QueueEnd::Displaced,
            ErrorCode::QueueFull,
            "A request of a higher priority took the place of this one in the full queue".into(),
        ),
    };
    let wait = place.time_to_empty().unwrap_or(Duration::from_secs(1));
    place.leave(end);
    let wait = retry_wait(wait, proxy.seeds.next_share());
    Unadmitted::Queue(OwnError::new(code, message).after(wait))
}

/// What a request costs its owner.
fn cost_of(request: &ScannedRequest, decided: &Decided) -> u64 {
    let cached = decided.decision.scores.map_or(0, |scores| scores.expected_tokens());
    let serving = decided.decision.serving(&request.fleet);
    let (streaming, limit) = (request.profile.streaming, request.profile.max_tokens);
    let output = serving.map_or(0, |one| one.latency.expect(streaming, limit).tokens.0);
    cost(request.profile.prefill_tokens().0, cached, output)
}
