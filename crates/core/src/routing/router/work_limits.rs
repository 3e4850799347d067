//! The meaning of the limits of work for one request while a backend is below them: it keeps to
//! them, may exceed them, or waits for the backends that have its prompt.

use crate::fleet::{Model, Serving};
use crate::routing::RouteInput;
use crate::routing::filters::{Conditions, Filters, RejectReason};
use crate::routing::prediction::{has_prompt, shape};

/// The share of its objective for the first token above which a prompt is too long to wait for room
/// as well. Found in simulation: with 1, seven points fewer requests are in time where long prompts
/// come beside bursts of chats; with 0.25, up to eight fewer of a fleet that is full.
const LONG_PROMPT_SHARE: f64 = 0.5;

/// Returns the conditions of a pass of a strategy that weighs predictions.
///
/// A request that has not waited, or has no objective for its first token, may exceed the limits:
/// the strategy knows the cost of waiting for another backend. So may a prompt that alone is more
/// work than the limits allow, if it takes half of its objective or a backend has it cached. If the
/// owner of such a prompt is far above its share, it may do so while enough backends have room for
/// others. Then it keeps to the limits, and waits for the backends that have it cached, if there
/// are any, or for an idle one.
// Long prompts stay on few backends only if these may have several of them: elsewhere they would
// slow down every stream, or be computed again. A short one that is late because it has waited
// would be sent to where it makes no other one late, and would take the time there from requests
// that can still be in time. One large owner would fill the room of all others with long prompts.
pub(super) fn within(input: &RouteInput<'_>, model: &Model, conditions: Conditions) -> Conditions {
    let filters = Filters::new(input, model, conditions);
    let is_limited = |one: &Serving| one.max_backlog.is_finite();
    let has_room = || model.serving.iter().any(|one| filters.check::<bool>(one));
    let Some(first) = model.serving.first().filter(|one| is_limited(one) && has_room()) else {
        return conditions;
    };
    let exceeding = Conditions { exceeds_work: true, ..conditions };
    let Some(ttft_ms) = input.waited.and_then(|waited| waited.ttft_ms) else { return exceeding };
    let shape = shape(input.request, 0);
    let takes_longer = |least_us: f64| {
        let work_us = |one: &Serving| one.estimate(&shape, input.now).prediction.work_us;
        // A short prompt is not long, whatever objective its client claims.
        model.serving.iter().all(|one| work_us(one) > one.max_backlog.max(least_us))
    };
    if !takes_longer(0.0) {
        return conditions;
    }
    let may_have_room = |one: &Serving| match filters.check::<Result<(), RejectReason>>(one) {
        Ok(()) => true,
        Err(reason) => reason.is_full(),
    };
    let mut holders = model.serving.iter().filter(|one| has_prompt(input, model, one));
    let is_cached = holders.any(may_have_room);
    if filters.is_far_above_share(first) && !leaves_room(model, first.reserve, &filters) {
        return Conditions { only_cached: is_cached && !conditions.in_panic, ..conditions };
    }
    if is_cached || takes_longer(LONG_PROMPT_SHARE * ttft_ms * 1000.0) {
        exceeding
    } else {
        conditions
    }
}

/// Returns whether backends are below the limits that a request may take without the last ones: the
/// kept share of all (`queue.reserve`), at least one.
fn leaves_room(model: &Model, reserve: f64, filters: &Filters<'_>) -> bool {
    let with_room = model.serving.iter().filter(|one| filters.check::<bool>(one)).count();
    with_room as f64 > (reserve * model.serving.len() as f64).max(1.0)
}
