//! A sample of a metric, and the helpers that read the samples of the table's rows.

use std::sync::atomic::{AtomicU64, Ordering};

use penstock_core::fleet::Backend;
use prometheus::Histogram;

use super::Scrape;

/// The values of the metric's labels, in their order, and the sample's own value.
pub(super) struct Sample {
    pub(super) labels: Vec<String>,
    pub(super) value: SampleValue,
}

pub(super) enum SampleValue {
    Number(f64),
    Histogram(Histogram),
}

pub(super) type Samples = Vec<Sample>;

pub(super) fn number(labels: &[&str], value: f64) -> Sample {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Sample { labels, value: SampleValue::Number(value) }
}

/// The sample of a histogram; `None` while it is empty, so that labels to which a metric never
/// applies stay absent.
pub(super) fn distribution(labels: &[&str], histogram: &Histogram) -> Option<Sample> {
    // An empty histogram is two dozen lines of zeros on the page.
    (histogram.get_sample_count() > 0).then(|| Sample {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        value: SampleValue::Histogram(histogram.clone()),
    })
}

/// Converts a count: samples are floating point by their format.
pub(super) fn to_sample(count: u64) -> f64 {
    count as f64
}

pub(super) fn from_size(size: usize) -> f64 {
    to_sample(u64::try_from(size).unwrap_or(u64::MAX))
}

/// The sample of a metric without labels.
pub(super) fn one(value: f64) -> Samples {
    vec![number(&[], value)]
}

/// The sample of a metric without labels, absent if there is no value.
pub(super) fn from_option(value: Option<f64>) -> Samples {
    value.map_or_else(Vec::new, one)
}

pub(super) fn counter_value(counter: &AtomicU64) -> Samples {
    one(to_sample(counter.load(Ordering::Relaxed)))
}

/// One sample for each backend for which `read` returns a value.
pub(super) fn per_backend(scrape: &Scrape<'_>, read: impl Fn(&Backend) -> Option<f64>) -> Samples {
    let backends = scrape.fleet.backends.iter();
    backends.filter_map(|backend| Some(number(&[&backend.state.name], read(backend)?))).collect()
}

pub(super) fn flag(is_set: bool) -> Option<f64> {
    Some(f64::from(u8::from(is_set)))
}
