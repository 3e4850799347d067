//! Metrics of admission: limits per client, queues and ensembles. The operator chooses the names of
//! keys, so they are bounded; `limits.metric_models` bounds the label of queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_clock::unix_seconds;
use penstock_core::admission::queue::QueueEnd;
use penstock_core::admission::rate_limits::{KeyFigures, LimitKind, LimitTime};

use super::super::row::{MetricRow, counter, gauge, histogram};
use super::super::samples::{
    Samples, distribution, flag, from_option, from_size, number, one, to_sample,
};
use super::super::{Metrics, Scrape};
use crate::proxy::QueueFigures;

/// The maximum number of keys with separate samples.
const MAX_KEYS: usize = 1000;

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_rate_limited_total",
        &["key", "limit"],
        |_, scrape| rate_limited(scrape),
        "requests refused by a limit; `key` is empty for limits per client address",
    ),
    gauge(
        "penstock_key_in_flight",
        &["key"],
        |_, scrape| per_key(scrape, |key| u64::from(key.in_flight)),
        "requests in flight of a key that has limits",
    ),
    gauge(
        "penstock_key_day_tokens",
        &["key"],
        |_, scrape| per_key(scrape, |key| key.day_tokens),
        "tokens of this day (UTC) of a key that has limits, those reserved by requests in flight included",
    ),
    counter(
        "penstock_key_failures_total",
        &["reason"],
        |_, scrape| {
            let all = scrape.proxy.keys.failures();
            all.map(|(reason, count)| number(&[reason], to_sample(count))).collect()
        },
        "requests that were not let in; `reason` is missing, unknown, expired, not_yet_valid, revoked, invalid_token, no_token_keys or certificate",
    ),
    counter(
        "penstock_key_failures_delayed_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.keys.delayed())),
        "refused keys whose response waited, because their address had sent many (`auth.failures_per_minute`)",
    ),
    gauge(
        "penstock_key_store_keys",
        &[],
        |_, scrape| {
            let store = scrape.proxy.keys.store();
            from_option(store.map(|store| from_size(store.table().len())))
        },
        "keys and old secrets of `auth.store` that are known",
    ),
    gauge(
        "penstock_key_store_up",
        &[],
        |_, scrape| {
            let store = scrape.proxy.keys.store();
            from_option(store.map(|store| if store.is_usable() { 1.0 } else { 0.0 }))
        },
        "1 while the file of `auth.store` can be read; otherwise the keys that are known stay in effect",
    ),
    counter(
        "penstock_key_store_failures_total",
        &[],
        |_, scrape| {
            let store = scrape.proxy.keys.store();
            from_option(store.map(|store| to_sample(store.failures())))
        },
        "times that the file of `auth.store` could not be read",
    ),
    gauge(
        "penstock_key_store_damaged_rows",
        &[],
        |_, scrape| {
            let store = scrape.proxy.keys.store();
            from_option(store.map(|store| from_size(store.damaged())))
        },
        "rows of `auth.store` that are left out because they are damaged: a key in one of them is refused",
    ),
    gauge(
        "penstock_key_store_unshared",
        &[],
        |_, scrape| {
            let store = scrape.proxy.keys.store();
            from_option(store.and_then(|store| store.unshared()).map(from_size))
        },
        "keys and revoked tokens of `auth.store` whose newest version the server of `shared_state` lacks: it is not reached, or they were changed a moment ago",
    ),
    gauge(
        "penstock_shared_state_up",
        &[],
        |_, scrape| {
            let shared = scrape.proxy.shared_state();
            from_option(shared.and_then(|shared| flag(shared.is_up())))
        },
        "1 while connected to the server of `shared_state`; limits apply per process at 0",
    ),
    gauge(
        "penstock_shared_state_penstocks",
        &[],
        |_, scrape| {
            let shared = scrape.proxy.shared_state();
            from_option(shared.map(|shared| from_size(shared.penstocks())))
        },
        "other penstocks whose requests in flight count here",
    ),
    counter(
        "penstock_shared_state_errors_total",
        &[],
        |_, scrape| {
            let shared = scrape.proxy.shared_state();
            from_option(shared.map(|shared| to_sample(shared.errors())))
        },
        "commands to the server of `shared_state` that failed or took longer than `shared_state.timeout`, attempts to reach it, and what it holds that cannot be read",
    ),
    gauge(
        "penstock_client_addresses",
        &[],
        |_, scrape| one(from_size(scrape.proxy.rates.addresses())),
        "client addresses that are remembered for `limits.per_client`",
    ),
    gauge(
        "penstock_max_client_addresses",
        &[],
        |_, scrape| one(from_size(scrape.generation.config.limits.client_addresses)),
        "limit of penstock_client_addresses: `limits.client_addresses`",
    ),
    counter(
        "penstock_client_addresses_evicted_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.rates.evicted_addresses())),
        "client addresses that were evicted for others, and start again with nothing used",
    ),
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
    counter(
        "penstock_ensembles_total",
        &["outcome"],
        |_, scrape| {
            let ends = scrape.proxy.ensembles.figures.ends();
            ends.map(|(outcome, count)| number(&[outcome], to_sample(count))).collect()
        },
        "ensembles that ended; `outcome` is served, failed, cancelled (the client left) or refused (too many)",
    ),
    gauge(
        "penstock_ensembles_in_flight",
        &[],
        |_, scrape| one(from_size(scrape.proxy.ensembles.figures.in_flight())),
        "ensembles in flight",
    ),
    counter(
        "penstock_ensemble_calls_total",
        &["stage", "outcome"],
        |_, scrape| {
            let calls = scrape.proxy.ensembles.figures.calls();
            let labelled =
                calls.map(|(stage, outcome, count)| number(&[stage, outcome], to_sample(count)));
            labelled.collect()
        },
        "drafts and critiques that ended; `outcome` is ok or failed: those were left out",
    ),
];

fn rate_limited(scrape: &Scrape<'_>) -> Samples {
    let mut samples = Samples::new();
    let mut add = |key: &str, counts: [u64; LimitKind::ALL.len()]| {
        let named = LimitKind::ALL.iter().zip(counts);
        samples.extend(named.map(|(kind, count)| number(&[key, kind.name()], to_sample(count))));
    };
    if !scrape.generation.config.limits.per_client.is_unlimited() {
        add("", scrape.proxy.rates.refused_addresses());
    }
    for key in keys(scrape) {
        add(&key.name, key.refused);
    }
    samples
}

fn per_key(scrape: &Scrape<'_>, read: impl Fn(&KeyFigures) -> u64) -> Samples {
    keys(scrape).map(|key| number(&[&key.name], to_sample(read(&key)))).collect()
}

/// The keys that have limits.
fn keys(scrape: &Scrape<'_>) -> std::vec::IntoIter<KeyFigures> {
    let auth = &scrape.generation.config.auth;
    let of_file = auth.limited_keys().filter(|(_, limits)| !limits.is_unlimited());
    // Keys of the store share names, so they have the label that they have in the ledger.
    let stored = scrape.proxy.keys.store().map(|store| store.table());
    let stored = stored.iter().flat_map(|table| table.iter()).map(|key| &key.client);
    let stored = stored.filter(|client| !client.limits(auth).is_unlimited());
    let labels: ahash::HashMap<Arc<str>, Arc<str>> = of_file
        .map(|(key, _)| (Arc::from(&*key.name), Arc::from(&*key.name)))
        .chain(stored.map(|client| (Arc::clone(&client.id), Arc::clone(&client.account))))
        .collect();
    if labels.is_empty() {
        return Vec::new().into_iter();
    }
    let moment = LimitTime { at: scrape.now, unix: unix_seconds() };
    let all = scrape.proxy.rates.keys(moment).into_iter();
    let labelled =
        all.filter_map(|key| Some(KeyFigures { name: Arc::clone(labels.get(&key.name)?), ..key }));
    let mut all: Vec<KeyFigures> = labelled.collect();
    if all.len() > MAX_KEYS {
        // Those that matter most have separate samples; the sum of the rest is one.
        all.sort_by_key(|key| std::cmp::Reverse((key.refused.iter().sum::<u64>(), key.day_tokens)));
        let rest = all.split_off(MAX_KEYS);
        all.push(rest.iter().fold(other_keys(), |sum, key| KeyFigures {
            refused: std::array::from_fn(|kind| {
                sum.refused.get(kind).unwrap_or(&0) + key.refused.get(kind).unwrap_or(&0)
            }),
            in_flight: sum.in_flight.saturating_add(key.in_flight),
            day_tokens: sum.day_tokens.saturating_add(key.day_tokens),
            ..sum
        }));
    }
    all.into_iter()
}

fn other_keys() -> KeyFigures {
    let refused = [0; LimitKind::ALL.len()];
    KeyFigures { name: Arc::from("other"), refused, in_flight: 0, day_tokens: 0 }
}

/// The queues by the label of their model.
fn by_label(metrics: &Metrics, scrape: &Scrape<'_>) -> BTreeMap<String, Vec<QueueFigures>> {
    let mut all: BTreeMap<String, Vec<QueueFigures>> = BTreeMap::new();
    for queue in scrape.proxy.queues.figures() {
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
