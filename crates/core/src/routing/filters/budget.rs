//! Rejects a backend that costs money, if a budget of the request is spent and the rest of the
//! fleet may still serve it.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::Serving;

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Restricted, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let is_rejected = filters.restriction.is_free_only && !candidate.is_free();
    is_rejected.then_some(RejectReason::Budget)
}
