//! Metrics of this process: the data port, the sinks of its records, and the build.

use std::sync::atomic::Ordering::Relaxed;

use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, from_option, from_size, number, one, to_sample};
use super::super::{Scrape, process};
use crate::observe::ledger::LedgerReport;
use crate::observe::queue::Deliveries;
use crate::observe::usage::LiveUsage;

/// Requests and bodies in memory, client connections, certificates.
pub(super) const CONNECTION_ROWS: &[MetricRow] = &[
    gauge(
        "penstock_in_flight",
        &[],
        |_, scrape| one(from_size(scrape.proxy.in_flight())),
        "requests in flight on the data port",
    ),
    gauge(
        "penstock_held_body_bytes",
        &[],
        |_, scrape| one(from_size(scrape.proxy.bodies.held())),
        "bytes of request bodies held in memory",
    ),
    gauge(
        "penstock_max_held_body_bytes",
        &[],
        |_, scrape| one(to_sample(scrape.generation.config.limits.buffered_bodies.0)),
        "limit of penstock_held_body_bytes: `limits.buffered_bodies`",
    ),
    gauge(
        "penstock_held_response_bytes",
        &[],
        |_, scrape| one(from_size(scrape.proxy.responses.held())),
        "bytes of responses held in memory: those that are converted whole, drafts of ensembles, refusals",
    ),
    gauge(
        "penstock_max_held_response_bytes",
        &[],
        |_, scrape| one(to_sample(scrape.generation.config.limits.buffered_responses.0)),
        "limit of penstock_held_response_bytes: `limits.buffered_responses`",
    ),
    counter(
        "penstock_encoded_bodies_total",
        &["coding", "result"],
        |_, scrape| {
            let rows = scrape.proxy.encoded.rows();
            rows.map(|(coding, result, count)| number(&[coding, result], to_sample(count)))
                .collect()
        },
        "request bodies that came with a `Content-Encoding`; `too_large`: refused because of `limits.max_body_size`, `limits.max_body_ratio` or `limits.buffered_bodies`",
    ),
    gauge(
        "penstock_response_ids",
        &[],
        |_, scrape| one(from_size(scrape.proxy.response_ids.len())),
        "stored responses whose backend is known; the limit is `limits.response_ids`",
    ),
    counter(
        "penstock_response_ids_evicted_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.response_ids.evicted())),
        "stored responses whose backend was evicted from the table: requests for them go to all backends, or are a 404 where there are client keys",
    ),
    gauge(
        "penstock_session_homes",
        &[],
        |_, scrape| one(from_size(scrape.proxy.homes.len())),
        "sessions whose last backend is known; the limit is `limits.session_homes`",
    ),
    counter(
        "penstock_session_homes_evicted_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.homes.evicted())),
        "sessions whose last backend was evicted from the table: their next request is routed as their first one",
    ),
    gauge(
        "penstock_commands",
        &[],
        |_, scrape| one(from_size(scrape.proxy.commands.load(Relaxed))),
        "pulls, creates, copies, deletes, pushes and uploads of Ollama clients that run now; the limit is `ollama.commands`, refused ones are in penstock_errors_total",
    ),
    gauge(
        "penstock_connections",
        &[],
        |_, scrape| one(from_size(scrape.proxy.clients.connections())),
        "open client connections",
    ),
    gauge(
        "penstock_max_connections",
        &[],
        |_, scrape| one(from_size(scrape.generation.config.limits.connections)),
        "limit of penstock_connections: `limits.connections`",
    ),
    counter(
        "penstock_connections_closed_total",
        &["reason"],
        |_, scrape| {
            let reasons = scrape.proxy.clients.close_reasons();
            let counts = reasons.counts();
            counts.map(|(reason, count)| number(&[reason.name()], to_sample(count))).collect()
        },
        "client connections closed without a response; `reason` is tls (the handshake failed), proxy_header, too_slow (`limits.header_timeout`), http2 (a protocol violation or a limit of `limits.http2`) or ca_revoked (a CA was removed from `client_ca`)",
    ),
    gauge(
        "penstock_tls_certificate_expiry_timestamp_seconds",
        &["listen"],
        |_, scrape| {
            let certificates = scrape.proxy.clients.certificates();
            certificates.map(|(listen, at)| number(&[&listen], to_sample(at))).collect()
        },
        "expiry time of a listener's certificate, in seconds since 1970",
    ),
    counter(
        "penstock_tls_certificate_failures_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.clients.certificate_failures())),
        "changed certificates that could not be loaded; the previous one stays in use",
    ),
    gauge(
        "penstock_models",
        &[],
        |_, scrape| one(from_size(scrape.fleet.models().len())),
        "known models of all backends",
    ),
];

/// The bounded queues behind the access log and the span exporter, the token ledger and live usage.
pub(super) const SINK_ROWS: &[MetricRow] = &[
    counter(
        "penstock_access_log_lines_total",
        &["result"],
        |_, scrape| by_result("written", scrape.access_log.map(|log| log.deliveries())),
        "lines of the access log; `result` is written, dropped (8,192 lines were queued) or failed (the write failed)",
    ),
    counter(
        "penstock_spans_total",
        &["result"],
        |_, scrape| by_result("sent", scrape.spans.map(|spans| spans.deliveries())),
        "trace spans; `result` is sent, dropped (4,096 spans were queued) or failed (the collector did not accept them)",
    ),
    counter(
        "penstock_ledger_writes_total",
        &["result"],
        |_, scrape| writes(&report(scrape)),
        "writes of the token ledger; `result` is written, locked (another process held the file), full (the disk was) or unavailable (no permission, no folder, an I/O error)",
    ),
    gauge(
        "penstock_ledger_pending_rows",
        &[],
        |_, scrape| one(from_size(report(scrape).pending)),
        "rows of the token ledger that wait to be written",
    ),
    counter(
        "penstock_ledger_merged_rows_total",
        &[],
        |_, scrape| one(to_sample(report(scrape).shrunk)),
        "rows of the token ledger that were added to the next minute or day, because more than `ledger.max_rows` were waiting",
    ),
    counter(
        "penstock_ledger_other_requests_total",
        &[],
        |_, scrape| one(to_sample(report(scrape).overflowed)),
        "requests that the token ledger counts under the model and key `other`, because there are more than `ledger.max_rows` combinations",
    ),
    counter(
        "penstock_ledger_quarantined_files_total",
        &[],
        |_, scrape| one(to_sample(report(scrape).quarantined)),
        "damaged files of the token ledger that were moved aside",
    ),
    gauge(
        "penstock_usage_streams",
        &[],
        |_, scrape| one(from_size(scrape.usage.map_or(0, LiveUsage::streams))),
        "open usage streams; `usage.streams` limits them",
    ),
    counter(
        "penstock_usage_streams_refused_total",
        &[],
        |_, scrape| one(to_sample(scrape.usage.map_or(0, LiveUsage::refused_streams))),
        "usage streams refused because of `usage.streams`",
    ),
];

/// The process and the build.
pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_build_info",
        &["version"],
        |_, _| vec![number(&[env!("CARGO_PKG_VERSION")], 1.0)],
        "always 1",
    ),
    gauge(
        "penstock_process_start_time_seconds",
        &[],
        |metrics, _| one(to_sample(metrics.started_at)),
        "start time of the process, in seconds since 1970",
    ),
    counter(
        "penstock_process_cpu_seconds_total",
        &[],
        |_, _| from_option(process::cpu_seconds()),
        "CPU time of the process; Linux only",
    ),
    gauge(
        "penstock_process_resident_bytes",
        &[],
        |_, _| from_option(process::resident_bytes().map(to_sample)),
        "resident memory of the process; Linux only",
    ),
    gauge(
        "penstock_process_open_files",
        &[],
        |_, _| from_option(process::open_files().map(to_sample)),
        "open file descriptors; Linux only",
    ),
    gauge(
        "penstock_process_max_open_files",
        &[],
        |_, _| from_option(process::max_open_files().map(to_sample)),
        "limit of open file descriptors; Linux only",
    ),
];

fn by_result(delivered: &str, counts: Option<Deliveries>) -> Samples {
    let counts = counts.unwrap_or_default();
    vec![
        number(&[delivered], to_sample(counts.delivered)),
        number(&["dropped"], to_sample(counts.dropped)),
        number(&["failed"], to_sample(counts.failed)),
    ]
}

fn report(scrape: &Scrape<'_>) -> LedgerReport {
    scrape.usage.map(|usage| usage.ledger().figures()).unwrap_or_default()
}

fn writes(report: &LedgerReport) -> Samples {
    let mut samples = vec![number(&["written"], to_sample(report.written))];
    samples.extend(report.failed.iter().map(|(kind, count)| number(&[kind], to_sample(*count))));
    samples
}
