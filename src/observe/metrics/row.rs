//! A row of the table of metrics, and its constructors.

use super::samples::Samples;
use super::{Metrics, Scrape};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Read at the time of a scrape.
    Gauge,
    /// A distribution.
    Histogram,
}

impl MetricKind {
    /// The name in Prometheus' text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One row of the table of metrics.
pub struct MetricRow {
    /// Its name; the unit is in it.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The help text, on the page and in docs/reference/metrics.md.
    pub meaning: &'static str,
    pub(super) samples: Read,
}

/// Reads the samples of a metric.
type Read = fn(&Metrics, &Scrape<'_>) -> Samples;

pub(super) const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    samples: Read,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Counter, labels, meaning, samples }
}

pub(super) const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    samples: Read,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Gauge, labels, meaning, samples }
}

pub(super) const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    samples: Read,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Histogram, labels, meaning, samples }
}
