//! What is told of backends, and of asking them.

use super::super::gauges;
use super::super::row::{MetricRow, counter, gauge};
use super::BACKEND;

pub(super) const ROWS: [MetricRow; 18] = [
    gauge("penstock_backend_up", BACKEND, gauges::up, "1 while the health checks pass"),
    gauge(
        "penstock_backend_draining",
        BACKEND,
        gauges::draining,
        "1 while the backend takes no new requests because an operator said so",
    ),
    gauge(
        "penstock_backend_in_flight",
        BACKEND,
        gauges::backend_in_flight,
        "requests dispatched to the backend and not ended",
    ),
    gauge(
        "penstock_backend_max_in_flight",
        BACKEND,
        gauges::max_in_flight,
        "the backend's `max_in_flight`; absent without a limit",
    ),
    gauge(
        "penstock_backend_breaker_open",
        BACKEND,
        gauges::breaker_open,
        "1 while the circuit breaker is not closed",
    ),
    gauge(
        "penstock_backend_cooldown",
        BACKEND,
        gauges::cooldown,
        "1 while the backend rests after its own 429 or 503",
    ),
    gauge(
        "penstock_backend_slow_start_share",
        BACKEND,
        gauges::slow_start,
        "the share of its requests a backend gets while it comes back (`health.slow_start`), else 1",
    ),
    gauge(
        "penstock_backend_idle_connections",
        BACKEND,
        gauges::idle_connections,
        "idle connections kept to the backend",
    ),
    gauge(
        "penstock_backend_check_seconds",
        BACKEND,
        gauges::check_seconds,
        "how long the last health check that passed took; absent before the first",
    ),
    gauge(
        "penstock_backend_waiting",
        BACKEND,
        gauges::waiting,
        "requests that wait in the engine, whoever sent them, as it tells; like the next two absent unless a scrape told it lately",
    ),
    gauge(
        "penstock_backend_running",
        BACKEND,
        gauges::running,
        "requests the engine works on, whoever sent them, as it tells",
    ),
    gauge(
        "penstock_backend_kv_utilization",
        BACKEND,
        gauges::kv_utilization,
        "the share of the engine's KV cache in use, as it tells",
    ),
    gauge(
        "penstock_backend_telemetry_age_seconds",
        BACKEND,
        gauges::telemetry_age,
        "the age of what the engine told last; absent before the first time",
    ),
    counter(
        "penstock_backend_scrapes_total",
        &["backend", "result"],
        gauges::scrapes,
        "questions to the engine how busy it is; `result` is passed or failed",
    ),
    counter(
        "penstock_backend_restarts_total",
        BACKEND,
        gauges::restarts,
        "times the engine was seen to have started anew; what was learned of it is forgotten then",
    ),
    gauge(
        "penstock_telemetry_interval_factor",
        &[],
        gauges::scrape_stretch,
        "the factor by which `telemetry.interval` and `telemetry.idle_interval` are stretched to stay within `telemetry.max_cpu` and 20 MiB/s; 1 when they are not",
    ),
    counter(
        "penstock_telemetry_bytes_total",
        &[],
        gauges::scraped_bytes,
        "bytes of metrics read from engines",
    ),
    counter(
        "penstock_telemetry_cpu_seconds_total",
        &[],
        gauges::scrape_cpu,
        "processor time spent on asking engines how busy they are",
    ),
];
