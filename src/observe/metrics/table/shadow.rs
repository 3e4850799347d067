//! Metrics of the shadow strategy; absent without `routing.shadow`.

use penstock_core::routing::audit::ShadowCounts;

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, from_option, from_size, number, to_sample};

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_shadow_decisions_total",
        &["result"],
        |_, scrape| decisions(scrape),
        "first attempts, compared with the shadow strategy; `result` is same, other (another backend), none (no backend found), not_sampled or dropped (1,024 requests or 64 MiB of their bodies were queued). Absent without `routing.shadow`, like all shadow metrics",
    ),
    counter(
        "penstock_shadow_prompt_tokens_total",
        &[],
        |_, scrape| from_shadow(scrape, |figures| to_sample(figures.prompt_tokens)),
        "tokens of the compared prompts, in whole blocks",
    ),
    counter(
        "penstock_shadow_expected_tokens_total",
        &["side"],
        |_, scrape| {
            let Some(figures) = figures(scrape) else { return Vec::new() };
            vec![
                number(&["live"], to_sample(figures.live_tokens)),
                number(&["shadow"], to_sample(figures.shadow_tokens)),
            ]
        },
        "prompt tokens expected in the cache of the chosen backend, for each `side`: live or shadow",
    ),
    counter(
        "penstock_shadow_lag_seconds_total",
        &[],
        |_, scrape| from_shadow(scrape, |figures| to_sample(figures.lag_micros) / 1e6),
        "total delay of shadow decisions after the live decisions; divide its rate by the rate of same, other and none for the mean",
    ),
    gauge(
        "penstock_shadow_index_bytes",
        &[],
        |_, scrape| from_shadow(scrape, |figures| from_size(figures.index_bytes)),
        "memory of the shadow's prefix indexes, both sides",
    ),
    gauge(
        "penstock_max_shadow_index_bytes",
        &[],
        |_, scrape| from_shadow(scrape, |figures| from_size(figures.max_index_bytes)),
        "limit of penstock_shadow_index_bytes: `routing.shadow.prefix_memory`",
    ),
];

fn figures(scrape: &Scrape<'_>) -> Option<ShadowCounts> {
    scrape.generation.shadow.as_ref().map(|shadow| shadow.counts())
}

fn from_shadow(scrape: &Scrape<'_>, read: impl Fn(ShadowCounts) -> f64) -> Samples {
    from_option(figures(scrape).map(read))
}

fn decisions(scrape: &Scrape<'_>) -> Samples {
    let Some(figures) = figures(scrape) else { return Vec::new() };
    let results = [
        ("same", figures.same),
        ("other", figures.other),
        ("none", figures.none),
        ("not_sampled", figures.not_sampled),
        ("dropped", figures.dropped),
    ];
    results.map(|(result, count)| number(&[result], to_sample(count))).into()
}
