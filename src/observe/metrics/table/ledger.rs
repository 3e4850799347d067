//! Metrics of the token ledger and of live usage.

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, from_size, number, one, to_sample};
use crate::observe::ledger::LedgerReport;
use crate::observe::usage::LiveUsage;

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_ledger_writes_total",
        &["result"],
        |_, scrape| writes(&report(scrape)),
        "writes of the token ledger; `result` is written, locked (another process held the file), full (the disk was) or unavailable (no permission, no folder, an I/O error)",
    ),
    gauge(
        "penstock_ledger_pending_rows",
        &[],
        |_, scrape| one(from_size(report(scrape).pending)),
        "rows of the token ledger that wait to be written",
    ),
    counter(
        "penstock_ledger_merged_rows_total",
        &[],
        |_, scrape| one(to_sample(report(scrape).shrunk)),
        "rows of the token ledger that were added to the next minute or day, because more than `ledger.max_rows` were waiting",
    ),
    counter(
        "penstock_ledger_other_requests_total",
        &[],
        |_, scrape| one(to_sample(report(scrape).overflowed)),
        "requests that the token ledger counts under the model and key `other`, because there are more than `ledger.max_rows` combinations",
    ),
    counter(
        "penstock_ledger_quarantined_files_total",
        &[],
        |_, scrape| one(to_sample(report(scrape).quarantined)),
        "damaged files of the token ledger that were moved aside",
    ),
    gauge(
        "penstock_usage_streams",
        &[],
        |_, scrape| one(from_size(scrape.usage.map_or(0, LiveUsage::streams))),
        "open usage streams; `usage.streams` limits them",
    ),
    counter(
        "penstock_usage_streams_refused_total",
        &[],
        |_, scrape| one(to_sample(scrape.usage.map_or(0, LiveUsage::refused_streams))),
        "usage streams refused because of `usage.streams`",
    ),
];

fn report(scrape: &Scrape<'_>) -> LedgerReport {
    scrape.usage.map(|usage| usage.ledger().figures()).unwrap_or_default()
}

fn writes(report: &LedgerReport) -> Samples {
    let mut samples = vec![number(&["written"], to_sample(report.written))];
    samples.extend(report.failed.iter().map(|(kind, count)| number(&[kind], to_sample(*count))));
    samples
}
