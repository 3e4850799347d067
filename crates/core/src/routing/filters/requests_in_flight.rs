//! Rejects backends at their limit of requests in flight, for all models or for this one.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{ReachedLimit, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Restricted, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let conditions = filters.conditions;
    match candidate.limit_reached()? {
        ReachedLimit::Backend(limit) => Some(RejectReason::Full { limit }),
        ReachedLimit::Model(limit) => {
            let may_spill = conditions.spills && !conditions.only_cached;
            (!may_spill).then_some(RejectReason::ModelFull { limit })
        }
    }
}
