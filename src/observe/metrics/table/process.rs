//! What is told of penstock itself: what it holds, its limits and its process.

use super::super::row::{MetricRow, counter, gauge, histogram};
use super::super::{gauges, reloads, samples, shadow};
use super::BACKEND;

const GEN_AI: &[&str] = &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"];

pub(super) const ROWS: [MetricRow; 37] = [
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
        "memory of the prefix indexes of all models",
    ),
    gauge(
        "penstock_max_prefix_index_bytes",
        &[],
        gauges::max_prefix_index_bytes,
        "the most there may be: `limits.prefix_memory`",
    ),
    gauge(
        "penstock_backend_prefix_blocks",
        BACKEND,
        gauges::prefix_blocks,
        "blocks of prompts it is believed to have cached",
    ),
    counter(
        "penstock_shadow_decisions_total",
        &["result"],
        shadow::decisions,
        "first attempts by what `routing.shadow` would have done: same, other (another backend) or none (it had no backend); or not_sampled, or dropped (1,024 requests or 64 MiB of their bodies were waiting). Absent without a shadow, like all that is told of one",
    ),
    counter(
        "penstock_shadow_prompt_tokens_total",
        &[],
        shadow::prompts,
        "tokens of the prompts that were compared, in whole blocks",
    ),
    counter(
        "penstock_shadow_expected_tokens_total",
        &["side"],
        shadow::expected,
        "those of them that were expected to be cached where each `side` sends them: live, or shadow",
    ),
    counter(
        "penstock_shadow_lag_seconds_total",
        &[],
        shadow::lag,
        "how long after the live decisions the shadow made its own, all together: per decision the rate of this by that of same, other and none",
    ),
    gauge(
        "penstock_shadow_index_bytes",
        &[],
        shadow::index_bytes,
        "memory of the prefix indexes of both sides",
    ),
    gauge(
        "penstock_max_shadow_index_bytes",
        &[],
        shadow::max_index_bytes,
        "the most there may be: `routing.shadow.prefix_memory`",
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
        "penstock_admin_slow_heads_total",
        &[],
        gauges::admin_late,
        "requests to the admin port whose head took longer than `admin.header_timeout`",
    ),
    counter(
        "penstock_access_log_lines_total",
        &["result"],
        gauges::access_log_lines,
        "lines of the access log; `result` is written, dropped (8,192 lines were waiting) or failed (they could not be written)",
    ),
    counter(
        "penstock_spans_total",
        &["result"],
        gauges::spans,
        "spans of traces; `result` is sent, dropped (4,096 spans were waiting) or failed (the collector did not take them)",
    ),
    counter(
        "penstock_connections_closed_total",
        &["reason"],
        gauges::close_reasons,
        "client connections closed without a response; `reason` is tls (handshake failed), proxy_header, too_slow (`limits.header_timeout`), http2 (protocol violation or `limits.http2`) or ca_revoked (a CA was removed from `client_ca`)",
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
