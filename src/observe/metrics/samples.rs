//! The samples of what was counted, and how a sample looks.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::Histogram;

use super::Metrics;
use super::gauges::Scrape;
use super::requests::GenAiSeries;
use crate::api::{ERROR_CODES, Operation};

/// A sample: the values of its metric's labels, in their order, and its own.
pub(super) struct Sample {
    pub(super) labels: Vec<String>,
    pub(super) value: Value,
}

pub(super) enum Value {
    Number(f64),
    Histogram(Histogram),
}

pub(super) type Samples = Vec<Sample>;

pub(super) fn number(labels: &[&str], value: f64) -> Sample {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Sample { labels, value: Value::Number(value) }
}

/// A histogram that has seen something: labels that a metric never applies to show nothing.
fn histogram(labels: &[&str], histogram: &Histogram) -> Option<Sample> {
    (histogram.get_sample_count() > 0).then(|| Sample {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        value: Value::Histogram(histogram.clone()),
    })
}

/// Samples are floating point by their format.
pub(super) fn to_sample(count: u64) -> f64 {
    count as f64
}

pub(super) fn from_size(size: usize) -> f64 {
    to_sample(u64::try_from(size).unwrap_or(u64::MAX))
}

pub(super) fn one(value: f64) -> Samples {
    vec![number(&[], value)]
}

fn counter(counter: &AtomicU64) -> Samples {
    one(to_sample(counter.load(Ordering::Relaxed)))
}

pub(super) fn requests(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let mut samples = Vec::new();
    for (key, series) in metrics.requests.by_labels.sorted() {
        let labels = [
            &*metrics.model_names.name(key.model),
            &*metrics.backend_names.name(key.backend),
            key.operation.map_or("none", Operation::name),
            &key.status.to_string(),
            key.outcome.name(),
        ];
        samples.push(number(&labels, to_sample(series.count.load(Ordering::Relaxed))));
    }
    samples
}

pub(super) fn durations(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let all = metrics.requests.durations.sorted();
    all.iter()
        .filter_map(|(key, took)| {
            let model = metrics.model_names.name(key.model);
            let backend = metrics.backend_names.name(key.backend);
            histogram(&[&model, &backend, key.outcome.name()], took)
        })
        .collect()
}

pub(super) fn first_tokens(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let all = metrics.backends.all();
    all.iter().filter_map(|series| histogram(&[&series.name], &series.first_token)).collect()
}

pub(super) fn stream_tokens(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let all = metrics.backends.all();
    let tokens = all.iter().map(|series| (series, series.stream_tokens.load(Ordering::Relaxed)));
    tokens.map(|(series, count)| number(&[&series.name], to_sample(count))).collect()
}

pub(super) fn attempts(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let mut samples = Vec::new();
    for series in metrics.backends.all() {
        let cells = series.attempts();
        samples.extend(cells.map(|(outcome, code, count)| {
            number(&[&series.name, outcome, code], to_sample(count))
        }));
    }
    samples
}

pub(super) fn tokens(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let mut samples = Vec::new();
    for (key, series) in metrics.requests.tokens.sorted() {
        let model = metrics.model_names.name(key.model);
        let backend = metrics.backend_names.name(key.backend);
        let kinds = [
            ("input", &series.input),
            ("output", &series.output),
            ("cached", &series.cached),
            ("expected", &series.expected),
        ];
        samples.extend(kinds.into_iter().filter_map(|(kind, counter)| {
            let count = counter.load(Ordering::Relaxed);
            (count > 0).then(|| number(&[&model, &backend, kind], to_sample(count)))
        }));
    }
    samples
}

pub(super) fn errors(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let rows = ERROR_CODES.iter().zip(&metrics.errors);
    rows.map(|(row, count)| number(&[row.name], to_sample(count.load(Ordering::Relaxed)))).collect()
}

pub(super) fn repeats(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    counter(&metrics.repeats)
}

pub(super) fn fallbacks(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    counter(&metrics.fallbacks)
}

pub(super) fn assumed(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    counter(&metrics.assumed)
}

pub(super) fn untold(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    counter(&metrics.untold)
}

pub(super) fn panics(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    counter(&metrics.panics)
}

fn gen_ai(metrics: &Metrics, pick: impl Fn(&GenAiSeries) -> &Histogram) -> Samples {
    let all = metrics.requests.gen_ai.sorted();
    all.iter()
        .filter_map(|(key, series)| {
            let model = metrics.model_names.name(key.model);
            histogram(&[key.operation, key.provider, &model], pick(series))
        })
        .collect()
}

pub(super) fn gen_ai_durations(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    gen_ai(metrics, |series| &series.took)
}

pub(super) fn gen_ai_first_tokens(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    gen_ai(metrics, |series| &series.first_token)
}

pub(super) fn gen_ai_per_token(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    gen_ai(metrics, |series| &series.per_token)
}

pub(super) fn gen_ai_tokens(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    let of = |kind: &str, pick: fn(&GenAiSeries) -> &Histogram| {
        let mut samples = gen_ai(metrics, pick);
        samples.iter_mut().for_each(|sample| sample.labels.push(kind.to_owned()));
        samples
    };
    let mut samples = of("input", |series| &series.input);
    samples.extend(of("output", |series| &series.output));
    samples
}
