//! The tables of metrics: one row holds a metric's name, kind, labels, help text and the function
//! that reads its samples. The page and docs/reference/metrics.md are rendered from the rows, so
//! every exported metric is described here. A new metric needs its source (a counter or an
//! accessor) and one row.

mod admission;
mod backends;
mod budgets;
mod decisions;
mod models;
mod process;
mod requests;
mod tokens;

use super::row::MetricRow;
use super::{admin_connections, reloads};

const BACKEND: &[&str] = &["backend"];

/// Every metric, in the order of the page.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricRow> + Clone {
    [
        requests::ROWS,
        admission::ROWS,
        tokens::ROWS,
        budgets::ROWS,
        backends::ROWS,
        models::ROWS,
        decisions::ROWS,
        process::CONNECTION_ROWS,
        admin_connections::ROWS,
        process::SINK_ROWS,
        reloads::ROWS,
        process::ROWS,
        requests::GEN_AI_ROWS,
    ]
    .into_iter()
    .flatten()
}
