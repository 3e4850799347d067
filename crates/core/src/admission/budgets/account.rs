//! The money spent of one budget by one team or key that it counts apart.

use std::collections::VecDeque;
use std::time::Duration;

use super::foreign::{Foreign, LedgerSpending, SharedBalance};
use super::money::Money;
use super::period::{Period, PeriodSpan};
use crate::fleet::{MAX_WAIT_S, Openings};

/// The money of one budget and subject.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The money spent here, by the start of the part of time; the oldest first.
    parts: VecDeque<(u64, Money)>,
    spent: Money,
    reserved: Money,
    /// The money spent since the last write, by part.
    unwritten: Vec<(u64, Money)>,
    /// The parts that have changed since they were reported to other penstocks.
    unshared: Vec<u64>,
    /// The knowledge of other penstocks, if they share budgets.
    foreign: Foreign,
    /// The part in which a warning was given last.
    warned_in: Option<u64>,
    refused_count: u64,
}

/// The state of an account at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Balance {
    /// The money spent in the period.
    pub spent: Money,
    /// The money that requests in flight may cost.
    pub reserved: Money,
    /// The time at which the period ends, or at which the first money spent in it is forgotten, in
    /// seconds since 1970.
    pub until: u64,
    /// The number of requests that were refused, limited or given another model.
    pub refused_count: u64,
}

impl Account {
    /// Forgets what no longer counts.
    pub(super) fn advance(&mut self, span: PeriodSpan) {
        // Parts of the future stay: the clock was set back, and they were spent.
        while let Some((start, amount)) = self.parts.front().copied()
            && start < span.since
        {
            self.parts.pop_front();
            self.spent = self.spent.less(amount);
            self.foreign.forget_own(amount);
        }
        // No replica counts what has left the period.
        self.unshared.retain(|part| *part >= span.since);
        self.foreign.advance(span);
    }

    /// The money spent here and by other penstocks.
    fn total(&self) -> Money {
        self.spent.plus(self.foreign.spent())
    }

    /// Returns whether an amount may still be spent once all requests in flight cost nothing.
    pub(super) fn has_unspent(&self, amount: Money, limit: Money) -> bool {
        self.total().plus(amount) <= limit
    }

    /// Returns whether an amount may be spent while it is unknown what other penstocks do: they may
    /// spend an even share of what was left when the server was last reached.
    pub(super) fn has_share(&self, amount: Money, limit: Money, penstocks: u64) -> bool {
        let own = self.spent.plus(self.reserved).plus(amount);
        own <= self.foreign.share(limit, penstocks) && self.has_room(amount, limit)
    }

    /// Takes over what the server knows. `ledger`: the ledger of this process, of which the server
    /// knows more after a crash.
    pub(super) fn learn(&mut self, known: &SharedBalance, ledger: &str) {
        for LedgerSpending { part, amount, .. } in
            known.rows.iter().filter(|row| *row.ledger == *ledger)
        {
            let own = self.parts.iter().find(|(start, _)| start == part);
            // The server knows more of this penstock than its file: it crashed before the write.
            let lost = amount.less(own.map_or(Money::ZERO, |(_, sum)| *sum));
            if lost > Money::ZERO {
                self.add(*part, lost);
            }
        }
        self.foreign.learn(known, ledger, self.spent.plus(self.reserved), self.reserved);
    }

    /// Takes the parts that have changed since the last call, with what was spent in each.
    pub(super) fn take_unshared(&mut self) -> Vec<(u64, Money)> {
        let changed = std::mem::take(&mut self.unshared);
        self.parts.iter().filter(|(part, _)| changed.contains(part)).copied().collect()
    }

    /// Returns what was spent here by part, and what is known of the ledgers of other penstocks.
    pub(super) fn known(&self) -> (Vec<(u64, Money)>, Vec<LedgerSpending>) {
        (self.parts.iter().copied().collect(), self.foreign.rows().to_vec())
    }

    /// Returns whether an amount may still be spent.
    pub(super) fn has_room(&self, amount: Money, limit: Money) -> bool {
        self.total().plus(self.reserved).plus(amount) <= limit
    }

    /// Returns the time at which there may be room for an amount, in seconds since 1970: now if
    /// only requests in flight are in the way, which may cost less than they have reserved. `None`
    /// for more than the limit.
    pub(super) fn room_at(
        &self,
        amount: Money,
        limit: Money,
        period: &Period,
        unix: u64,
    ) -> Option<u64> {
        // It would not fit an untouched budget: no time to return helps.
        if amount > limit {
            return None;
        }
        let mut spent = self.total();
        if spent.plus(amount) <= limit {
            return Some(unix);
        }
        let parts = self.parts_by_time();
        let last = parts.iter().find(|(_, sum)| {
            spent = spent.less(*sum);
            spent.plus(amount) <= limit
        });
        last.map(|(start, _)| period.end_of(*start))
    }

    /// The money spent in each part of time, the oldest first: it is free first.
    fn parts_by_time(&self) -> Vec<(u64, Money)> {
        let foreign = self.foreign.rows().iter().map(|row| (row.part, row.amount));
        let mut parts: Vec<(u64, Money)> = self.parts.iter().copied().chain(foreign).collect();
        parts.sort_unstable();
        parts
    }

    /// Returns the times at which there is room for requests that cost an amount each. `None` if
    /// that is at once, or not within the time that is looked ahead.
    pub(super) fn openings(
        &self,
        amount: Money,
        limit: Money,
        period: &Period,
        unix: u64,
    ) -> Option<Openings> {
        let total = self.total();
        if amount == Money::ZERO || total.plus(amount) <= limit {
            return None;
        }
        let mut taken = total.plus(self.reserved);
        let (mut before, mut openings) = (0, None);
        for (start, sum) in self.parts_by_time() {
            taken = taken.less(sum);
            let wait = period.end_of(start).saturating_sub(unix);
            let count = limit.less(taken).0 / amount.0;
            if count > before && wait <= MAX_WAIT_S {
                let more = u32::try_from(count - before).unwrap_or(u32::MAX);
                // What a request costs is taken for longer than is looked ahead.
                let hold = Duration::from_secs(MAX_WAIT_S);
                let openings: &mut Openings = openings.get_or_insert_default();
                openings.add(Duration::from_secs(wait), more, hold);
                before = count;
            }
        }
        openings
    }

    pub(super) fn reserve(&mut self, amount: Money) {
        self.reserved = self.reserved.plus(amount);
    }

    /// Replaces a reserved amount by what was spent.
    pub(super) fn settle(&mut self, reserved: Money, spent: Money, span: PeriodSpan) {
        self.reserved = self.reserved.less(reserved);
        self.spend(spent, span);
    }

    fn spend(&mut self, amount: Money, span: PeriodSpan) {
        if amount == Money::ZERO {
            return;
        }
        self.add(span.part, amount);
        match self.unwritten.last_mut().filter(|(start, _)| *start == span.part) {
            Some((_, sum)) => *sum = sum.plus(amount),
            None => self.unwritten.push((span.part, amount)),
        }
    }

    /// Adds what is stored and not known: spent before, or by another process. `pending`: what was
    /// taken to be written down and is not stored yet.
    pub(super) fn restore(&mut self, part: u64, stored: Money, pending: Money) {
        let sum = |parts: &mut dyn Iterator<Item = &(u64, Money)>| {
            let own = parts.filter(|(start, _)| *start == part);
            own.fold(Money::ZERO, |sum, (_, amount)| sum.plus(*amount))
        };
        let unwritten = sum(&mut self.unwritten.iter()).plus(pending);
        // What is counted here and not yet written is not in the stored sum.
        let written = sum(&mut self.parts.iter()).less(unwritten);
        let foreign = stored.less(written);
        if foreign > Money::ZERO {
            self.add(part, foreign);
        }
    }

    fn add(&mut self, part: u64, amount: Money) {
        if !self.unshared.contains(&part) {
            self.unshared.push(part);
        }
        self.spent = self.spent.plus(amount);
        let position = self.parts.iter().rposition(|(start, _)| *start <= part);
        match position.and_then(|position| self.parts.get_mut(position)) {
            Some((start, sum)) if *start == part => *sum = sum.plus(amount),
            _ => self.parts.insert(position.map_or(0, |position| position + 1), (part, amount)),
        }
    }

    /// Returns whether a warning is due, once in a period.
    pub(super) fn takes_warning(&mut self, share: f64, limit: Money, span: PeriodSpan) -> bool {
        let is_due = self.total().amount() >= share * limit.amount()
            && self.warned_in.is_none_or(|part| part < span.since);
        if is_due {
            self.warned_in = Some(span.part);
        }
        is_due
    }

    pub(super) fn count_refused(&mut self) {
        self.refused_count += 1;
    }

    pub(super) fn balance(&self, period: &Period, span: PeriodSpan) -> Balance {
        let (spent, refused_count) = (self.total(), self.refused_count);
        let reserved = self.reserved.plus(self.foreign.reserved());
        let own = self.parts.front().map(|(start, _)| *start);
        let oldest = own.into_iter().chain(self.foreign.oldest()).min();
        let oldest = oldest.map(|start| period.end_of(start));
        Balance { spent, reserved, until: oldest.unwrap_or(span.until), refused_count }
    }

    /// Takes what is to be written down.
    pub(super) fn take_unwritten(&mut self) -> Vec<(u64, Money)> {
        std::mem::take(&mut self.unwritten)
    }

    /// Returns whether nothing is known of it.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
            && self.reserved == Money::ZERO
            && self.unwritten.is_empty()
            && self.foreign.rows().is_empty()
    }
}
