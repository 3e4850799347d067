//! Shortens a conversation that no backend has room for, if its model or its key allows that.
//! Backends with enough context are tried first: those known to be too short are passed over, and
//! only when no other is left does the conversation lose its oldest messages. `dialect` decides
//! what is cut, `core` to what length; this file decides when.

use std::mem;
use std::sync::Arc;

use penstock_core::fleet::{BackendSet, ContextLimit, Serving};
use penstock_core::routing::{RouteError, RoutingDecision, scale_of};
use penstock_dialect::ShiftConversation;

use crate::proxy::flow::RequestContext;
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::proxy::shift_state::{ShiftState, TooLong};
use crate::wire::beside_the_loop;

/// The maximum number of refusals of a shortened conversation: the second one is final.
const MAX_REFUSALS: u32 = 2;
/// The maximum number of times a conversation is shortened, for backends of ever shorter contexts.
const MAX_SHIFTS: u32 = 8;

/// Passes over the backends whose context is known to be too short for the request.
pub(crate) fn pass_over_small(ctx: &RequestContext, request: &mut ScannedRequest) {
    let Some(mut shift) = request.shift.take() else { return };
    if !shift.gave_up {
        let estimated = request.profile.prompt_tokens.0;
        let mut found = BackendSet::default();
        for serving in rows(request.view(ctx)) {
            if !request.tried.contains(serving.id) && shift.known.is_too_small(serving, estimated) {
                found.insert(serving.id);
                shift.known.too_small.insert(serving.id);
            }
        }
        request.tried.insert_all(&found);
    }
    request.shift = Some(shift);
}

/// Learns from an engine's refusal. The next decision passes over every backend that is too
/// small. Returns whether another attempt may follow.
pub(crate) fn learn_refusal(
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    decision: RoutingDecision,
    too_long: TooLong,
) -> bool {
    let estimated = request.profile.prompt_tokens.0.max(1);
    let fleet = Arc::clone(&request.fleet);
    let (Some(shift), Some(serving)) = (request.shift.as_mut(), decision.serving(&fleet)) else {
        return false;
    };
    let TooLong { held, refusal } = too_long;
    shift.last = Some((held, decision));
    // The refusal of the whole conversation is the reason to shorten it, and does not count.
    shift.refusals += u32::from(shift.shifts > 0);
    let known = shift.known.limit_of(serving).map(|limit| limit.tokens);
    let Some(limit) = refusal.limit.or(known) else { return false };
    shift.known.output = refusal.output;
    // If the engine does not report the prompt's length, the prompt is at least one token too
    // long.
    let least = limit.saturating_sub(refusal.output).saturating_add(1);
    let prompt = refusal.prompt.unwrap_or(least.max(estimated));
    let scale = scale_of(prompt, estimated);
    shift.known.scale = Some(scale);
    shift.known.refused_by = Some((serving.id, limit));
    serving.latency.context.learn(ContextLimit { tokens: limit, scale });
    shift.known.too_small.insert(serving.id);
    if shift.refusals >= MAX_REFUSALS {
        return false;
    }
    // Other backends may have room, but a request does not visit all of them.
    let max_retries = ctx.generation.config.routing.max_retries;
    ctx.record.routing.attempts <= max_retries || shorten(ctx, request)
}

/// Shortens the request for the backend with the most room, when no decision was possible.
/// Returns whether another decision may follow.
pub(crate) fn shorten_for(
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    error: &RouteError,
) -> bool {
    let is_refused = request.shift.as_ref().is_some_and(|shift| shift.last.is_some());
    let may_have_room = matches!(
        error,
        RouteError::Saturated { .. }
            | RouteError::CoolingDown { .. }
            | RouteError::ModelNotFound { .. }
            | RouteError::DiscoveryPending { .. }
    );
    // A busy or undiscovered backend may have room: nothing is cut for it.
    if may_have_room && !is_refused {
        return false;
    }
    if shorten(ctx, request) {
        return true;
    }
    // Nothing can be dropped: the engines that were passed over explain that better than a
    // route error.
    let Some(shift) = request.shift.as_mut() else { return false };
    let was_passed_over = !shift.known.too_small.is_empty() && shift.last.is_none();
    shift.gave_up = true;
    request.tried.remove_all(&mem::take(&mut shift.known.too_small));
    was_passed_over
}

/// Drops the oldest messages, so that the remainder fits the largest of the contexts that are
/// too short.
fn shorten(ctx: &mut RequestContext, request: &mut ScannedRequest) -> bool {
    let Some(mut shift) = request.shift.take() else { return false };
    let bytes = request.body().len();
    let is_shorter = shift.shifts < MAX_SHIFTS
        && beside_the_loop(bytes, || shorten_by(ctx, request, &mut shift)).is_some();
    if is_shorter {
        ctx.record.edits.dropped_messages = Some(shift.dropped);
    }
    request.shift = Some(shift);
    is_shorter
}

fn shorten_by(
    ctx: &RequestContext,
    request: &mut ScannedRequest,
    shift: &mut ShiftState,
) -> Option<()> {
    let estimated = request.profile.prompt_tokens.0;
    let to_fit = ctx.generation.router.tokens_to_fit(&request.profile).0;
    let target = shift.known.target(rows(request.view(ctx)), &request.tried, estimated, to_fit)?;
    let body = request.body.as_ref()?;
    let conversation = ShiftConversation::read(request.profile.operation, &body.bytes)?;
    let target = conversation.share(target, estimated);
    // Only after a refusal of the shorter conversation: dropping messages alone may be enough.
    let without_tools = shift.known.drops_tools && shift.refusals > 0;
    let cut = conversation.shift(target, without_tools)?;
    let shortened = cut.apply(&body.bytes);
    request.replace_body(ctx, shortened)?;
    shift.shifts += 1;
    shift.dropped += cut.dropped();
    // The shorter conversation may fit those that were passed over.
    request.tried.remove_all(&mem::take(&mut shift.known.too_small));
    tracing::debug!(
        request_id = ctx.request_id(),
        dropped = cut.dropped(),
        without_tools,
        "context shift"
    );
    Some(())
}

/// The backends of the requested model, and of the model that a refused attempt went to.
fn rows(RequestView { ctx, request }: RequestView<'_>) -> impl Iterator<Item = &Serving> {
    let fleet = &request.fleet;
    let target = ctx.generation.router.names.resolve(request.wanted_model(), fleet, request.split);
    let requested = fleet.model_id(target);
    let decided = request.decision.map(|decision| decision.model);
    let decided = decided.filter(|decided| Some(*decided) != requested);
    let models = [requested, decided].into_iter().flatten();
    models.filter_map(|id| fleet.model(id)).flat_map(|model| model.serving.iter())
}
