//! Metrics of the limits per client. The operator chooses the names of keys, so they are bounded.

use penstock_clock::unix_seconds;
use penstock_core::admission::rate_limits::{KeyFigures, LimitKind, Moment};

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, flag, from_option, from_size, number, one, to_sample};

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
    gauge(
        "penstock_shared_state_up",
        &[],
        |_, scrape| {
            let shared = scrape.proxy.shared_state();
            from_option(shared.and_then(|shared| flag(shared.is_up())))
        },
        "1 while the server of `shared_state` is reached; while it is 0, limits hold per process",
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
        |_, scrape| one(from_size(scrape.proxy.rates().addresses())),
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
        |_, scrape| one(to_sample(scrape.proxy.rates().evicted_addresses())),
        "client addresses that made room for others, and start again with nothing used",
    ),
];

fn rate_limited(scrape: &Scrape<'_>) -> Samples {
    let mut samples = Samples::new();
    let mut add = |key: &str, counts: [u64; LimitKind::ALL.len()]| {
        let named = LimitKind::ALL.iter().zip(counts);
        samples.extend(named.map(|(kind, count)| number(&[key, kind.name()], to_sample(count))));
    };
    if !scrape.generation.config.limits.per_client.is_unlimited() {
        add("", scrape.proxy.rates().refused_addresses());
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
fn keys(scrape: &Scrape<'_>) -> impl Iterator<Item = KeyFigures> {
    let auth = &scrape.generation.config.auth;
    let limited: ahash::HashSet<&str> = (0..auth.keys.len())
        .filter_map(|position| auth.limits_of(Some(position)))
        .filter(|(_, limits)| !limits.is_unlimited())
        .map(|(key, _)| key.name.as_str())
        .collect();
    let all = match limited.is_empty() {
        true => Vec::new(),
        false => scrape.proxy.rates().keys(Moment { at: scrape.now, unix: unix_seconds() }),
    };
    all.into_iter().filter(move |key| limited.contains(&*key.name))
}
