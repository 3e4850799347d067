//! Metrics of the tokens of identity providers. The operator names the issuers, so their number is
//! bounded.

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, from_option, from_size, number, one, to_sample};
use crate::tokens::IssuerFigures;

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_jwks_fetches_total",
        &["issuer", "result"],
        |_, scrape| {
            let figures = scrape.proxy.keys.tokens().figures();
            let both = figures.iter().flat_map(|one| {
                let results = [("ok", one.fetched), ("failed", one.failed)];
                results.map(|(result, count)| number(&[&one.name, result], to_sample(count)))
            });
            both.collect()
        },
        "fetches of the keys of an identity provider (`auth.jwt`) and looks at its file; `result` is ok or failed",
    ),
    gauge(
        "penstock_jwks_age_seconds",
        &["issuer"],
        |_, scrape| per_issuer(scrape, |one| one.age.map(to_sample)),
        "time since the keys of an identity provider were last fetched; the last ones stay in effect",
    ),
    gauge(
        "penstock_jwks_keys",
        &["issuer"],
        |_, scrape| per_issuer(scrape, |one| Some(from_size(one.keys))),
        "keys of an identity provider that signatures are checked with",
    ),
    counter(
        "penstock_tokens_verified_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.keys.tokens().counts().0)),
        "tokens whose signature and claims were checked and are valid; further requests with them cost a look-up",
    ),
    gauge(
        "penstock_cached_tokens",
        &[],
        |_, scrape| one(from_size(scrape.proxy.keys.tokens().cached().0)),
        "tokens whose verdict is remembered",
    ),
    gauge(
        "penstock_max_cached_tokens",
        &[],
        |_, scrape| one(from_size(scrape.proxy.keys.tokens().cached().1)),
        "limit of penstock_cached_tokens: `auth.max_cached_tokens`",
    ),
    counter(
        "penstock_cached_tokens_evicted_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.keys.tokens().counts().1)),
        "verdicts on valid tokens that were evicted for others: those tokens are checked again",
    ),
    gauge(
        "penstock_revoked_tokens",
        &[],
        |_, scrape| {
            let store = scrape.proxy.keys.store();
            from_option(store.map(|store| from_size(store.revoked().len())))
        },
        "tokens that are revoked in `auth.store` (limit: `auth.max_revoked_tokens`)",
    ),
];

fn per_issuer(scrape: &Scrape<'_>, read: impl Fn(&IssuerFigures) -> Option<f64>) -> Samples {
    let figures = scrape.proxy.keys.tokens().figures();
    let samples = figures.iter().filter_map(|one| Some(number(&[&one.name], read(one)?)));
    samples.collect()
}
