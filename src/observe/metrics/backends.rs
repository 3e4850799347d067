//! Counters per backend that change while requests run. They are found by the backend's number,
//! without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use penstock_api::{ERROR_CODES, ErrorCode, KindCounters};
use penstock_core::fleet::{Backend, BackendId, Topology};
use penstock_scan::CutCounts;
use prometheus::Histogram;

use super::distribution::Distribution;
use super::outcome::{OUTCOMES, OutcomeId};
use crate::observe::names::{BoundedNames, NameId, OTHER};

/// The number of columns: one per error code, and one for attempts without an error.
const CODES: usize = ERROR_CODES.len() + 1;

/// The token counts of an engine that may be cut, by the name in their label.
const CUT_COUNTS: [&str; 3] = ["prompt", "completion", "cached"];

/// The counters of one backend.
#[derive(Debug)]
pub(super) struct BackendSeries {
    pub(super) label: NameId,
    pub(super) name: Box<str>,
    /// The value of `gen_ai_provider_name`.
    pub(super) provider: &'static str,
    pub(super) first_token: Histogram,
    pub(super) stream_tokens: AtomicU64,
    /// Requests that were moved to another backend.
    pub(super) moves: AtomicU64,
    /// Token counts that exceeded the bounds of their request, in the order of [`CUT_COUNTS`].
    cut_counts: [AtomicU64; CUT_COUNTS.len()],
    attempts: [KindCounters<CODES>; OUTCOMES.len()],
}

impl BackendSeries {
    fn new(backend: &Backend, label: NameId, first_token: Histogram) -> Self {
        Self {
            label,
            name: match label {
                BoundedNames::OTHER => OTHER.into(),
                _ => backend.state.name.clone(),
            },
            provider: backend.config.engine.provider(),
            first_token,
            stream_tokens: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            cut_counts: std::array::from_fn(|_| AtomicU64::new(0)),
            attempts: Default::default(),
        }
    }

    /// Counts the end of an attempt.
    pub(super) fn count_attempt(&self, outcome: OutcomeId, code: Option<ErrorCode>) {
        let row = self.attempts.get(outcome.index());
        debug_assert!(row.is_some(), "the table has a row per outcome");
        if let Some(row) = row {
            row.count(code.map_or(0, |code| code as usize + 1));
        }
    }

    /// Counts the token counts of an attempt that were cut.
    pub(super) fn count_cuts(&self, cut: CutCounts) {
        let CutCounts { prompt, completion, cached } = cut;
        for (counter, is_cut) in self.cut_counts.iter().zip([prompt, completion, cached]) {
            if is_cut {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the numbers of token counts cut so far, by kind.
    pub(super) fn cut_counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.cut_counts.iter().map(|counter| counter.load(Ordering::Relaxed));
        CUT_COUNTS.into_iter().zip(counts)
    }

    /// Returns the attempts counted so far, by outcome and code.
    pub(super) fn attempts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let codes = || std::iter::once("none").chain(ERROR_CODES.iter().map(|row| row.name));
        let rows = self.attempts.iter().zip(OUTCOMES);
        rows.flat_map(move |(row, outcome)| {
            let counts = row.read().into_iter().zip(codes());
            counts.map(move |(count, code)| (outcome, code, count))
        })
        .filter(|(.., count)| *count > 0)
    }
}

#[derive(Debug, Default, Clone)]
struct SeriesTable {
    by_id: Vec<Option<Arc<BackendSeries>>>,
    /// Every series once, even if several ids refer to its backend.
    all: Vec<Arc<BackendSeries>>,
}

/// The counters of every backend since the start.
#[derive(Debug, Default)]
pub(super) struct Backends {
    table: ArcSwap<SeriesTable>,
    writer: Mutex<()>,
}

impl Backends {
    /// Adds series for the backends of a topology. A backend that returns under its old name
    /// continues its old counters.
    pub(super) fn learn(&self, topology: &Topology, names: &BoundedNames, kind: &Distribution) {
        let _one_writer = self.writer.lock();
        let mut table = SeriesTable::clone(&self.table.load());
        for backend in &topology.backends {
            let label = names.id(&backend.state.name);
            // Names over the limit share one series: backends of a group are added and removed.
            let is_same = |series: &&Arc<BackendSeries>| series.label == label;
            let found = table.all.iter().find(is_same);
            let series = found.cloned().unwrap_or_else(|| {
                let series = Arc::new(BackendSeries::new(backend, label, kind.make()));
                table.all.push(Arc::clone(&series));
                series
            });
            let index = usize::from(backend.state.id.0);
            if table.by_id.len() <= index {
                table.by_id.resize(index + 1, None);
            }
            if let Some(slot) = table.by_id.get_mut(index) {
                *slot = Some(series);
            }
        }
        // As a whole: requests read the table without a lock.
        self.table.store(Arc::new(table));
    }

    /// Calls `work` with the counters of a backend.
    pub(super) fn with<R>(
        &self,
        id: BackendId,
        work: impl FnOnce(&BackendSeries) -> R,
    ) -> Option<R> {
        self.table.load().by_id.get(usize::from(id.0))?.as_deref().map(work)
    }

    /// Returns every backend since the start.
    pub(super) fn all(&self) -> Vec<Arc<BackendSeries>> {
        self.table.load().all.clone()
    }
}
