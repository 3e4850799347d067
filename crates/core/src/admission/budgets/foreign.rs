//! The knowledge of an account about other penstocks that share its budget: the money that the
//! requests of each ledger have spent, and what was reserved when the server was last asked.
//!
//! The sum of a ledger in a part of time only grows, so of two values the higher one is newer,
//! whichever penstock sends it, and in whatever order they arrive.

use std::sync::Arc;

use super::money::Money;
use super::period::PeriodSpan;

/// The most rows that an account keeps: a ledger has at most two for each sixtieth of a period.
const MAX_ROWS: usize = 16_384;

/// The money that the requests of one ledger have spent in one part of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerSpending {
    /// The start of the part, in seconds since 1970.
    pub part: u64,
    /// The identity of the ledger.
    pub ledger: Arc<str>,
    pub amount: Money,
}

/// The state of an account as the server has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedBalance {
    /// The money that requests in flight of all penstocks may cost.
    pub reserved: Money,
    pub rows: Vec<LedgerSpending>,
}

/// The knowledge of other penstocks.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    rows: Vec<LedgerSpending>,
    spent: Money,
    reserved: Money,
    /// The money spent and reserved by all when the server was last asked, and by this process.
    all_then: Money,
    own_then: Money,
}

impl Foreign {
    pub(super) fn rows(&self) -> &[LedgerSpending] {
        &self.rows
    }

    /// The money that they have spent in the period.
    pub(super) fn spent(&self) -> Money {
        self.spent
    }

    /// The money that their requests in flight have reserved.
    pub(super) fn reserved(&self) -> Money {
        self.reserved
    }

    /// The start of the oldest part in which they have spent something.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.rows.iter().map(|row| row.part).min()
    }

    /// Takes over what the server knows. `own`: the money spent and reserved by this process;
    /// `own_reserved`: the reserved part of it.
    pub(super) fn learn(
        &mut self,
        known: &SharedBalance,
        ledger: &str,
        own: Money,
        own_reserved: Money,
    ) {
        for row in known.rows.iter().filter(|row| *row.ledger != *ledger) {
            let is_full = self.rows.len() >= MAX_ROWS;
            let same = |old: &&mut LedgerSpending| old.part == row.part && old.ledger == row.ledger;
            match self.rows.iter_mut().find(same) {
                Some(old) => old.amount = old.amount.max(row.amount),
                None if !is_full => self.rows.push(row.clone()),
                None => {}
            }
        }
        self.count();
        self.reserved = known.reserved.less(own_reserved);
        self.own_then = own;
        self.all_then = own.plus(self.spent).plus(self.reserved);
    }

    /// Returns the most that this process may have spent and reserved while the server is not
    /// reached.
    pub(super) fn share(&self, limit: Money, penstocks: u64) -> Money {
        let left = limit.less(self.all_then);
        self.own_then.plus(Money(left.0 / penstocks.max(1)))
    }

    /// Forgets what no longer counts.
    pub(super) fn advance(&mut self, span: PeriodSpan) {
        let before = self.spent;
        if self.rows.iter().any(|row| row.part < span.since) {
            self.rows.retain(|row| row.part >= span.since);
            self.count();
            self.all_then = self.all_then.less(before.less(self.spent));
        }
    }

    /// Forgets money that this process has spent and that no longer counts.
    pub(super) fn forget_own(&mut self, amount: Money) {
        self.own_then = self.own_then.less(amount);
        self.all_then = self.all_then.less(amount);
    }

    fn count(&mut self) {
        self.spent = self.rows.iter().fold(Money::ZERO, |sum, row| sum.plus(row.amount));
    }
}
