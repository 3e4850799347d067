//! One request in the queue of its model: it joins if every backend is full, waits for its turn,
//! and decides.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use penstock_api::ErrorCode;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_core::admission::queue::{Cost, Newcomer, PassedTurn, QueueEnd, QueueRules, Turn};
use penstock_core::fleet::{BackendSet, Topology, cooldown_time};
use penstock_core::routing::{AwaitedRoom, RouteError, RouteInput};

use crate::proxy::decision::{
    DecisionFailure, decide, predicted_service, route_input, with_prompt,
};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::queue::charge_owner;
use crate::proxy::queue::keep_alive::{KeepAlive, KeepAliveFailure};
use crate::proxy::queue::shared::QueuePlace;
use crate::proxy::request::{Decided, RequestView, ScannedRequest};
use crate::proxy::return_time::time_of_room;
use crate::proxy::{Proxy, budgets};
use crate::upstream::failure::AttemptFailure;

/// The maximum number of busy refusals of one request before another one counts as a failure.
const MAX_REFUSALS: u32 = 32;

/// The reason why a request gets no attempt: no decision, or its wait in the queue has ended.
pub(crate) enum AdmissionFailure {
    Decision(DecisionFailure),
    /// The request has waited in vain, or could not wait.
    Queue(OwnError),
}

/// Returns whether requests may wait.
pub(crate) fn has_queue(proxy: &Proxy) -> bool {
    proxy.generation().config.queue.size > 0
}

/// Returns whether a request may wait for the backend that refused it as busy. Such a backend has
/// not started on it, and is in cooldown for a while.
pub(crate) fn may_wait_after(flow: &Flow<'_>, failure: &AttemptFailure) -> bool {
    let AttemptFailure::Held(_, held) = failure else { return false };
    if !failure.is_busy() {
        return false;
    }
    let config = &flow.ctx.generation.config.routing.cooldown;
    // Without a cooldown the next decision could pick the same backend at once, again and again.
    let pauses = !cooldown_time(config, held.retry_after, 0.0).is_zero();
    pauses && flow.ctx.record.queue.refusals < MAX_REFUSALS && has_queue(flow.proxy)
}

/// Limits the next attempt to the backends now in cooldown for this request; it waits for them.
pub(crate) fn keep_to_cooling(flow: &Flow<'_>, request: &mut ScannedRequest) {
    let router = &flow.ctx.generation.router;
    let input = route_input(request.view(flow.ctx), &request.tried, None);
    let cooling = router.cooling(&input).map(|cooling| cooling.backends).unwrap_or_default();
    let others = request.fleet.backends.iter().map(|backend| backend.state.id);
    let mut tried = request.tried;
    others.filter(|id| !cooling.contains(*id)).for_each(|id| tried.insert(id));
    request.tried = tried;
}

/// Decides as [`decide`] does, but sends the request to no backend whose cooldown covers it, not
/// even as a probe.
pub(crate) fn decide_after_cooldown(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
) -> Result<Box<Decided>, DecisionFailure> {
    // Otherwise every waiting request would probe in turn.
    let may_probe = std::mem::replace(&mut request.may_probe, false);
    let decided = decide(flow, request);
    request.may_probe = may_probe;
    decided
}

/// Returns whether requests wait for the model of a request that has not been decided before.
pub(crate) fn has_others_waiting(flow: &Flow<'_>, request: &ScannedRequest) -> bool {
    request.tried.is_empty()
        && request.decision.is_none()
        && awaited(request.view(flow.ctx))
            .is_some_and(|(model, _)| flow.proxy.queues.waiting(&model) > 0)
}

/// The model whose queue a request waits in, and the backends it waits for.
fn awaited(view: RequestView<'_>) -> Option<(Box<str>, PassedTurn)> {
    awaited_by(view, &route_input(view, &view.request.tried, None))
}

fn awaited_by(view: RequestView<'_>, input: &RouteInput<'_>) -> Option<(Box<str>, PassedTurn)> {
    let awaited = view.ctx.generation.router.awaited(input)?;
    let AwaitedRoom { model, backends, is_held_back } = awaited;
    Some((model.into(), PassedTurn { backends, is_held_back }))
}

/// The backends that a request waits for after a turn without room.
fn awaited_after_turn(view: RequestView<'_>) -> PassedTurn {
    // Only with limits of work its prompt decides about them: hashing it costs something.
    let found = match view.ctx.generation.config.queue.max_backlog {
        Some(_) => with_prompt(view, |input| awaited_by(view, input)),
        None => awaited(view),
    };
    found.map(|(_, passed)| passed).unwrap_or_default()
}

/// The state of a waiting request.
struct Waiting {
    /// The model of the queue.
    model: Box<str>,
    place: QueuePlace,
    since: Timestamp,
    until: Timestamp,
    /// The time at which the request is refused because its objective can no longer be met.
    late: Option<Timestamp>,
    /// The error of the last decision.
    reason: Option<RouteError>,
    /// The schedule of the bytes that its client gets meanwhile.
    keep_alive: Option<KeepAlive>,
}

/// Waits in the queue for a turn to decide. `reason`: the error of an earlier decision.
///
/// # Errors
/// When it waits for too long or cannot wait, no backend can take it, or its client has left.
pub(crate) async fn decide_from_queue(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    reason: Option<RouteError>,
) -> Result<Box<Decided>, AdmissionFailure> {
    // A request may wait several times: its objective counts all of them.
    let waited = flow.ctx.record.queue.wait.unwrap_or_default();
    let mut waiting = join(flow, request, reason)?;
    if let Some(client) = &flow.ctx.client {
        // Many requests may wait long: the buffer for the next head can wait too.
        client.shrink();
    }
    loop {
        let mut called = wait(flow.ctx, &waiting).await;
        if let (Called::KeepAlive, Some(keep_alive)) = (&called, &mut waiting.keep_alive) {
            match Box::pin(keep_alive.send(flow, &waiting.place)).await {
                Ok(()) => continue,
                Err(KeepAliveFailure) => called = Called::ClientGone,
            }
        }
        flow.ctx.record.queue.wait = Some(waited + now().since(waiting.since));
        match called {
            Called::Turn => {}
            end => return Err(end_wait(flow, request, waiting, end)),
        }
        if let Err(error) = follow_reload(flow, request).await {
            waiting.place.leave(QueueEnd::Refused);
            return Err(AdmissionFailure::Queue(error));
        }
        match decide_after_cooldown(flow, request) {
            Ok(decided) => {
                let charge = waiting.place.serve(cost_of(request, &decided));
                charge_owner(flow.proxy, flow.ctx, waiting.model, charge);
                return Ok(decided);
            }
            Err(DecisionFailure::NoRoute(error)) if keeps_waiting(flow.proxy, &waiting, &error) => {
                waiting.place.pass(awaited_after_turn(request.view(flow.ctx)), &request.fleet);
                waiting.reason = Some(error);
            }
            Err(failure) => {
                waiting.place.leave(QueueEnd::Refused);
                return Err(AdmissionFailure::Decision(failure));
            }
        }
    }
}

/// Decides about the fleet of the newest configuration from now on, unless a decision refers to the
/// old one, or the zones have other numbers there: the request stays under the policies that it was
/// admitted under, and these know zones by number.
///
/// # Errors
/// When a budget has no room for what the request may cost there.
async fn follow_reload(flow: &mut Flow<'_>, request: &mut ScannedRequest) -> Result<(), OwnError> {
    let newest = flow.proxy.generation().fleet.topology();
    let may_follow = request.decision.is_none() && newest.zones == request.fleet.zones;
    if !may_follow || Arc::ptr_eq(&newest, &request.fleet) {
        return Ok(());
    }
    request.fleet = newest;
    // Another backend may have another price.
    budgets::renew(flow, request).await
}

/// Returns whether a waiting request may find room later. If every backend is down, it does not
/// wait for one to recover: the time is not known, and a refusal at once lets its client go
/// elsewhere.
fn keeps_waiting(proxy: &Proxy, waiting: &Waiting, error: &RouteError) -> bool {
    error.may_pass() && !is_too_late(error, waiting.until) && has_queue(proxy)
}

/// Returns whether the cooldowns end only after `until`.
fn is_too_late(error: &RouteError, until: Timestamp) -> bool {
    matches!(error, RouteError::CoolingDown { until: ends, .. } if *ends > until)
}

/// Joins the queue of the request's model.
fn join(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reason: Option<RouteError>,
) -> Result<Waiting, AdmissionFailure> {
    let config = &flow.proxy.generation().config.queue;
    let since = now();
    // Kept from the first wait: a refusal by an engine does not extend the timeout.
    let until = *flow.ctx.record.queue.until.get_or_insert(since.after(config.timeout));
    let until = until.min(request.must_end_by.unwrap_or(until));
    let awaited = awaited(request.view(flow.ctx)).map(|(model, PassedTurn { backends, .. })| {
        let total = longest_total(&request.fleet, &model, &backends);
        let until = total.map_or(until, |limit| until.min(flow.ctx.arrived_at.after(limit)));
        (model, backends, until)
    });
    let is_too_late = |until| reason.as_ref().is_some_and(|reason| is_too_late(reason, until));
    let Some((model, backends, until)) = awaited.filter(|(_, _, until)| !is_too_late(*until))
    else {
        let reason = reason.unwrap_or_else(|| request.saturated());
        return Err(AdmissionFailure::Decision(DecisionFailure::NoRoute(reason)));
    };
    let objectives = &request.objectives;
    let ttft = objectives.ttft_ms.map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1000.0));
    // Predicted only for a request that has an objective.
    let service = ttft.map(|_| predicted_service(request.view(flow.ctx))).unwrap_or_default();
    let due_less = |service| Some(flow.ctx.arrived_at.after(ttft?.saturating_sub(service)));
    // Cautious for the order; a request is given up only when even the mean comes too late (below).
    let due = due_less(service.p90);
    let newcomer = Newcomer {
        backends,
        priority: objectives.priority,
        owner: flow.ctx.requester.owner.id,
        weight: flow.ctx.requester.owner.weight,
        due,
        until,
    };
    let queue = flow.proxy.queues.of_model(&model);
    let rules = QueueRules::new(config);
    let joined = queue.join(&newcomer, rules, &request.fleet, since);
    let place = joined.map_err(|_full| {
        let message = format!("{} requests wait for model '{model}', as many as may", rules.size);
        let error = OwnError::new(ErrorCode::QueueFull, message);
        AdmissionFailure::Queue(with_return_time(flow, request, error))
    })?;
    // Only a sheddable request is given up before its timeout.
    let late = due_less(service.mean).filter(|_| objectives.is_sheddable());
    let late = late.filter(|late| *late < until);
    let keep_alive = KeepAlive::of(config, flow, request, since);
    Ok(Waiting { model, place, since, until, late, reason, keep_alive })
}

/// Returns the longest `timeouts.total` of the backends that a request waits for; `None` if one of
/// them has none.
fn longest_total(fleet: &Topology, model: &str, backends: &BackendSet) -> Option<Duration> {
    let rows = fleet.model_named(model)?.serving.iter().filter(|row| backends.contains(row.id));
    let totals = rows.map(|row| row.timeouts.total);
    totals.reduce(|one, other| Some(one?.max(other?))).flatten()
}

/// The event that ended a wait.
enum Called {
    Turn,
    Displaced,
    TimedOut,
    Late,
    ClientGone,
    /// The client's next bytes are due.
    KeepAlive,
}

async fn wait(ctx: &RequestContext, waiting: &Waiting) -> Called {
    let (end, called) = match waiting.late {
        Some(late) => (late, Called::Late),
        None => (waiting.until, Called::TimedOut),
    };
    let due = waiting.keep_alive.as_ref().map(KeepAlive::due).filter(|due| *due < end);
    let (end, called) = due.map_or((end, called), |due| (due, Called::KeepAlive));
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

/// Sets the time to return of a request that the queue refuses: backends that get room make places
/// free there.
fn with_return_time(flow: &Flow<'_>, request: &ScannedRequest, error: OwnError) -> OwnError {
    let wait = time_of_room(flow.proxy, request.view(flow.ctx), false);
    error.after(wait.unwrap_or(Duration::from_secs(1)))
}

/// Gives up the place, and returns the error with the time to retry.
fn end_wait(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    waiting: Waiting,
    called: Called,
) -> AdmissionFailure {
    let Waiting { place, since, reason, .. } = waiting;
    let waited = now().since(since).as_secs_f64();
    // Without a reason its turn never came.
    let reason = reason.map_or_else(|| " behind others".to_owned(), |reason| format!(": {reason}"));
    let (end, code, message) = match called {
        Called::ClientGone | Called::Turn | Called::KeepAlive => {
            return AdmissionFailure::Decision(DecisionFailure::ClientGone);
        }
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
            "The queue is full, and another request took the place of this one: a more important \
             one, or one of a key with fewer there"
                .into(),
        ),
    };
    place.leave(end);
    AdmissionFailure::Queue(with_return_time(flow, request, OwnError::new(code, message)))
}

/// The expected cost of a request to its owner.
fn cost_of(request: &ScannedRequest, decided: &Decided) -> Cost {
    let serving = decided.decision.serving(&request.fleet);
    let (streaming, limit) = (request.profile.streaming, request.profile.max_tokens);
    let output = serving.map_or(0, |one| one.latency.expect(streaming, limit).tokens.0);
    Cost { prompt: decided.decision.uncached_tokens(&request.profile), output }
}
