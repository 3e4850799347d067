//! Rejects backends that drain or are not healthy.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{Health, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let health = candidate.state.status();
    let is_admitted = match health {
        Health::Healthy => true,
        Health::Unhealthy => filters.conditions.in_panic,
        Health::Unknown | Health::Draining => false,
    };
    (!is_admitted).then_some(RejectReason::Health(health))
}
