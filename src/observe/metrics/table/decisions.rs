//! Metrics of what decisions read, which is the telemetry that is scraped from engines and the
//! prefix index, and of the shadow strategy, which are absent without `routing.shadow`.

use penstock_api::units::widen;
use penstock_core::fleet::Readings;
use penstock_core::routing::audit::ShadowCounts;

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, from_option, from_size, number, one, per_backend, to_sample};
use super::BACKEND;

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_backend_waiting",
        BACKEND,
        |_, scrape| telemetry(scrape, |readings| readings.waiting.map(f64::from)),
        "requests queued in the engine, from all clients; absent when stale",
    ),
    gauge(
        "penstock_backend_running",
        BACKEND,
        |_, scrape| telemetry(scrape, |readings| readings.running.map(f64::from)),
        "requests running in the engine, from all clients; absent when stale",
    ),
    gauge(
        "penstock_backend_kv_utilization",
        BACKEND,
        |_, scrape| telemetry(scrape, |readings| readings.kv_utilization.map(widen)),
        "fraction of the engine's KV cache in use; absent when stale",
    ),
    gauge(
        "penstock_backend_telemetry_age_seconds",
        BACKEND,
        |_, scrape| {
            telemetry(scrape, |readings| readings.age.map(|age| age.to_duration().as_secs_f64()))
        },
        "age of the last successful scrape of the engine's metrics; absent before the first",
    ),
    gauge(
        "penstock_backend_models_dropped",
        &["backend", "reason"],
        |_, scrape| dropped_models(scrape),
        "model ids of the backend's last list that are not used; `reason` is too_long (over 256 bytes), unprintable, duplicate or over_limit (pages that are not read count as one)",
    ),
    gauge(
        "penstock_backend_adapters_dropped",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                let adapters = backend.state.telemetry.details()?.adapters.as_ref()?.dropped;
                Some(adapters.into())
            })
        },
        "LoRA adapters of the engine whose names are not used: too long, unprintable or too many; absent without adapters",
    ),
    counter(
        "penstock_backend_scrapes_total",
        &["backend", "result"],
        |_, scrape| scrapes(scrape),
        "scrapes of the engine's metrics; `result` is passed or failed",
    ),
    counter(
        "penstock_backend_restarts_total",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                let telemetry = &backend.state.telemetry;
                telemetry.sample().map(|_| telemetry.restarts().into())
            })
        },
        "engine restarts detected; each one clears the learned state of the backend",
    ),
    gauge(
        "penstock_telemetry_interval_factor",
        &[],
        |_, scrape| one(scrape.scraping.interval_factor()),
        "factor applied to `telemetry.interval` and `telemetry.idle_interval` to stay within `telemetry.max_cpu` and 20 MiB/s; 1 when no limit applies",
    ),
    counter(
        "penstock_telemetry_bytes_total",
        &[],
        |_, scrape| one(to_sample(scrape.scraping.bytes())),
        "bytes of engine metrics read",
    ),
    counter(
        "penstock_telemetry_cpu_seconds_total",
        &[],
        |_, scrape| one(scrape.scraping.cpu_time().as_secs_f64()),
        "CPU time spent on scraping engine metrics",
    ),
    gauge(
        "penstock_prefix_index_bytes",
        &[],
        |_, scrape| one(from_size(scrape.generation.fleet.prefix_memory().used())),
        "memory of the prefix indexes of all models",
    ),
    gauge(
        "penstock_max_prefix_index_bytes",
        &[],
        |_, scrape| one(from_size(scrape.generation.fleet.prefix_memory().limit())),
        "limit of penstock_prefix_index_bytes: `limits.prefix_memory`",
    ),
    gauge(
        "penstock_backend_prefix_blocks",
        BACKEND,
        |_, scrape| prefix_blocks(scrape),
        "prompt blocks that the prefix index expects in the backend's cache",
    ),
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

/// One sample per backend whose telemetry has the value that `read` returns.
fn telemetry(scrape: &Scrape<'_>, read: impl Fn(Readings) -> Option<f64>) -> Samples {
    per_backend(scrape, |backend| {
        let state = &backend.state;
        read(state.telemetry.read(&state.load, scrape.now))
    })
}

fn scrapes(scrape: &Scrape<'_>) -> Samples {
    let mut samples = Vec::new();
    for backend in &scrape.fleet.backends {
        let (passed, failed) = backend.state.telemetry.scrapes();
        if passed + failed > 0 {
            samples.push(number(&[&backend.state.name, "passed"], to_sample(passed)));
            samples.push(number(&[&backend.state.name, "failed"], to_sample(failed)));
        }
    }
    samples
}

fn dropped_models(scrape: &Scrape<'_>) -> Samples {
    let backends = scrape.fleet.backends.iter();
    let rows = backends.flat_map(|backend| {
        let reasons = backend.state.listing.dropped().by_reason().into_iter();
        reasons.map(|(reason, count)| number(&[&backend.state.name, reason], count.into()))
    });
    rows.collect()
}

fn prefix_blocks(scrape: &Scrape<'_>) -> Samples {
    let models = scrape.fleet.models();
    per_backend(scrape, |backend| {
        let rows =
            models.iter().flat_map(|model| model.serving.iter().map(move |row| (model, row)));
        let own = rows.filter(|(_, row)| row.id == backend.state.id);
        let held: u64 = own.map(|(model, row)| u64::from(model.prefixes.held(row.slot))).sum();
        Some(to_sample(held))
    })
}

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
