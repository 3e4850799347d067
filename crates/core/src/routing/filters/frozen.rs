//! Rejects backends whose requests make no progress, while others are left.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{BreakerState, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let Filters { input, conditions, .. } = filters;
    let is_frozen =
        !conditions.ignores_faults && candidate.state.freeze(input.now) == BreakerState::Open;
    is_frozen.then_some(RejectReason::Frozen)
}
