//! Metrics of ensembles.

use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{from_size, number, one, to_sample};

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_ensembles_total",
        &["outcome"],
        |_, scrape| {
            let ends = scrape.proxy.ensembles().ends();
            ends.map(|(outcome, count)| number(&[outcome], to_sample(count))).collect()
        },
        "ensembles that ended; `outcome` is served, failed, cancelled (the client left) or refused (too many)",
    ),
    gauge(
        "penstock_ensembles_in_flight",
        &[],
        |_, scrape| one(from_size(scrape.proxy.ensembles().in_flight())),
        "ensembles in flight",
    ),
    counter(
        "penstock_ensemble_calls_total",
        &["stage", "outcome"],
        |_, scrape| {
            let calls = scrape.proxy.ensembles().calls();
            let labelled =
                calls.map(|(stage, outcome, count)| number(&[stage, outcome], to_sample(count)));
            labelled.collect()
        },
        "drafts and critiques that ended; `outcome` is ok or failed: those were left out",
    ),
];
