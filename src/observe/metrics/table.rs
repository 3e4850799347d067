//! The tables of metrics: name, labels, meaning, and where the samples come from. The page and
//! docs/reference/metrics.md are rendered from them, so nothing is exported that is not described here.
//! A new metric is a row in one of them and its samples.

mod backends;
mod process;
mod requests;

use super::row::MetricRow;

const BACKEND: &[&str] = &["backend"];

/// Every metric, in the order of the page.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricRow> + Clone {
    [&requests::ROWS[..], &backends::ROWS[..], &process::ROWS[..]].into_iter().flatten()
}
