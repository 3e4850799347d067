//! The figures that the ledger reports about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use penstock_api::KindCounters;

use super::database::FailureKind;

/// Counters of the thread.
#[derive(Debug, Default)]
pub(super) struct WriterFigures {
    written: AtomicU64,
    failed: KindCounters<{ FailureKind::ALL.len() }>,
    quarantined: AtomicU64,
}

/// The figures that the metrics show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerReport {
    pub written: u64,
    /// Failed writes by reason.
    pub failed: Vec<(&'static str, u64)>,
    /// Damaged files that were moved aside.
    pub quarantined: u64,
    /// Rows that wait to be written.
    pub pending: usize,
    /// Rows merged into a later time, because too many were waiting.
    pub shrunk: u64,
    /// Requests counted as `other`, because there were too many combinations.
    pub overflowed: u64,
}

impl WriterFigures {
    pub(super) fn count_flush(&self, failure: Option<FailureKind>) {
        match failure {
            None => {
                self.written.fetch_add(1, Ordering::Relaxed);
            }
            Some(kind) => self.failed.count(kind as usize),
        }
    }

    pub(super) fn count_quarantine(&self) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self, pending: usize, shrunk: u64, overflowed: u64) -> LedgerReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failed = FailureKind::ALL.into_iter().zip(self.failed.read());
        LedgerReport {
            written: read(&self.written),
            failed: failed.map(|(kind, count)| (kind.name(), count)).collect(),
            quarantined: read(&self.quarantined),
            pending,
            shrunk,
            overflowed,
        }
    }
}
