//! Rejects backends at their limit of requests in flight, for all models or for this one.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{ReachedLimit, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Restricted, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    match candidate.limit_reached()? {
        ReachedLimit::Backend(limit) => Some(RejectReason::Full { limit }),
        ReachedLimit::Model(limit) => {
            (!filters.conditions.spills).then_some(RejectReason::ModelFull { limit })
        }
    }
}
