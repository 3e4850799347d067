//! Reloads of the configuration: their counters and metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use penstock_clock::unix_seconds;

use super::row::{MetricRow, counter, gauge};
use super::samples::{number, one, to_sample};

/// Counters of configuration reloads; the load at the start counts as a successful one.
#[derive(Debug)]
pub struct Reloads {
    applied: AtomicU64,
    refused: AtomicU64,
    last_succeeded: AtomicBool,
    /// The time at which a configuration was last applied, in seconds since 1970.
    applied_at: AtomicU64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            applied: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last_succeeded: AtomicBool::new(true),
            applied_at: AtomicU64::new(unix_seconds()),
        }
    }
}

impl Reloads {
    pub fn count(&self, succeeded: bool) {
        let total = if succeeded { &self.applied } else { &self.refused };
        total.fetch_add(1, Ordering::Relaxed);
        self.last_succeeded.store(succeeded, Ordering::Relaxed);
        if succeeded {
            self.applied_at.store(unix_seconds(), Ordering::Relaxed);
        }
    }
}

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_config_reloads_total",
        &["result"],
        |metrics, _| {
            let Reloads { applied, refused, .. } = &metrics.reloads;
            vec![
                number(&["applied"], to_sample(applied.load(Ordering::Relaxed))),
                number(&["refused"], to_sample(refused.load(Ordering::Relaxed))),
            ]
        },
        "configuration reloads; `result` is applied, or refused (the previous configuration stays in force)",
    ),
    gauge(
        "penstock_config_last_reload_successful",
        &[],
        |metrics, _| {
            one(f64::from(u8::from(metrics.reloads.last_succeeded.load(Ordering::Relaxed))))
        },
        "1 unless the last reload was refused",
    ),
    gauge(
        "penstock_config_last_reload_success_timestamp_seconds",
        &[],
        |metrics, _| one(to_sample(metrics.reloads.applied_at.load(Ordering::Relaxed))),
        "time at which the configuration in force was loaded, in seconds since 1970",
    ),
];
