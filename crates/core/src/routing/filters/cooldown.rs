//! Rejects backends in cooldown after their own 429 or 503, and selects the one to probe while all
//! are in cooldown.

use penstock_api::units::Timestamp;

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::Serving;
use crate::routing::RouteInput;

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

/// The cooldown must cover the request.
fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let input = filters.input;
    let scope = candidate.cooldown_scope(input.requester);
    let cooldown = candidate.state.cooldowns.covering(scope, input.now)?;
    Some(RejectReason::Cooldown {
        until: cooldown.ends_at(),
        status: cooldown.status(),
        is_known: is_known(input, candidate),
    })
}

/// Returns whether the candidate is known, not only assumed, to meet all needs.
pub(in crate::routing) fn is_known(input: &RouteInput<'_>, candidate: &Serving) -> bool {
    candidate.known.contains(input.request.needs)
}

/// The next backend to probe while all are in cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routing) struct NextProbe {
    pub(in crate::routing) row: u32,
    /// True if it is known to meet the needs of the request.
    pub(in crate::routing) is_known: bool,
}

/// Returns the backend whose cooldown ends first; ties go to the first. Backends only assumed to
/// meet the needs come after all known to. Returns none if a backend is merely full: it may have
/// room before a cooldown ends.
pub(in crate::routing) fn next_probe(
    rejected: impl Iterator<Item = (u32, RejectReason)>,
) -> Option<NextProbe> {
    let mut first: Option<((bool, Timestamp), u32)> = None;
    for (row, reason) in rejected {
        match reason {
            RejectReason::Cooldown { until, is_known, .. } => {
                let rank = (!is_known, until);
                if first.is_none_or(|(best, _)| rank < best) {
                    first = Some((rank, row));
                }
            }
            reason if reason.is_full() => return None,
            _ => {}
        }
    }
    first.map(|((is_assumed, _), row)| NextProbe { row, is_known: !is_assumed })
}
