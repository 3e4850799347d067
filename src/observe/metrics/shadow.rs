//! The samples of a strategy that is tried out; none where there is none.

use super::samples::{Sample, Samples, from_size, number, one, to_sample};
use super::{Metrics, Scrape};
use crate::shadow::ShadowFigures;

fn samples<const N: usize>(
    scrape: &Scrape<'_>,
    read: impl Fn(ShadowFigures) -> [(&'static str, u64); N],
) -> Samples {
    let rows = scrape.shadow.map(read).into_iter().flatten();
    rows.map(|(label, count)| number(&[label], to_sample(count))).collect::<Vec<Sample>>()
}

pub(super) fn decisions(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    samples(scrape, |figures| {
        let ShadowFigures { same, other, none, not_sampled, dropped, .. } = figures;
        [
            ("same", same),
            ("other", other),
            ("none", none),
            ("not_sampled", not_sampled),
            ("dropped", dropped),
        ]
    })
}

pub(super) fn expected(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    samples(scrape, |figures| [("live", figures.live_tokens), ("shadow", figures.shadow_tokens)])
}

pub(super) fn prompts(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let tokens = scrape.shadow.map(|figures| one(to_sample(figures.prompt_tokens)));
    tokens.unwrap_or_default()
}

pub(super) fn lag(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let seconds = scrape.shadow.map(|figures| one(to_sample(figures.lag_micros) / 1e6));
    seconds.unwrap_or_default()
}

pub(super) fn index_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    scrape.shadow.map(|figures| one(from_size(figures.index_bytes))).unwrap_or_default()
}

pub(super) fn max_index_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    scrape.shadow.map(|figures| one(from_size(figures.max_index_bytes))).unwrap_or_default()
}
