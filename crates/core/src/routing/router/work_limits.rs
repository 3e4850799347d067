//! The meaning of the limits of work for one request while a backend is below them: it keeps to
//! them, may exceed them, or waits for the backends that have its prompt.

use crate::fleet::{Model, Serving};
use crate::routing::RouteInput;
use crate::routing::filters::{Conditions, Filters, RejectReason};
use crate::routing::prediction::{has_prompt, shape};

/// Returns the conditions of a pass of a strategy that weighs predictions.
///
/// A request that has not waited, has no objective for its first token, or misses it by its prompt
/// alone, may exceed the limits: the strategy knows the cost of waiting for another backend. So may
/// a long prompt that a backend has cached. If its owner is far above its share, it waits for such
/// a backend instead.
// Long prompts stay on few backends only if these may have several of them: elsewhere they would
// slow down every stream. A request that is late because it has waited would be sent to where it
// makes no other one late, and would take the time there from requests that can still be in time.
// A long prompt that is cached elsewhere would be computed again wherever there is room: that fills
// the backends with work. But one large owner would fill the room of all others with such prompts.
pub(super) fn within(input: &RouteInput<'_>, model: &Model, conditions: Conditions) -> Conditions {
    let filters = Filters::new(input, model, conditions);
    let mut limited = model.serving.iter().take_while(|one| one.max_backlog.is_finite());
    if !limited.any(|one| filters.check::<bool>(one)) {
        return conditions;
    }
    let exceeding = Conditions { exceeds_work: true, ..conditions };
    let Some(ttft_ms) = input.waited.and_then(|waited| waited.ttft_ms) else { return exceeding };
    let shape = shape(input.request, 0);
    let takes_longer = |least_us: f64| {
        let work_us = |one: &Serving| one.estimate(&shape, input.now).prediction.work_us;
        // A short prompt is not late by itself, whatever objective its client claims.
        model.serving.iter().all(|one| work_us(one) > one.max_backlog.max(least_us))
    };
    if takes_longer(ttft_ms * 1000.0) {
        return exceeding;
    }
    let is_full = |one: &Serving| {
        filters.check::<Result<(), _>>(one).map_or_else(RejectReason::is_full, |()| true)
    };
    let mut holders =
        model.serving.iter().filter(|one| has_prompt(input, model, one) && is_full(one));
    match holders.next().filter(|_| takes_longer(0.0)) {
        Some(one) if filters.is_far_above_share(one) => {
            Conditions { only_cached: true, ..conditions }
        }
        Some(_) => exceeding,
        None => conditions,
    }
}
