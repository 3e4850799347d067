//! The share of its client's limits that an admitted request holds. The slot in flight is freed
//! when the permit is settled or dropped, whatever ended the request; if it is only dropped, the
//! tokens stay reserved.

use std::sync::atomic::{AtomicBool, Ordering};

use super::account::AccountHold;
use super::{LimitTime, RateStatus};

/// A request's part of its client's limits.
#[derive(Debug)]
pub struct RatePermit {
    holds: [Option<AccountHold>; 2],
    reserved: u64,
    since: LimitTime,
    status: RateStatus,
    is_settled: AtomicBool,
}

impl RatePermit {
    pub(super) fn new(
        holds: [Option<AccountHold>; 2],
        reserved: u64,
        since: LimitTime,
        status: RateStatus,
    ) -> Self {
        Self { holds, reserved, since, status, is_settled: AtomicBool::new(false) }
    }

    /// The remaining limits when the request was admitted.
    pub fn status(&self) -> &RateStatus {
        &self.status
    }

    /// Returns whether tokens are limited.
    pub fn counts_tokens(&self) -> bool {
        self.holds.iter().flatten().any(|hold| hold.limits.counts_tokens())
    }

    /// Ends the request with the tokens it has used; with `None`, those reserved count. Only the
    /// first call counts.
    pub fn settle(&self, used: Option<u64>, now: LimitTime) {
        if self.is_settled.swap(true, Ordering::AcqRel) {
            return;
        }
        for hold in self.holds.iter().flatten() {
            let mut state = hold.account.state.lock();
            state.advance(&hold.limits, now);
            state.settle(used.unwrap_or(self.reserved), self.reserved, self.since);
            state.release(self.since);
            // A request that used nothing was not served.
            if used != Some(0) {
                state.learn_duration(&hold.limits, now.at.since(self.since.at));
            }
        }
    }

    /// The account of the key.
    pub(super) fn key(&self) -> Option<&AccountHold> {
        self.holds.first().and_then(Option::as_ref)
    }

    /// Gives everything back, for a request that is refused because of a limit elsewhere.
    pub(super) fn undo(self, now: LimitTime) {
        for hold in self.holds.iter().flatten() {
            hold.account.state.lock().undo(&hold.limits);
        }
        self.settle(Some(0), now);
    }
}

impl Drop for RatePermit {
    fn drop(&mut self) {
        if self.is_settled.swap(true, Ordering::AcqRel) {
            return;
        }
        for hold in self.holds.iter().flatten() {
            hold.account.state.lock().release(self.since);
        }
    }
}
