//! Metrics of the bounded queues behind the access log and the span exporter.

use super::super::row::{MetricRow, counter};
use super::super::samples::{Samples, number, to_sample};
use crate::observe::queue::Deliveries;

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_access_log_lines_total",
        &["result"],
        |_, scrape| by_result("written", scrape.access_log.map(|log| log.deliveries())),
        "lines of the access log; `result` is written, dropped (8,192 lines were queued) or failed (the write failed)",
    ),
    counter(
        "penstock_spans_total",
        &["result"],
        |_, scrape| by_result("sent", scrape.spans.map(|spans| spans.deliveries())),
        "trace spans; `result` is sent, dropped (4,096 spans were queued) or failed (the collector did not accept them)",
    ),
];

fn by_result(delivered: &str, counts: Option<Deliveries>) -> Samples {
    let counts = counts.unwrap_or_default();
    vec![
        number(&[delivered], to_sample(counts.delivered)),
        number(&["dropped"], to_sample(counts.dropped)),
        number(&["failed"], to_sample(counts.failed)),
    ]
}
