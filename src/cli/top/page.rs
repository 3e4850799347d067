//! A parser of the metrics page: samples by name and labels, in Prometheus' text format.

use std::collections::BTreeMap;

use crate::discovery::samples;

/// One line of the page.
#[derive(Debug, Clone, PartialEq)]
struct PageSample {
    labels: Vec<(String, String)>,
    value: f64,
}

impl PageSample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, wanted: &[(&str, &str)]) -> bool {
        wanted.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

/// The samples of a metrics page, by their names.
#[derive(Debug, Clone, Default)]
pub(super) struct TopPage(BTreeMap<String, Vec<PageSample>>);

impl TopPage {
    /// Reads a page; malformed lines are skipped.
    pub(super) fn parse(page: &str) -> Self {
        let mut parsed = Self::default();
        for (name, labels, value) in samples(page.as_bytes()) {
            let labels = labels
                .iter()
                .map(|(name, value)| (text(name.iter().copied()), text(value.bytes())));
            let sample = PageSample { labels: labels.collect(), value };
            parsed.0.entry(text(name.iter().copied())).or_default().push(sample);
        }
        parsed
    }

    /// Returns whether the page has this metric.
    pub(super) fn has(&self, name: &str) -> bool {
        self.samples(name).next().is_some()
    }

    /// The sum of a metric's samples that have these labels.
    pub(super) fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        // Not `sum`, which returns -0 without samples.
        let wanted = self.samples(name).filter(|sample| sample.has(wanted));
        wanted.fold(0.0, |sum, sample| sum + sample.value)
    }

    /// The sum of a metric's samples for each value of a label.
    pub(super) fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.samples(name) {
            if let Some(value) = sample.label(label) {
                *sums.entry(value.to_owned()).or_default() += sample.value;
            }
        }
        sums
    }

    /// The cumulative buckets of a histogram's samples that have these labels: bound and count.
    pub(super) fn buckets(&self, name: &str, wanted: &[(&str, &str)]) -> Vec<(f64, f64)> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        let all = self.samples(name).filter(|sample| sample.has(wanted));
        for sample in all {
            let bound = sample.label("le").and_then(|bound| bound.parse::<f64>().ok());
            let Some(bound) = bound else { continue };
            match buckets.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        buckets
    }

    fn samples(&self, name: &str) -> impl Iterator<Item = &PageSample> {
        self.0.get(name).into_iter().flatten()
    }
}

fn text(bytes: impl Iterator<Item = u8>) -> String {
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a what it is\n# TYPE a counter\n\
        a{model=\"m\\\"}\\n\",backend=\"x\"} 3\na{model=\"m2\",backend=\"x\"} 4\nb 0.5\n\
        h_bucket{backend=\"x\",le=\"1\"} 2\nh_bucket{backend=\"y\",le=\"1\"} 1\n\
        h_bucket{backend=\"x\",le=\"+Inf\"} 5\nnonsense\nc{broken=\"x 1\n";

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let page = TopPage::parse(TEXT);
        assert_eq!(page.sum("a", &[]), 7.0);
        assert_eq!(page.sum("a", &[("model", "m\"}\n")]), 3.0);
        assert_eq!(page.sum("a", &[("backend", "x"), ("model", "m2")]), 4.0);
        assert_eq!(page.sum("b", &[]), 0.5);
        assert_eq!(page.sum("c", &[]), 0.0);
        assert_eq!(page.by_label("a", "backend"), BTreeMap::from([("x".to_owned(), 7.0)]));
    }

    #[test]
    fn buckets_of_several_series_are_summed() {
        let page = TopPage::parse(TEXT);
        assert_eq!(page.buckets("h_bucket", &[]), [(1.0, 3.0), (f64::INFINITY, 5.0)]);
        assert_eq!(page.buckets("h_bucket", &[("backend", "y")]), [(1.0, 1.0)]);
    }
}
