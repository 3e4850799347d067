//! All counts that are not in a cell: the rows that wait to be written, those being written, and
//! the totals of the database when they were last read. Readers get their sum. A lock guards the
//! books; no request takes it.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_core::admission::budgets::Spending;
use penstock_core::fleet::Backend;
use penstock_core::routing::Generation;

use super::batch::{Batch, DayRow, LedgerAccount, Pair, TokenSums, TokenTotals};
use super::cells::{CellKey, Cells, TwoMinutes};
use super::counts::LedgerCounts;

const MINUTES_PER_DAY: u64 = 24 * 60;

/// The configuration of backends and models.
#[derive(Debug, Default)]
struct Directory {
    /// The URLs by the name of the backend.
    endpoints: HashMap<Box<str>, Arc<str>>,
    max_rows: usize,
}

impl Directory {
    fn of(generation: &Generation) -> Self {
        let config = &generation.config;
        // From the fleet: a name with several addresses is several backends there.
        let fleet = generation.fleet.topology();
        let endpoint = |backend: &Backend| {
            (backend.state.name.clone(), Arc::from(backend.config.url.to_string()))
        };
        Self {
            endpoints: fleet.backends.iter().map(endpoint).collect(),
            max_rows: config.ledger.max_rows,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Books {
    /// The last value read from each cell.
    seen: HashMap<CellKey, TwoMinutes>,
    pending: Batch,
    writing: Option<Arc<Batch>>,
    stored: TokenTotals,
    directory: Directory,
    /// The number of rows merged into a later time.
    shrunk: u64,
}

impl Books {
    pub(super) fn new(generation: &Generation) -> Self {
        Self { directory: Directory::of(generation), ..Self::default() }
    }

    /// Applies new backends. Earlier counts use the old ones.
    pub(super) fn adopt(&mut self, generation: &Generation, cells: &Cells, minute: u64) {
        self.collect(cells, minute);
        let mut directory = Directory::of(generation);
        // Requests of the previous generation may still end on backends that are gone.
        for (name, endpoint) in std::mem::take(&mut self.directory.endpoints) {
            directory.endpoints.entry(name).or_insert(endpoint);
        }
        self.directory = directory;
    }

    /// Adds the counts since the last call to the pending ones. `minute` is the current one.
    pub(super) fn collect(&mut self, cells: &Cells, minute: u64) {
        let Self { seen, pending, directory, .. } = self;
        cells.read(|key, now| {
            let before = seen.insert(key, now).unwrap_or_default();
            let [even, odd] =
                [0, 1].map(|parity: usize| match (now.get(parity), before.get(parity)) {
                    (Some(now), Some(before)) => now.since(before),
                    (None, _) | (_, None) => LedgerCounts::default(),
                });
            // No two reads are a minute apart, so the other parity is the minute before.
            let is_even = minute.is_multiple_of(2);
            let (current, previous) = if is_even { (even, odd) } else { (odd, even) };
            for (at, counts) in [(minute, current), (minute.saturating_sub(1), previous)] {
                if counts.is_zero() {
                    continue;
                }
                let [backend, model, client] = cells.names(key);
                let endpoint = directory.endpoints.get(&*backend).unwrap_or(&backend);
                // By the address: clients of the NOMYO Router know backends by their URLs.
                let pair = Pair { endpoint: Arc::clone(endpoint), model: Arc::clone(&model) };
                let LedgerCounts { input_tokens, output_tokens, .. } = counts;
                pending.add_minute(
                    at,
                    pair,
                    TokenSums { input: input_tokens, output: output_tokens },
                );
                let row = DayRow::new(counts);
                let account = LedgerAccount { backend, model, key: client };
                pending.add_day(at / MINUTES_PER_DAY, account, &row);
            }
        });
        self.shrunk += self.pending.shrink(self.directory.max_rows);
    }

    /// Adds what was spent of budgets to the pending rows.
    pub(super) fn add_spent(&mut self, spent: Vec<Spending>) {
        for Spending { budget, subject, part, amount } in spent {
            self.pending.add_spent(part, (budget, subject), amount.0);
        }
    }

    /// Moves the pending rows into a batch for writing.
    pub(super) fn begin_write(&mut self) -> Arc<Batch> {
        let batch = Arc::new(std::mem::take(&mut self.pending));
        // Readers count it meanwhile, and a write that fails takes it back.
        self.writing = Some(Arc::clone(&batch));
        batch
    }

    /// Records that the batch is written; `stored` are the totals of the database.
    pub(super) fn end_write(&mut self, stored: TokenTotals) {
        self.writing = None;
        self.stored = stored;
    }

    /// Returns the batch to the pending rows after a failed write.
    pub(super) fn abort_write(&mut self) {
        if let Some(batch) = self.writing.take() {
            // Nothing was written: the transaction failed as a whole.
            self.pending.merge(&batch);
            self.shrunk += self.pending.shrink(self.directory.max_rows);
        }
    }

    /// Returns the tokens per backend and model, written or not.
    pub(super) fn totals(&self) -> TokenTotals {
        let mut totals = self.stored.clone();
        self.pending.add_to(&mut totals);
        if let Some(batch) = &self.writing {
            batch.add_to(&mut totals);
        }
        totals
    }

    /// Returns the rows that wait to be written.
    pub(super) fn pending(&self) -> &Batch {
        &self.pending
    }

    /// Returns the number of rows that are not written yet.
    pub(super) fn unwritten(&self) -> usize {
        self.pending.len() + self.writing.as_ref().map_or(0, |batch| batch.len())
    }

    /// Returns the number of rows merged into a later time because too many were pending.
    pub(super) fn shrunk(&self) -> u64 {
        self.shrunk
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::cells::CountLabels;
    use super::*;
    use penstock_config::{Config, Environment};

    fn config(yaml: &str) -> Generation {
        let environment = Environment::default();
        Generation::new(Config::parse(yaml, "test.yaml", Path::new(""), &environment).unwrap())
    }

    fn count(cells: &Cells, minute: u64, input: u64) {
        let labels = CountLabels { backend: "a", model: Some("m"), key: Some("k") };
        let counts = LedgerCounts { requests: 1, input_tokens: input, ..LedgerCounts::default() };
        cells.add(labels, &counts, minute);
    }

    fn minutes(books: &Books) -> Vec<(u64, String, u64)> {
        let rows = books.pending.minutes.iter();
        rows.map(|((minute, pair), tokens)| (*minute, pair.endpoint.to_string(), tokens.input))
            .collect()
    }

    #[test]
    fn counts_belong_to_the_minute_they_were_made_in() {
        let books = &mut Books::new(&config("backends: [{ name: a, url: http://h:1 }]"));
        let cells = Cells::new(10);
        count(&cells, 100, 1);
        books.collect(&cells, 100);
        count(&cells, 100, 2);
        count(&cells, 101, 4);
        books.collect(&cells, 101);
        books.collect(&cells, 102);
        let url = || "http://h:1".to_owned();
        assert_eq!(minutes(books), [(100, url(), 3), (101, url(), 4)]);
    }

    #[test]
    fn failed_write_keeps_everything_pending() {
        let books = &mut Books::new(&config("backends: [{ name: a, url: http://h:1 }]"));
        let cells = Cells::new(10);
        count(&cells, 100, 1);
        books.collect(&cells, 100);
        let batch = books.begin_write();
        assert_eq!(books.totals().values().map(|tokens| tokens.input).sum::<u64>(), 1, "shown");
        count(&cells, 100, 2);
        books.collect(&cells, 100);
        books.abort_write();
        assert_eq!(books.pending.minutes.values().map(|tokens| tokens.input).sum::<u64>(), 3);
        let mut stored = TokenTotals::new();
        let merged = books.begin_write();
        assert_ne!(batch, merged);
        merged.add_to(&mut stored);
        books.end_write(stored);
        assert!(books.pending().is_empty());
        assert_eq!(books.totals().values().map(|tokens| tokens.input).sum::<u64>(), 3);
    }

    #[test]
    fn url_of_the_time_applies() {
        let yaml = |url: &str| config(&format!("backends: [{{ name: a, url: {url} }}]"));
        let books = &mut Books::new(&yaml("http://h:1"));
        let cells = Cells::new(10);
        count(&cells, 100, 1_000_000);
        books.adopt(&yaml("http://h:2"), &cells, 100);
        count(&cells, 100, 1_000_000);
        books.adopt(&config("backends: [http://h:3]"), &cells, 100);
        count(&cells, 100, 1_000_000);
        books.collect(&cells, 100);
        let rows =
            [(100, "http://h:1".to_owned(), 1_000_000), (100, "http://h:2".to_owned(), 2_000_000)];
        assert_eq!(minutes(books), rows, "a backend that is gone keeps its last URL");
    }
}
