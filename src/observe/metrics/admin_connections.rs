//! Connections to the admin port: their counters and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::row::{MetricRow, counter, gauge};
use super::samples::{counter_value, from_size, one};

/// Counters of connections to the admin port.
#[derive(Debug, Default)]
pub struct AdminConnections {
    /// Open connections, including those that are being refused.
    pub open: Arc<AtomicUsize>,
    refused: AtomicU64,
    slow_heads: AtomicU64,
}

impl AdminConnections {
    /// Counts a connection over `admin.connections`.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request whose head took longer than `admin.header_timeout`.
    pub fn count_slow_head(&self) {
        self.slow_heads.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_admin_connections",
        &[],
        |metrics, _| one(from_size(metrics.admin_connections.open.load(Ordering::Relaxed))),
        "open connections to the admin port, including the one of this scrape",
    ),
    gauge(
        "penstock_max_admin_connections",
        &[],
        |_, scrape| one(from_size(scrape.generation.config.admin.connections)),
        "limit of penstock_admin_connections: `admin.connections`",
    ),
    counter(
        "penstock_admin_connections_refused_total",
        &[],
        |metrics, _| counter_value(&metrics.admin_connections.refused),
        "connections to the admin port refused because of `admin.connections`, or closed while they waited for a request",
    ),
    counter(
        "penstock_admin_slow_heads_total",
        &[],
        |metrics, _| counter_value(&metrics.admin_connections.slow_heads),
        "requests to the admin port whose head exceeded `admin.header_timeout`",
    ),
];
