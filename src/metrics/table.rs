//! The table of metrics: name, labels, meaning, and where the samples come from. The page is
//! rendered from it row by row, so nothing is exported that is not described here; the README's
//! table is printed from it too. A new metric is a row here and its samples.

use super::samples::Samples;
use super::{Metrics, Scrape, gauges, reloads, samples};

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Read at the time of a scrape.
    Gauge,
    /// A distribution.
    Histogram,
}

impl MetricKind {
    /// The name in Prometheus' text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One row of the table of metrics.
pub struct MetricRow {
    /// Its name; the unit is in it.
    pub name: &'static str,
    /// What kind of metric it is.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, for the README and for the page.
    pub meaning: &'static str,
    pub(super) samples: Read,
}

type Read = fn(&Metrics, &Scrape<'_>) -> Samples;

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    samples: Read,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Counter, labels, meaning, samples }
}

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    samples: Read,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Gauge, labels, meaning, samples }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    samples: Read,
    meaning: &'static str,
) -> MetricRow {
    MetricRow { name, kind: MetricKind::Histogram, labels, meaning, samples }
}

const BACKEND: &[&str] = &["backend"];
const GEN_AI: &[&str] = &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"];

/// Every metric on the page.
pub const METRICS: [MetricRow; 61] = [
    counter(
        "penstock_requests_total",
        &["model", "backend", "operation", "status", "outcome"],
        samples::requests,
        "requests that ended; `outcome` is ok, client (4xx), busy (429, 503), fault or cancel (the client left)",
    ),
    histogram(
        "penstock_request_duration_seconds",
        &["model", "backend", "outcome"],
        samples::durations,
        "time from a request's arrival to the end of its answer",
    ),
    histogram(
        "penstock_ttft_seconds",
        BACKEND,
        samples::first_tokens,
        "time from a request's arrival to the first token of its stream, taken as it happens",
    ),
    counter(
        "penstock_stream_tokens_total",
        BACKEND,
        samples::stream_tokens,
        "events with tokens relayed in streams, counted as they pass",
    ),
    counter(
        "penstock_tokens_total",
        &["model", "backend", "type"],
        samples::tokens,
        "tokens as the engines counted them; `type` is input, output, cached (a part of input), or expected: what the prefix index believed to be cached, where the engine says what was",
    ),
    counter(
        "penstock_attempts_total",
        &["backend", "outcome", "code"],
        samples::attempts,
        "attempts that ended; `code` is the error they failed with, or none",
    ),
    counter(
        "penstock_repeats_total",
        &[],
        samples::repeats,
        "attempts that repeat a request on another backend",
    ),
    counter(
        "penstock_fallbacks_total",
        &[],
        samples::fallbacks,
        "requests a fallback model answered",
    ),
    counter(
        "penstock_assumed_capability_total",
        &[],
        samples::assumed,
        "decisions for a backend that is not known to have a needed capability",
    ),
    counter(
        "penstock_panic_decisions_total",
        &[],
        samples::panics,
        "decisions that let unhealthy backends count, because fewer than `routing.panic_threshold` were healthy",
    ),
    counter(
        "penstock_errors_total",
        &["code"],
        samples::errors,
        "errors penstock answered with itself, limits that were hit among them",
    ),
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
        "penstock_backend_resting",
        BACKEND,
        gauges::resting,
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
        "penstock_telemetry_stretch",
        &[],
        gauges::scrape_stretch,
        "the factor by which `telemetry.interval` and `telemetry.idle_interval` are stretched to stay within `telemetry.max_cpu` and `telemetry.max_rate`; 1 when they are not",
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
    gauge("penstock_in_flight", &[], gauges::in_flight, "requests under way on the data port"),
    gauge("penstock_held_body_bytes", &[], gauges::held_body_bytes, "bytes of request bodies held"),
    gauge(
        "penstock_max_held_body_bytes",
        &[],
        gauges::max_held_body_bytes,
        "the most there may be: `limits.buffered_bodies`",
    ),
    gauge(
        "penstock_prefix_index_bytes",
        &[],
        gauges::prefix_index_bytes,
        "memory of the prefix indexes of all models; the most is `limits.prefix_memory`",
    ),
    counter(
        "penstock_prefix_lock_samples_total",
        &[],
        gauges::prefix_locks,
        "times the lock of a prefix index was held and measured: one in 16",
    ),
    counter(
        "penstock_prefix_lock_seconds_total",
        &[],
        gauges::prefix_locks_held,
        "how long it was held, of those measured",
    ),
    gauge(
        "penstock_prefix_lock_longest_seconds",
        &[],
        gauges::prefix_lock_longest,
        "the longest of them since the start",
    ),
    gauge(
        "penstock_backend_prefix_blocks",
        BACKEND,
        gauges::prefix_blocks,
        "blocks of prompts it is believed to have cached",
    ),
    gauge("penstock_connections", &[], gauges::connections, "client connections open"),
    gauge(
        "penstock_max_connections",
        &[],
        gauges::max_connections,
        "the most there may be: `limits.connections`",
    ),
    gauge(
        "penstock_admin_connections",
        &[],
        gauges::admin_connections,
        "connections to the admin port, the scrape's own among them",
    ),
    gauge(
        "penstock_max_admin_connections",
        &[],
        gauges::max_admin_connections,
        "the most there may be: `admin.connections`",
    ),
    counter(
        "penstock_admin_connections_refused_total",
        &[],
        gauges::admin_refused,
        "connections to the admin port over `admin.connections`",
    ),
    counter(
        "penstock_access_log_lines_total",
        &["result"],
        gauges::access_log_lines,
        "lines of the access log; `result` is written, dropped (`access_log.queue` was full) or failed (they could not be written)",
    ),
    counter(
        "penstock_spans_total",
        &["result"],
        gauges::spans,
        "spans of traces; `result` is sent, dropped (`tracing.queue` was full) or failed (the collector did not take them)",
    ),
    counter(
        "penstock_connections_closed_total",
        &["reason"],
        gauges::closings,
        "client connections closed without an answer; `reason` is tls (the handshake failed), proxy_header, too_slow (`limits.header`) or http2 (its rules or `limits.http2`)",
    ),
    gauge(
        "penstock_tls_certificate_expiry_timestamp_seconds",
        &["listen"],
        gauges::certificates,
        "when a listener's certificate expires, in seconds since 1970",
    ),
    counter(
        "penstock_tls_certificate_failures_total",
        &[],
        gauges::certificate_failures,
        "changed certificates that could not be used; the old one went on serving",
    ),
    gauge("penstock_models", &[], gauges::models, "models the fleet serves, as far as known"),
    counter(
        "penstock_config_reloads_total",
        &["result"],
        reloads::totals,
        "reloads of the configuration; `result` is applied, or refused (the old one goes on)",
    ),
    gauge(
        "penstock_config_last_reload_successful",
        &[],
        reloads::last_successful,
        "1 unless the last reload was refused",
    ),
    gauge(
        "penstock_config_last_reload_success_timestamp_seconds",
        &[],
        reloads::last_timestamp,
        "when the configuration in force was loaded, in seconds since 1970",
    ),
    gauge("penstock_build_info", &["version"], gauges::build_info, "always 1"),
    gauge(
        "penstock_process_start_time_seconds",
        &[],
        gauges::start_time,
        "when the process started, in seconds since 1970",
    ),
    counter(
        "penstock_process_cpu_seconds_total",
        &[],
        gauges::cpu_seconds,
        "time the process spent on processors; Linux only",
    ),
    gauge(
        "penstock_process_resident_bytes",
        &[],
        gauges::resident_bytes,
        "memory of the process; Linux only",
    ),
    gauge(
        "penstock_process_open_files",
        &[],
        gauges::open_files,
        "open files and sockets; Linux only",
    ),
    gauge(
        "penstock_process_max_open_files",
        &[],
        gauges::max_open_files,
        "the most files and sockets the process may open; Linux only",
    ),
    histogram(
        "gen_ai_server_request_duration_seconds",
        GEN_AI,
        samples::gen_ai_durations,
        "time to the end of an answer; like all gen_ai metrics only of answers that came through whole",
    ),
    histogram(
        "gen_ai_server_time_to_first_token_seconds",
        GEN_AI,
        samples::gen_ai_first_tokens,
        "time to the first token of a stream",
    ),
    histogram(
        "gen_ai_server_time_per_output_token_seconds",
        GEN_AI,
        samples::gen_ai_per_token,
        "time per token of a stream after its first",
    ),
    histogram(
        "gen_ai_client_token_usage",
        &[
            "gen_ai_operation_name",
            "gen_ai_provider_name",
            "gen_ai_request_model",
            "gen_ai_token_type",
        ],
        samples::gen_ai_tokens,
        "tokens per request as the engine counted them; `gen_ai_token_type` is input or output",
    ),
];
