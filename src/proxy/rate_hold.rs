//! What a request holds of its client's limits.

use crate::admission::rate_limits::{RatePermit, RateStatus};

/// A request's part of its client's limits; empty without limits.
#[derive(Debug, Default)]
pub(crate) struct RateHold {
    /// What is left, for the response.
    pub(crate) status: Option<RateStatus>,
    pub(crate) permit: Option<Box<RatePermit>>,
}

impl RateHold {
    /// Whether the tokens of the request are limited.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.permit.as_ref().is_some_and(|permit| permit.counts_tokens())
    }
}
