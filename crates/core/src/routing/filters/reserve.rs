//! Rejects backends whose remaining room is reserved for owners below their share
//! (`queue.reserve`).

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::Serving;

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Restricted, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let is_kept = candidate.has_only_kept_room(filters.conditions.spills);
    (is_kept && filters.is_held_back(candidate)).then_some(RejectReason::Kept)
}

impl Filters<'_> {
    /// Returns whether reserved room is refused to the request. Positive priorities may take it.
    pub(super) fn is_held_back(&self, candidate: &Serving) -> bool {
        let input = self.input;
        input.objectives.priority <= 0
            && candidate.keeps_room_from(input.requester.owner, input.now)
    }

    /// Returns whether the owner of the request is far above its share. Positive priorities do not
    /// count.
    pub(in crate::routing) fn is_far_above_share(&self, candidate: &Serving) -> bool {
        let input = self.input;
        input.objectives.priority <= 0
            && candidate.is_far_above_share(input.requester.owner, input.now)
    }
}
