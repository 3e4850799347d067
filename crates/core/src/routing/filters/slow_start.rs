//! Rejects a backend in slow start for a part of the decisions.

use penstock_api::mix::mix;

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::Serving;

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

/// Drawn from the time of the decision, so that a second pass and an explanation get the same
/// result.
fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let (state, now) = (&candidate.state, filters.input.now);
    if !state.is_in_slow_start() {
        return None;
    }
    let share = state.share(now);
    // The upper 16 bits make a number in 0..1.
    // With the id, several backends in slow start draw independently.
    let mixed = mix(now.0 ^ (u64::from(candidate.id.0) << 48));
    let draw = u16::try_from(mixed >> 48).map_or(0.0, f32::from) / 65536.0;
    let is_skipped = !filters.conditions.ignores_slow_start && share < 1.0 && draw >= share;
    is_skipped.then(|| RejectReason::SlowStart { percent: percent(share) })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=100 by the clamp")]
fn percent(share: f32) -> u8 {
    (share.clamp(0.0, 1.0) * 100.0) as u8
}
