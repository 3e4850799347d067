//! The shares of its client's limits and budgets that a request holds until it ends, and the tokens
//! that it has used.

use std::sync::Arc;

use parking_lot::Mutex;
use penstock_core::admission::budgets::BudgetReport;
use penstock_core::admission::rate_limits::{LimitTime, RatePermit, RateStatus};

use crate::shared_state::{SharedHold, SharedPermit};

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

/// The money that a request has reserved.
#[derive(Debug)]
pub(crate) struct RequestBudget {
    pub(crate) hold: Mutex<Option<SharedHold>>,
    /// The model that it gets in place of the requested one.
    pub(crate) instead: Option<Arc<str>>,
    /// The budget with the least left after the reservation, if the client may see it.
    pub(crate) tightest: Option<BudgetReport>,
    /// False if nothing is read of the request that could be priced, or no model runs for it.
    pub(crate) is_counted: bool,
}

/// The tokens that a request has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UsedTokens {
    pub(crate) input: u64,
    /// The cached ones among them.
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl UsedTokens {
    pub(crate) fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}
