//! The arguments and responses of the scripts for budgets. The server may hold anything, so what is
//! read is bounded here and by the accounts.

use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use penstock_clock::unix_seconds;
use penstock_core::admission::budgets::{
    AccountSpending, LedgerSpending, Money, Proposal, SharedBalance, SharedTerms,
};

/// The most leases of one call.
const MAX_LEASES: usize = 256;
/// The most rows of an account that are read.
const MAX_ROWS: usize = 16_384;
/// The longest identity of a ledger.
const MAX_LEDGER: usize = 128;

/// Returns the names of an account's spent money and of its leases. The length keeps apart names
/// that differ in the place of a colon.
pub(super) fn names_of(prefix: &str, budget: &str, subject: &str) -> [String; 2] {
    let name = format!("{prefix}:budgets:{}:{budget}:{subject}", budget.len());
    [format!("{name}:spent"), format!("{name}:leases")]
}

fn milliseconds_left(terms: &SharedTerms) -> String {
    // Two minutes more: a replica whose clock is behind still counts in this period.
    (terms.ends_at.saturating_sub(unix_seconds()).saturating_add(120) * 1000).to_string()
}

/// Returns the arguments of the script that reserves.
pub(super) fn argument_list(
    member: &str,
    lease: Duration,
    proposal: &Proposal,
    terms: &[SharedTerms],
) -> Vec<String> {
    let amount = proposal.estimate().0.to_string();
    let mut all = vec![member.to_owned(), lease.as_millis().to_string(), amount];
    for one in terms {
        all.push(one.position.to_string());
        all.push(one.limit.0.to_string());
        all.push(one.since.to_string());
        all.push(milliseconds_left(one));
    }
    all
}

type AccountName = (Arc<str>, Arc<str>);
/// The calls that report to the server, by budget and subject.
pub(super) type AccountCalls = HashMap<AccountName, AccountCall>;

/// A report to the server of one account.
#[derive(Debug)]
pub(super) struct AccountCall {
    pub(super) terms: SharedTerms,
    /// The sums that were spent, by part and ledger.
    sums: Vec<(String, Money)>,
    pub(super) renewed: Vec<String>,
    pub(super) released: Vec<String>,
}

impl AccountCall {
    fn empty(terms: SharedTerms) -> Self {
        Self { terms, sums: Vec::new(), renewed: Vec::new(), released: Vec::new() }
    }

    /// Returns the call that reports all that is known. `ledger`: the one of this process.
    pub(super) fn all(account: AccountSpending, ledger: &str) -> Self {
        let AccountSpending { terms, own, foreign } = account;
        let own = own.into_iter().map(|(part, amount)| (format!("{part}/{ledger}"), amount));
        let foreign =
            foreign.into_iter().map(|row| (format!("{}/{}", row.part, row.ledger), row.amount));
        Self { sums: own.chain(foreign).collect(), ..Self::empty(terms) }
    }

    pub(super) fn key(terms: &SharedTerms) -> AccountName {
        (Arc::clone(&terms.budget), Arc::clone(&terms.subject))
    }

    /// Returns the call for an account among `calls`.
    pub(super) fn of<'a>(calls: &'a mut AccountCalls, terms: &SharedTerms) -> &'a mut Self {
        calls.entry(Self::key(terms)).or_insert_with(|| Self::empty(terms.clone()))
    }

    /// Adds what was spent by parts of time.
    pub(super) fn add_sums(&mut self, own: Vec<(u64, Money)>, ledger: &str) {
        self.sums.extend(own.into_iter().map(|(part, sum)| (format!("{part}/{ledger}"), sum)));
    }

    /// Returns the arguments of the scripts that tell the server: several for many leases.
    pub(super) fn arguments(&self, lease: Duration) -> Vec<Vec<String>> {
        let count = self.renewed.len().max(self.released.len()).div_ceil(MAX_LEASES).max(1);
        let part = |list: &[String], number: usize| -> Vec<String> {
            list.iter().skip(number * MAX_LEASES).take(MAX_LEASES).cloned().collect()
        };
        let call = |number: usize| {
            // Once: the further calls are for the leases that did not fit.
            let sums: &[(String, Money)] = if number == 0 { &self.sums } else { &[] };
            let (renewed, released) = (part(&self.renewed, number), part(&self.released, number));
            let mut all = vec![
                self.terms.since.to_string(),
                milliseconds_left(&self.terms),
                lease.as_millis().to_string(),
                sums.len().to_string(),
                renewed.len().to_string(),
            ];
            for (name, amount) in sums {
                all.extend([name.clone(), amount.0.to_string()]);
            }
            all.extend(renewed);
            all.extend(released);
            all
        };
        (0..count).map(call).collect()
    }
}

/// The accounts as the server has them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerAccounts {
    /// The place of the account that refuses.
    pub(super) refused: Option<usize>,
    pub(super) known: Vec<SharedBalance>,
}

impl ServerAccounts {
    /// Reads a response about `count` accounts; `None` for anything else.
    pub(super) fn read(words: &[String], count: usize) -> Option<Self> {
        let (refused, mut rest) = words.split_first()?;
        let refused = refused.parse::<usize>().ok()?.checked_sub(1);
        let mut known = Vec::new();
        for _ in 0..count {
            let ([reserved, rows], after) = rest.split_first_chunk::<2>()?;
            let rows = rows.parse::<usize>().ok().filter(|rows| *rows <= MAX_ROWS)?;
            let (own, after) = after.split_at_checked(rows * 3)?;
            let rows: Option<Vec<LedgerSpending>> = own.chunks_exact(3).map(read_row).collect();
            known.push(SharedBalance { reserved: Money(reserved.parse().ok()?), rows: rows? });
            rest = after;
        }
        Some(Self { refused, known })
    }
}

fn read_row(words: &[String]) -> Option<LedgerSpending> {
    let [part, ledger, amount] = words else { return None };
    let ledger: Arc<str> = Some(&**ledger).filter(|name| name.len() <= MAX_LEDGER)?.into();
    Some(LedgerSpending { part: part.parse().ok()?, ledger, amount: Money(amount.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_accounts_are_apart() {
        assert_ne!(names_of("p", "a:b", "c"), names_of("p", "a", "b:c"));
    }

    #[test]
    fn responses_that_are_not_whole_are_refused() {
        let read = |text: &str, count| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            ServerAccounts::read(&words, count)
        };
        let both = read("2 5 1 100 l 7 0 0", 2).unwrap();
        assert_eq!((both.refused, both.known.len()), (Some(1), 2));
        assert_eq!(both.known[0].rows[0].amount, Money(7));
        assert_eq!(read("0 5 0", 1).unwrap().refused, None);
        for wrong in
            ["", "x", "0", "0 5", "0 5 1 100 l", "0 5 1 100 l -7", "0 -5 0", "0 5 99999999"]
        {
            assert_eq!(read(wrong, 1), None, "{wrong}");
        }
    }
}
