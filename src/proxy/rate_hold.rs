//! The part of a client's limits that a request holds.

use penstock_core::admission::rate_limits::{LimitTime, RatePermit, RateStatus};

use crate::shared_state::SharedPermit;

/// A request's part of its client's limits.
#[derive(Debug)]
pub(crate) struct RateHold {
    /// The remaining limits, for the response.
    pub(crate) status: RateStatus,
    /// None if the request was refused.
    pub(crate) permit: Option<RatePermit>,
    /// The permit in the state that replicas share.
    pub(crate) shared: Option<Box<SharedPermit>>,
}

impl RateHold {
    /// Ends the request with the tokens it has used, or with the reserved ones if `None`. Only the
    /// first call counts.
    pub(crate) fn settle(&self, used: Option<u64>, now: LimitTime) {
        if let Some(permit) = &self.permit {
            permit.settle(used, now);
        }
        if let Some(shared) = &self.shared {
            shared.settle(used);
        }
    }

    /// Returns whether the tokens of the request are limited.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.permit.as_ref().is_some_and(|permit| permit.counts_tokens())
    }
}
