//! The counts between two writes: rows by minute and rows by day. Bounded: when the database cannot
//! be written for long, the rows of the oldest time are merged into the next, so that the sums stay
//! correct and only the times get coarser.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_core::admission::budgets::{Money, Spending};

use super::counts::LedgerCounts;

/// The URL of a backend, and a model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    pub endpoint: Arc<str>,
    pub model: Arc<str>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenSums {
    /// Tokens of the prompts.
    pub input: u64,
    /// Tokens of the responses.
    pub output: u64,
}

impl TokenSums {
    /// Returns the sum of input and output.
    pub fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
    }
}

/// Tokens per backend and model.
pub type TokenTotals = BTreeMap<Pair, TokenSums>;

/// The key of a row by day.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LedgerAccount {
    pub(super) backend: Arc<str>,
    pub(super) model: Arc<str>,
    /// The name of the client's key; empty if there was none.
    pub(super) key: Arc<str>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DayRow {
    pub(super) counts: LedgerCounts,
    /// The cost of the tokens; `None` for a model without a price.
    pub(super) cost: Option<f64>,
}

impl DayRow {
    pub(super) fn new(counts: LedgerCounts) -> Self {
        let cost = (counts.priced_requests > 0).then(|| Money(counts.cost).amount());
        Self { counts, cost }
    }

    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.cost = match (self.cost, other.cost) {
            (Some(mine), Some(more)) => Some(mine + more),
            // A model may get its price during the day: what was priced is kept.
            (mine, more) => mine.or(more),
        };
    }
}

/// Rows that wait to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Batch {
    /// Rows by the minute since 1970.
    pub(super) minutes: BTreeMap<(u64, Pair), TokenSums>,
    /// Rows by the day since 1970.
    pub(super) days: BTreeMap<(u64, LedgerAccount), DayRow>,
    /// The money spent of budgets, in billionths, by the start of the part of time.
    pub(super) spent: BTreeMap<(u64, BudgetAccount), u64>,
}

/// A budget, and the team or key whose amount it is.
pub(super) type BudgetAccount = (Arc<str>, Arc<str>);

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.minutes.is_empty() && self.days.is_empty() && self.spent.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.minutes.len() + self.days.len() + self.spent.len()
    }

    pub(super) fn add_minute(&mut self, minute: u64, pair: Pair, tokens: TokenSums) {
        // Requests without tokens would fill the table with rows of zeros.
        if tokens != TokenSums::default() {
            self.minutes.entry((minute, pair)).or_default().add(tokens);
        }
    }

    pub(super) fn add_day(&mut self, day: u64, account: LedgerAccount, row: &DayRow) {
        // Rows without tokens, too: a day counts requests.
        self.days.entry((day, account)).or_default().add(row);
    }

    pub(super) fn add_spent(&mut self, part: u64, account: BudgetAccount, amount: u64) {
        let sum = self.spent.entry((part, account)).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// The money spent in the part of time of `stored`.
    pub(super) fn spent_of(&self, stored: &Spending) -> Money {
        let account = (Arc::clone(&stored.budget), Arc::clone(&stored.subject));
        Money(self.spent.get(&(stored.part, account)).copied().unwrap_or(0))
    }

    /// Adds the rows of another batch.
    pub(super) fn merge(&mut self, other: &Self) {
        for ((minute, pair), tokens) in &other.minutes {
            self.add_minute(*minute, pair.clone(), *tokens);
        }
        for ((day, account), row) in &other.days {
            self.add_day(*day, account.clone(), row);
        }
        for ((part, account), amount) in &other.spent {
            self.add_spent(*part, account.clone(), *amount);
        }
    }

    /// Merges the rows of the oldest times into the next time until each kind has at most `limit`
    /// rows or no next time. Returns the number of merged rows.
    pub(super) fn shrink(&mut self, limit: usize) -> u64 {
        let minutes = shrink(&mut self.minutes, limit, |mine, more| mine.add(*more));
        let spent = shrink(&mut self.spent, limit, |mine, more| *mine = mine.saturating_add(*more));
        minutes + shrink(&mut self.days, limit, DayRow::add) + spent
    }

    /// Adds the sums per backend and model to `totals`.
    pub(super) fn add_to(&self, totals: &mut TokenTotals) {
        for ((_, pair), tokens) in &self.minutes {
            totals.entry(pair.clone()).or_default().add(*tokens);
        }
    }
}

fn shrink<K: Ord + Clone, V: Default>(
    rows: &mut BTreeMap<(u64, K), V>,
    limit: usize,
    add: impl Fn(&mut V, &V),
) -> u64 {
    let mut moved = 0;
    while rows.len() > limit {
        let mut times = rows.keys().map(|(time, _)| *time);
        let Some(oldest) = times.next() else { break };
        // Of a single time there is nothing coarser: the rows stay, and the sums stay right.
        let Some(next) = times.find(|time| *time > oldest) else { break };
        let is_oldest = |((time, _), _): (&(u64, K), &V)| *time == oldest;
        while rows.len() > limit && rows.first_key_value().is_some_and(is_oldest) {
            let Some(((_, key), row)) = rows.pop_first() else { break };
            add(rows.entry((next, key)).or_default(), &row);
            moved += 1;
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(model: &str) -> Pair {
        Pair { endpoint: "http://a:1".into(), model: model.into() }
    }

    fn tokens(input: u64) -> TokenSums {
        TokenSums { input, output: 1 }
    }

    #[test]
    fn oldest_rows_move_to_the_next_time_and_keep_the_sums() {
        let mut batch = Batch::default();
        for minute in 1..=5 {
            batch.add_minute(minute, pair("m"), tokens(minute));
        }
        batch.add_minute(2, pair("n"), tokens(100));
        let mut before = TokenTotals::new();
        batch.add_to(&mut before);
        assert_eq!(batch.shrink(3), 4);
        let mut after = TokenTotals::new();
        batch.add_to(&mut after);
        assert_eq!(before, after);
        let left: Vec<(u64, u64)> =
            batch.minutes.iter().map(|((minute, _), tokens)| (*minute, tokens.input)).collect();
        assert_eq!(left, [(3, 100), (4, 10), (5, 5)], "1, 2 and 3 of m are part of 4");
    }

    #[test]
    fn rows_of_one_time_are_kept() {
        let mut batch = Batch::default();
        batch.add_minute(1, pair("m"), tokens(1));
        batch.add_minute(1, pair("n"), tokens(1));
        assert_eq!((batch.shrink(1), batch.minutes.len()), (0, 2));
    }

    #[test]
    fn cost_stays_unknown_without_a_price() {
        let counts =
            LedgerCounts { requests: 1, input_tokens: 2_000_000, ..LedgerCounts::default() };
        let paid = LedgerCounts { priced_requests: 1, cost: 3_000_000_000, ..counts };
        let (priced, free) = (DayRow::new(paid), DayRow::new(counts));
        let mut sum = free;
        sum.add(&free);
        assert_eq!(sum.cost, None);
        sum.add(&priced);
        sum.add(&priced);
        assert_eq!(sum.cost, Some(6.0));
        assert_eq!(sum.counts.requests, 4);
    }
}
