//! The tables of metrics: one row holds a metric's name, kind, labels, help text and the function
//! that reads its samples. The page and docs/reference/metrics.md are rendered from the rows, so
//! every exported metric is described here. A new metric needs its source (a counter or an
//! accessor) and one row.

mod backends;
mod connections;
mod engines;
mod ensembles;
mod gen_ai;
mod groups;
mod ledger;
mod models;
mod predictions;
mod prefix;
mod process;
mod queues;
mod rate_limits;
mod requests;
mod shadow;
mod sinks;

use super::row::MetricRow;
use super::{admin_connections, reloads};

const BACKEND: &[&str] = &["backend"];

/// Every metric, in the order of the page.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricRow> + Clone {
    [
        requests::ROWS,
        rate_limits::ROWS,
        queues::ROWS,
        ensembles::ROWS,
        backends::ROWS,
        groups::ROWS,
        models::ROWS,
        predictions::ROWS,
        engines::ROWS,
        prefix::ROWS,
        shadow::ROWS,
        connections::ROWS,
        admin_connections::ROWS,
        sinks::ROWS,
        ledger::ROWS,
        reloads::ROWS,
        process::ROWS,
        gen_ai::ROWS,
    ]
    .into_iter()
    .flatten()
}
