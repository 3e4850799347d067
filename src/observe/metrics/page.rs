//! The metrics page: the rows of the table with their samples, in Prometheus' text format.

use penstock_api::{MAX_NAME, escape};
use prometheus::TextEncoder;
use prometheus::core::Metric as _;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::row::{MetricKind, MetricRow};
use super::samples::{Sample, SampleValue, Samples};
use super::table::metric_rows;
use super::{Metrics, Scrape};

pub(super) fn render(metrics: &Metrics, scrape: &Scrape<'_>) -> String {
    let mut page = String::with_capacity(16 * 1024);
    for row in metric_rows() {
        let samples = (row.samples)(metrics, scrape);
        // The format cannot represent a metric without samples.
        if samples.is_empty() {
            continue;
        }
        if let Err(error) = TextEncoder::new().encode_utf8(&[row.to_family(samples)], &mut page) {
            tracing::error!(metric = row.name, %error, "metric not exported: it cannot be encoded");
        }
    }
    page
}

/// Bounds the length of a label value. A long one ends with a hash, so that two series stay
/// distinct.
fn to_label(value: String) -> String {
    if value.len() <= MAX_NAME {
        return value;
    }
    let hash = xxhash_rust::xxh3::xxh3_64(value.as_bytes());
    format!("{}{hash:016x}", escape(&value, MAX_NAME))
}

impl MetricRow {
    fn to_family(&self, samples: Samples) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.meaning.to_owned());
        family.set_field_type(match self.kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
            MetricKind::Histogram => MetricType::HISTOGRAM,
        });
        family.set_metric(samples.into_iter().map(|sample| self.to_metric(sample)).collect());
        family
    }

    fn to_metric(&self, sample: Sample) -> Metric {
        debug_assert_eq!(self.labels.len(), sample.labels.len(), "{}", self.name);
        let pair = |(name, value): (&&str, String)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(to_label(value));
            pair
        };
        let mut metric = match sample.value {
            SampleValue::Histogram(histogram) => histogram.metric(),
            SampleValue::Number(value) => {
                // The encoder reads only the value of the metric's kind.
                let (mut counter, mut gauge) = (Counter::default(), Gauge::default());
                counter.set_value(value);
                gauge.set_value(value);
                let mut metric = Metric::from_gauge(gauge);
                metric.set_counter(counter);
                metric
            }
        };
        metric.set_label(self.labels.iter().zip(sample.labels).map(pair).collect());
        metric
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_label_values_are_cut_and_stay_different() {
        let label = |end: &str| to_label(format!("{}{end}", "m".repeat(MAX_NAME)));
        assert_eq!(label("").len(), MAX_NAME);
        assert!(label("a").len() <= MAX_NAME + 19 && label("a").starts_with("mmm"));
        assert_ne!(label("a"), label("b"));
        assert_eq!(label("a"), label("a"));
    }
}
