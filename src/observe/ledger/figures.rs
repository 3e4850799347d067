//! The figures that the ledger reports about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use super::database::FailureKind;

/// Counters of the thread.
#[derive(Debug, Default)]
pub(super) struct Figures {
    written: AtomicU64,
    failed: [AtomicU64; FailureKind::ALL.len()],
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

impl Figures {
    pub(super) fn count_flush(&self, failure: Option<FailureKind>) {
        let counter = match failure {
            None => Some(&self.written),
            Some(kind) => FailureKind::ALL
                .iter()
                .position(|one| *one == kind)
                .and_then(|at| self.failed.get(at)),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count_quarantine(&self) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self, pending: usize, shrunk: u64, overflowed: u64) -> LedgerReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failed = FailureKind::ALL.iter().zip(&self.failed);
        LedgerReport {
            written: read(&self.written),
            failed: failed.map(|(kind, counter)| (kind.name(), read(counter))).collect(),
            quarantined: read(&self.quarantined),
            pending,
            shrunk,
            overflowed,
        }
    }
}
