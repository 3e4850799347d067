//! Rejects backends whose circuit breaker is open.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{BreakerState, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

/// Prompts that fail everywhere do not probe while other backends are left: they would show
/// nothing.
fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let Filters { input, conditions, .. } = filters;
    match candidate.state.breaker.state(input.now) {
        BreakerState::Open => Some(RejectReason::BreakerOpen),
        BreakerState::HalfOpen if !conditions.ignores_faults => {
            let client = input.requester.client;
            let has_bad = candidate.evidence.has_bad_prompts(client, input.now);
            has_bad.then_some(RejectReason::RecentFaults)
        }
        BreakerState::HalfOpen | BreakerState::Closed => None,
    }
}
