//! A request's part of the shared limits. Its end is reported when the permit is settled or
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_config::RateLimits;

use super::SharedState;

/// The end of a request, to be reported.
#[derive(Debug, Clone)]
pub(super) struct Settlement {
    pub(super) keys: Vec<String>,
    pub(super) limits: Vec<RateLimits>,
    pub(super) lease: u64,
    /// The server's day on which tokens were reserved.
    pub(super) day: i64,
    pub(super) reserved: u64,
    /// The tokens to add to the reserved ones, or to give back if negative.
    pub(super) change: i64,
}

/// A request's part of the shared limits.
#[derive(Debug)]
pub struct SharedPermit {
    shared: Arc<SharedState>,
    reserved: Settlement,
    is_settled: AtomicBool,
}

impl SharedPermit {
    pub(super) fn new(shared: Arc<SharedState>, reserved: Settlement) -> Self {
        Self { shared, reserved, is_settled: AtomicBool::new(false) }
    }

    /// Ends the request with the tokens it has `used`, or with the reserved ones for `None`. Only
    /// the first call counts.
    pub fn settle(&self, used: Option<u64>) {
        if self.is_settled.swap(true, Ordering::AcqRel) {
            return;
        }
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let change =
            used.map_or(0, |used| signed(used).saturating_sub(signed(self.reserved.reserved)));
        self.shared.settle(Settlement { change, ..self.reserved.clone() });
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.settle(None);
    }
}
