//! Rejects a backend that is beyond the bounds of the request's policy, unless the request would be
//! the only one there: one at a time tries whether it is still.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::Serving;

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Restricted, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let rule = filters.restriction.quality?;
    let quality = candidate.quality.as_ref()?;
    let is_rejected =
        quality.violates(rule, filters.input.now) && candidate.model_state.load.of_all() > 0;
    is_rejected.then_some(RejectReason::Quality)
}
