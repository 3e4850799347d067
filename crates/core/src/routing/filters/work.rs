//! The limits of work: the most that a backend may have to do before it gets another request.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::Serving;
use crate::routing::prediction::{has_prompt, shape};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Restricted, reject };

/// The share of a batch that sheddable requests may fill; the rest is reserved for the others.
/// Found by simulation: at 1, twice as many of the others miss their objectives, and no more of the
/// sheddable ones meet theirs.
const SHEDDABLE_SHARE: f64 = 0.85;

/// An objective for the time per token below this multiple of the time of a stream alone fills no
/// batch: otherwise a single client would have the backend to itself while the others wait.
const ROOM: f64 = 1.25;

/// Returns the limit of work that a backend has reached, as far as it is known: a rough limit
/// keeps less work waiting there than none, and learns from it. An idle backend takes anything.
fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let input = filters.input;
    let is_unlimited = candidate.max_backlog.is_infinite() || filters.conditions.exceeds_work;
    if is_unlimited || candidate.model_state.load.of_all() == 0 {
        return None;
    }
    if filters.conditions.only_cached && !has_prompt(input, filters.model, candidate) {
        return Some(RejectReason::NotCached);
    }
    let estimate = candidate.estimate(&shape(input.request, 0), input.now);
    let prediction = &estimate.prediction;
    let wait = prediction.backlog_us.max(prediction.slot_wait_us);
    // Here it adds little to the backlog, but those of one large owner do. The prefix lookup comes
    // second: it takes the model's lock.
    let is_small =
        || has_prompt(input, filters.model, candidate) && !filters.is_far_above_share(candidate);
    if wait > candidate.max_backlog && !is_small() {
        return Some(RejectReason::Backlog { ms: whole_ms(wait) });
    }
    let own = input.objectives.tpot_ms.map_or(f64::INFINITY, |ms| ms * 1000.0);
    let objective = own.min(estimate.tightest_tpot_us);
    let sheddable = if input.objectives.is_sheddable() { SHEDDABLE_SHARE } else { 1.0 };
    let alone = estimate.tpot_alone_us;
    let most = (objective * estimate.batch_share * sheddable).max(alone);
    let tpot = estimate.tpot_among_all_us;
    let is_tight = objective >= ROOM * alone;
    if tpot > most && is_tight {
        return Some(RejectReason::Batch { ms: whole_ms(tpot) });
    }
    let reserve = candidate.reserve;
    let left = 1.0 - reserve;
    let kept = (estimate.slots * reserve).round();
    // Sheddable requests already leave room in the batch.
    let batch = if input.objectives.is_sheddable() { most } else { most * left };
    let takes_kept = || {
        tpot > batch.max(alone) && is_tight
            || prediction.request_count + 1.0 + kept > estimate.slots
            || wait > candidate.max_backlog * left && !is_small()
            || estimate.waited_us > candidate.max_backlog
    };
    (reserve > 0.0 && takes_kept() && filters.is_held_back(candidate)).then_some(RejectReason::Kept)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole_ms(micros: f64) -> u32 {
    (micros / 1000.0).max(0.0) as u32
}
