//! Metrics of the telemetry that is scraped from engines, and of the cost of scraping.

use penstock_api::units::widen;
use penstock_core::fleet::Readings;

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, number, one, per_backend, to_sample};
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
        "model ids of the backend's last list that are not used; `reason` is too_long (over 256 bytes), unprintable, duplicate or over_limit",
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
