//! A row of the table of metrics, and its constructors.

use super::samples::Samples;
use super::{Metrics, Scrape};

penstock_api::named! {
    /// The kind of a metric, by its name in Prometheus' text format.
    pub enum MetricKind {
        /// A value that only grows.
        Counter = "counter",
        /// A value read at the time of a scrape.
        Gauge = "gauge",
        Histogram = "histogram",
    }
}

/// One row of the table of metrics.
pub struct MetricRow {
    /// The name of the metric, which includes the unit.
    pub name: &'static str,
    pub kind: MetricKind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The help text, on the page and in docs/reference/metrics.md.
    pub meaning: &'static str,
    pub(super) samples: SampleReader,
}

type SampleReader = fn(&Metrics, &Scrape<'_>) -> Samples;

pub(super) const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    samples: SampleReader,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Counter, labels, meaning, samples }
}

pub(super) const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    samples: SampleReader,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Gauge, labels, meaning, samples }
}

pub(super) const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    samples: SampleReader,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Histogram, labels, meaning, samples }
}
