//! How often the configuration was loaded again, and how that went.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::samples::{Samples, number, one, to_sample};
use super::{Metrics, Scrape};
use crate::clock::unix_seconds;

/// Reloads of the configuration; the load at the start counts as a good one.
#[derive(Debug)]
pub struct Reloads {
    applied: AtomicU64,
    refused: AtomicU64,
    last_was_good: AtomicBool,
    /// When a configuration was last put into force, in seconds since 1970.
    applied_at: AtomicU64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            applied: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last_was_good: AtomicBool::new(true),
            applied_at: AtomicU64::new(unix_seconds()),
        }
    }
}

impl Reloads {
    /// Counts one.
    pub fn count(&self, is_good: bool) {
        let total = if is_good { &self.applied } else { &self.refused };
        total.fetch_add(1, Ordering::Relaxed);
        self.last_was_good.store(is_good, Ordering::Relaxed);
        if is_good {
            self.applied_at.store(unix_seconds(), Ordering::Relaxed);
        }
    }
}

pub(super) fn totals(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let Reloads { applied, refused, .. } = &metrics.reloads;
    let sample =
        |result, count: &AtomicU64| number(&[result], to_sample(count.load(Ordering::Relaxed)));
    vec![sample("applied", applied), sample("refused", refused)]
}

pub(super) fn last_successful(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let is_good = metrics.reloads.last_was_good.load(Ordering::Relaxed);
    one(if is_good { 1.0 } else { 0.0 })
}

pub(super) fn last_timestamp(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    one(to_sample(metrics.reloads.applied_at.load(Ordering::Relaxed)))
}
