//! The counters that requests write: one cell per combination of backend, model and client key,
//! found without a lock and written with relaxed additions. Cells only grow; their reader keeps the
//! values of its last read. A cell counts even and odd minutes separately, so a reader that runs at
//! least once a minute knows the minute of every count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counts::LedgerCounts;
use crate::observe::names::{BoundedNames, NameId};
use crate::observe::series::SeriesMap;

/// The backend, model and client key of a count.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountLabels<'a> {
    pub(super) backend: &'a str,
    /// The model as the fleet knows it; `None` for requests without one.
    pub(super) model: Option<&'a str>,
    /// The name of the client's key.
    pub(super) key: Option<&'a str>,
}

/// The numbers of the labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CellKey {
    pub(super) backend: NameId,
    pub(super) model: NameId,
    pub(super) key: NameId,
}

/// The counts of even and of odd minutes.
pub(super) type TwoMinutes = [LedgerCounts; 2];

#[derive(Debug, Default)]
struct CellCounters {
    requests: AtomicU64,
    estimated_requests: AtomicU64,
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    priced_requests: AtomicU64,
    cost: AtomicU64,
}

impl CellCounters {
    fn add(&self, counts: &LedgerCounts) {
        self.requests.fetch_add(counts.requests, Ordering::Relaxed);
        if counts.estimated_requests > 0 {
            self.estimated_requests.fetch_add(counts.estimated_requests, Ordering::Relaxed);
        }
        self.input_tokens.fetch_add(counts.input_tokens, Ordering::Relaxed);
        self.output_tokens.fetch_add(counts.output_tokens, Ordering::Relaxed);
        if counts.priced_requests > 0 {
            self.priced_requests.fetch_add(counts.priced_requests, Ordering::Relaxed);
            // A reader may see one without the other: the next read completes it, as sums only
            // grow.
            self.cost.fetch_add(counts.cost, Ordering::Relaxed);
        }
    }

    fn read(&self) -> LedgerCounts {
        LedgerCounts {
            requests: self.requests.load(Ordering::Relaxed),
            estimated_requests: self.estimated_requests.load(Ordering::Relaxed),
            input_tokens: self.input_tokens.load(Ordering::Relaxed),
            output_tokens: self.output_tokens.load(Ordering::Relaxed),
            priced_requests: self.priced_requests.load(Ordering::Relaxed),
            cost: self.cost.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Default)]
struct LedgerCell {
    even: CellCounters,
    odd: CellCounters,
}

#[derive(Debug)]
pub(super) struct Cells {
    backends: BoundedNames,
    models: BoundedNames,
    keys: BoundedNames,
    cells: SeriesMap<CellKey, LedgerCell>,
    /// The maximum number of combinations with a separate cell.
    limit: usize,
    /// The number of requests counted as others because of the limit.
    overflowed: AtomicU64,
}

impl Cells {
    /// Creates cells for `limit` combinations; further ones share a model and a key named `other`.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            backends: BoundedNames::new(limit, "none"),
            models: BoundedNames::new(limit, "unknown"),
            // The empty name stands for requests without a key.
            keys: BoundedNames::new(limit, ""),
            cells: SeriesMap::default(),
            limit,
            overflowed: AtomicU64::new(0),
        }
    }

    /// Counts a request that ended in `minute`, in minutes since 1970.
    pub(super) fn add(&self, labels: CountLabels<'_>, counts: &LedgerCounts, minute: u64) {
        let id = |names: &BoundedNames, name: Option<&str>| {
            name.map_or(BoundedNames::PLACEHOLDER, |name| names.id(name))
        };
        let mut key = CellKey {
            backend: self.backends.id(labels.backend),
            model: id(&self.models, labels.model),
            key: id(&self.keys, labels.key),
        };
        // Threads that check at the same time may exceed the limit by a few cells.
        if self.cells.len() >= self.limit && !self.cells.contains(key) {
            self.overflowed.fetch_add(counts.requests, Ordering::Relaxed);
            key = CellKey { model: BoundedNames::OTHER, key: BoundedNames::OTHER, ..key };
        }
        self.cells.with(key, Arc::default, |cell| {
            let counters = if minute.is_multiple_of(2) { &cell.even } else { &cell.odd };
            counters.add(counts);
        });
    }

    /// Calls `visit` with the counts of every cell.
    pub(super) fn read(&self, mut visit: impl FnMut(CellKey, TwoMinutes)) {
        self.cells.for_each(|key, cell| visit(key, [cell.even.read(), cell.odd.read()]));
    }

    /// Returns the names of a cell's key: backend, model and client key.
    pub(super) fn names(&self, key: CellKey) -> [Arc<str>; 3] {
        [self.backends.name(key.backend), self.models.name(key.model), self.keys.name(key.key)]
    }

    /// Returns the number of requests counted as others because there were too many combinations.
    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(input: u64) -> LedgerCounts {
        LedgerCounts { requests: 1, input_tokens: input, ..LedgerCounts::default() }
    }

    fn labels<'a>(backend: &'a str, model: &'a str) -> CountLabels<'a> {
        CountLabels { backend, model: Some(model), key: None }
    }

    fn all(cells: &Cells) -> Vec<(String, u64, u64)> {
        let mut all = Vec::new();
        cells.read(|key, [even, odd]| {
            let names = cells.names(key).map(|name| name.to_string());
            all.push((names.join("|"), even.input_tokens, odd.input_tokens));
        });
        all.sort();
        all
    }

    #[test]
    fn minutes_are_counted_apart() {
        let cells = Cells::new(10);
        cells.add(labels("a", "m"), &counts(1), 60);
        cells.add(labels("a", "m"), &counts(2), 60);
        cells.add(labels("a", "m"), &counts(4), 61);
        cells.add(CountLabels { backend: "a", model: None, key: Some("k") }, &counts(8), 60);
        assert_eq!(all(&cells), [("a|m|".to_owned(), 3, 4), ("a|unknown|k".to_owned(), 8, 0)]);
    }

    #[test]
    fn combinations_over_the_limit_are_counted_as_other() {
        let cells = Cells::new(2);
        for model in ["m", "n", "o", "p", "m"] {
            cells.add(labels("a", model), &counts(1), 0);
        }
        let expected = [("a|m|", 2, 0), ("a|n|", 1, 0), ("a|other|other", 2, 0)]
            .map(|(name, even, odd)| (name.to_owned(), even, odd));
        assert_eq!(all(&cells), expected);
        assert_eq!(cells.overflowed(), 2);
    }
}
