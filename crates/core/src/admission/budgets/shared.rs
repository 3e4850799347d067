//! Budgets that several penstocks share. A server decides whether all budgets of a request have
//! room, over all penstocks; accounts here follow it. Without the server each penstock may spend an
//! even share of what was left.

use std::sync::Arc;

use super::account::Account;
use super::foreign::SharedBalance;
use super::money::Money;
use super::{BudgetHold, Budgets, Exceeded, Held, exceeded};
use crate::clients::ClientIdentity;

/// One account of a request, as a server needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedTerms {
    pub budget: Arc<str>,
    pub subject: Arc<str>,
    /// The position of the budget in the configuration: of several without room the first one
    /// refuses.
    pub position: usize,
    pub limit: Money,
    /// The start of the oldest part that counts, in seconds since 1970.
    pub since: u64,
    /// The time at which what is spent now no longer counts.
    pub ends_at: u64,
}

/// The money spent of one account, for the server.
#[derive(Debug, Clone)]
pub struct AccountSpending {
    pub terms: SharedTerms,
    /// The money spent here, by part.
    pub own: Vec<(u64, Money)>,
    /// The money that other ledgers have spent.
    pub foreign: Vec<super::LedgerSpending>,
}

/// A request that may fit its budgets, if others have not reserved what is left.
#[derive(Debug)]
pub struct Proposal {
    held: Vec<Held>,
    estimate: Money,
    unix: u64,
}

impl Proposal {
    /// Returns what the request may cost.
    pub fn estimate(&self) -> Money {
        self.estimate
    }

    /// Returns whether no server has to decide: no budget is for the request, or it costs
    /// nothing.
    pub fn is_free(&self) -> bool {
        self.held.is_empty() || self.estimate == Money::ZERO
    }

    pub fn terms(&self) -> Vec<SharedTerms> {
        self.held.iter().map(|held| terms(held, self.unix)).collect()
    }

    /// Reserves what the server has admitted. `known`: the accounts as the server has them, this
    /// reservation among what is reserved.
    pub fn admit(self, known: &[SharedBalance], ledger: &str) -> BudgetHold {
        for Held { account, .. } in &self.held {
            account.lock().reserve(self.estimate);
        }
        // Afterwards: the server's sum has the reservation, which must not count as a foreign one.
        self.learn(known, ledger);
        BudgetHold { held: self.held, estimate: self.estimate, is_settled: false }
    }

    /// Returns the refusal of the budget at a place of [`Self::terms`].
    pub fn refuse(
        &self,
        place: usize,
        known: &[SharedBalance],
        ledger: &str,
    ) -> Option<Box<Exceeded>> {
        self.learn(known, ledger);
        let held = self.held.get(place)?;
        let mut account = held.account.lock();
        account.count_refused();
        Some(exceeded(held, &account, self.estimate, self.unix))
    }

    /// Reserves without the server: an even share for each of `penstocks` of what was left when it
    /// was last reached.
    ///
    /// # Errors
    /// The first budget whose share has no room.
    pub fn admit_alone(self, penstocks: u64) -> Result<BudgetHold, Box<Exceeded>> {
        let Self { held, estimate, unix } = self;
        Budgets::reserve_where(held, estimate, unix, |account, limit| {
            account.has_share(estimate, limit, penstocks)
        })
    }

    fn learn(&self, known: &[SharedBalance], ledger: &str) {
        for (held, known) in self.held.iter().zip(known) {
            held.account.lock().learn(known, ledger);
        }
    }
}

fn terms(held: &Held, unix: u64) -> SharedTerms {
    let span = held.rule.period.at(unix);
    SharedTerms {
        budget: Arc::clone(&held.rule.name),
        subject: Arc::clone(&held.subject),
        position: held.rule.position,
        limit: held.rule.limit,
        since: span.since,
        ends_at: held.rule.period.end_of(span.part),
    }
}

impl Budgets {
    /// Returns a request that a server has to admit.
    ///
    /// # Errors
    /// [`Exceeded`] if what is already spent leaves no room, whatever the requests in flight cost.
    pub fn propose(
        &self,
        client: Option<&ClientIdentity>,
        estimate: Money,
        unix: u64,
    ) -> Result<Proposal, Box<Exceeded>> {
        let held = self.held_by(client);
        let has_unspent = |held: &Held, account: &mut Account| {
            account.advance(held.rule.period.at(unix));
            estimate == Money::ZERO || account.has_unspent(estimate, held.rule.limit)
        };
        let mut lacking: Vec<&Held> =
            held.iter().filter(|held| !has_unspent(held, &mut held.account.lock())).collect();
        // The client reads of the first one in the configuration.
        lacking.sort_by_key(|held| held.rule.position);
        if let Some(held) = lacking.first() {
            let mut account = held.account.lock();
            account.count_refused();
            return Err(exceeded(held, &account, estimate, unix));
        }
        Ok(Proposal { held, estimate, unix })
    }

    /// Takes the parts of an account that have changed since the last call, to tell other
    /// penstocks, with what was spent in each.
    pub fn take_unshared(&self, of: &SharedTerms) -> Vec<(u64, Money)> {
        let (_, account) = self.account(&of.budget, &of.subject);
        let mut account = account.lock();
        account.take_unshared()
    }

    pub fn accounts(&self) -> usize {
        self.accounts.read().len()
    }

    /// Returns all that is known of at most `limit` accounts, the first of which is at `place`.
    pub fn spending(&self, place: usize, limit: usize, unix: u64) -> Vec<AccountSpending> {
        let all = self.all_held(place, limit).into_iter().map(|held| {
            let mut account = held.account.lock();
            account.advance(held.rule.period.at(unix));
            let (own, foreign) = account.known();
            drop(account);
            AccountSpending { terms: terms(&held, unix), own, foreign }
        });
        all.collect()
    }

    /// Takes over what the server knows of an account.
    pub fn learn(&self, of: &SharedTerms, known: &SharedBalance, ledger: &str) {
        let (_, account) = self.account(&of.budget, &of.subject);
        account.lock().learn(known, ledger);
    }

    /// Accounts of the budgets in force.
    fn all_held(&self, place: usize, limit: usize) -> Vec<Held> {
        let rules = self.rules.load();
        let accounts = self.accounts.read();
        let some = accounts.iter().skip(place).take(limit);
        let all = some.filter_map(|((budget, subject), account)| {
            let rule = rules.iter().find(|rule| rule.name == *budget)?;
            let (rule, subject) = (Arc::clone(rule), Arc::clone(subject));
            Some(Held { rule, subject, account: Arc::clone(account) })
        });
        all.collect()
    }
}
