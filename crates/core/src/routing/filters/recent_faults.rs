//! Rejects backends that fail more than others, while others are left.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{BreakerState, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let Filters { input, conditions, .. } = filters;
    let is_avoided = candidate.state.has_recent_faults(input.now)
        && !conditions.ignores_faults
        && candidate.evidence_against(input.requester, input.now) == BreakerState::Open;
    is_avoided.then_some(RejectReason::RecentFaults)
}
