//! The reservation of a request in the server, freed when it is dropped.

use std::sync::Arc;

use super::{SharedBudgets, SharedReservation};

/// A reservation of a request in the server; none by default. Dropped after the request's cost is
/// known here, so that the server learns of the cost when it frees the reservation.
#[derive(Debug, Default)]
pub struct BudgetLease(Option<LeaseHold>);

#[derive(Debug)]
struct LeaseHold {
    owner: Arc<SharedBudgets>,
    number: u64,
    reserved: SharedReservation,
}

impl BudgetLease {
    pub(super) fn new(owner: Arc<SharedBudgets>, number: u64, reserved: SharedReservation) -> Self {
        Self(Some(LeaseHold { owner, number, reserved }))
    }

    pub(super) fn reserved(&self) -> Option<&SharedReservation> {
        self.0.as_ref().map(|held| &held.reserved)
    }

    /// Renews it until it is dropped.
    pub(super) fn register(&self) {
        if let Some(LeaseHold { owner, number, reserved }) = &self.0 {
            owner.leases.lock().insert(*number, reserved.clone());
        }
    }

    /// Drops the lease without a report: the server has reserved nothing.
    pub(super) fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for BudgetLease {
    fn drop(&mut self) {
        if let Some(LeaseHold { owner, number, reserved }) = self.0.take() {
            owner.end(number, reserved);
        }
    }
}
