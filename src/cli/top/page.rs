//! Parser of the metrics page: samples by name and labels, in Prometheus' text format.

use std::collections::BTreeMap;

/// One line of the page.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, wanted: &[(&str, &str)]) -> bool {
        wanted.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

/// A metrics page.
#[derive(Debug, Clone, Default)]
pub(super) struct Page(BTreeMap<String, Vec<Sample>>);

impl Page {
    /// Parses a page; skips lines that are not samples.
    pub(super) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for (name, sample) in text.lines().filter_map(parse_line) {
            page.0.entry(name).or_default().push(sample);
        }
        page
    }

    /// Whether the page has this metric.
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

    fn samples(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.0.get(name).into_iter().flatten()
    }
}

fn parse_line(line: &str) -> Option<(String, Sample)> {
    if line.starts_with('#') {
        return None;
    }
    let (name, rest) = match line.find('{') {
        Some(open) => line.split_at_checked(open)?,
        None => line.split_once(' ')?,
    };
    let (labels, value) = match rest.strip_prefix('{') {
        Some(inner) => parse_labels(inner)?,
        None => (Vec::new(), rest),
    };
    let value = value.trim().split(' ').next()?.parse().ok()?;
    Some((name.to_owned(), Sample { labels, value }))
}

/// Reads `a="x",b="y"} rest`.
fn parse_labels(mut text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = parse_value(rest)?;
        labels.push((name.to_owned(), value));
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// Reads up to the closing quote and resolves escapes.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            _ => value.push(character),
        }
    }
    None
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
        let page = Page::parse(TEXT);
        assert_eq!(page.sum("a", &[]), 7.0);
        assert_eq!(page.sum("a", &[("model", "m\"}\n")]), 3.0);
        assert_eq!(page.sum("a", &[("backend", "x"), ("model", "m2")]), 4.0);
        assert_eq!(page.sum("b", &[]), 0.5);
        assert_eq!(page.sum("c", &[]), 0.0);
        assert_eq!(page.by_label("a", "backend"), BTreeMap::from([("x".to_owned(), 7.0)]));
    }

    #[test]
    fn buckets_of_several_series_are_summed() {
        let page = Page::parse(TEXT);
        assert_eq!(page.buckets("h_bucket", &[]), [(1.0, 3.0), (f64::INFINITY, 5.0)]);
        assert_eq!(page.buckets("h_bucket", &[("backend", "y")]), [(1.0, 1.0)]);
    }
}
