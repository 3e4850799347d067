//! Rejects backends that drain or are not healthy.

use super::{FilterRow, Filters, RejectReason, Subjects};
use crate::fleet::{Health, Serving};

pub(super) const ROW: FilterRow = FilterRow { subjects: Subjects::Impaired, reject };

fn reject(filters: &Filters<'_>, candidate: &Serving) -> Option<RejectReason> {
    let health = candidate.state.status();
    let is_admitted = match health {
        Health::Healthy => true,
        Health::Unhealthy => {
            let Filters { input, conditions, .. } = filters;
            // An engine with one thread shows no page while it works.
            let is_last_resort = || candidate.state.is_hanging(input.now);
            conditions.in_panic || (conditions.ignores_faults && is_last_resort())
        }
        Health::Unknown | Health::Draining => false,
    };
    (!is_admitted).then_some(RejectReason::Health(health))
}
