//! The part of the budgets that a request holds, and the tokens that it has used.

use std::sync::Arc;

use parking_lot::Mutex;
use penstock_core::admission::budgets::BudgetReport;

use crate::shared_state::SharedHold;

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
