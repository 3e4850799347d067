//! Metrics of requests that wait. `limits.metric_models` bounds their label.

use std::collections::BTreeMap;

use penstock_core::admission::queue::QueueEnd;

use super::super::row::{MetricRow, counter, gauge, histogram};
use super::super::samples::{Samples, distribution, from_size, number, one, to_sample};
use super::super::{Metrics, Scrape};
use crate::proxy::QueueFigures;

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_queue_requests",
        &["model"],
        |metrics, scrape| {
            let all = by_label(metrics, scrape);
            let waiting = |queues: &[QueueFigures]| queues.iter().map(|one| one.waiting).sum();
            all.iter().map(|(model, queues)| number(&[model], from_size(waiting(queues)))).collect()
        },
        "requests that wait in the model's queue; absent before the first",
    ),
    gauge(
        "penstock_max_queue_requests",
        &[],
        |_, scrape| one(from_size(scrape.generation.config.queue.size)),
        "limit of penstock_queue_requests per model: `queue.size`; 0 while none may wait",
    ),
    counter(
        "penstock_queue_ended_total",
        &["model", "reason"],
        ended,
        "requests that no longer wait; `reason` is served, timed_out, late (refused below priority 0 because their objective was missed), displaced (by a more important one, or one of a key with fewer there), full (they could not wait), client_left or refused (nothing to wait for any more)",
    ),
    counter(
        "penstock_queue_kept_alive_total",
        &["model"],
        |metrics, scrape| {
            let all = by_label(metrics, scrape);
            let counts = |queues: &[QueueFigures]| queues.iter().map(|one| one.kept_alive).sum();
            all.iter().map(|(model, queues)| number(&[model], to_sample(counts(queues)))).collect()
        },
        "streams whose clients got their head and something to ignore while they waited (`queue.keep_alive`)",
    ),
    counter(
        "penstock_queue_held_back_total",
        &["model"],
        |metrics, scrape| {
            let all = by_label(metrics, scrape);
            let counts = |queues: &[QueueFigures]| queues.iter().map(|one| one.held_back).sum();
            all.iter().map(|(model, queues)| number(&[model], to_sample(counts(queues)))).collect()
        },
        "requests that waited although there was room, because that was kept for keys that hold less than their share (`queue.reserve`)",
    ),
    histogram(
        "penstock_queue_wait_seconds",
        &["model"],
        |metrics, _| {
            let all = metrics.queue_waits.sorted();
            let samples = all.iter().filter_map(|(model, waits)| {
                distribution(&[&metrics.model_names.name(*model)], waits)
            });
            samples.collect()
        },
        "time that requests waited in a queue, however it ended; requests that did not wait are not counted",
    ),
];

/// The queues by the label of their model.
fn by_label(metrics: &Metrics, scrape: &Scrape<'_>) -> BTreeMap<String, Vec<QueueFigures>> {
    let mut all: BTreeMap<String, Vec<QueueFigures>> = BTreeMap::new();
    for queue in scrape.proxy.queues().figures() {
        let label = metrics.model_names.name(metrics.model_names.id(&queue.model));
        all.entry(label.to_string()).or_default().push(queue);
    }
    all
}

fn ended(metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let mut samples = Samples::new();
    for (model, queues) in by_label(metrics, scrape) {
        for (position, end) in QueueEnd::ALL.iter().enumerate() {
            let counts = queues.iter().filter_map(|queue| queue.ended.get(position));
            samples.push(number(&[&model, end.name()], to_sample(counts.sum())));
        }
    }
    samples
}
