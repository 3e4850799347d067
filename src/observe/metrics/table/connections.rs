//! Metrics of the data port: requests and bodies in memory, client connections, certificates.

use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{from_size, number, one, to_sample};
use crate::downstream::close_reasons::CloseReason;

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_in_flight",
        &[],
        |_, scrape| one(from_size(scrape.proxy.in_flight())),
        "requests in flight on the data port",
    ),
    gauge(
        "penstock_held_body_bytes",
        &[],
        |_, scrape| one(from_size(scrape.proxy.held_bytes())),
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
        |_, scrape| one(from_size(scrape.proxy.held_response_bytes())),
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
            let rows = scrape.proxy.encoded_bodies().rows();
            rows.map(|(coding, result, count)| number(&[coding, result], to_sample(count)))
                .collect()
        },
        "request bodies that came with a `Content-Encoding`; `too_large`: refused because of `limits.max_body_size`, `limits.max_body_ratio` or `limits.buffered_bodies`",
    ),
    gauge(
        "penstock_response_ids",
        &[],
        |_, scrape| one(from_size(scrape.proxy.response_ids())),
        "stored responses whose backend is known; the limit is `limits.response_ids`",
    ),
    counter(
        "penstock_response_ids_evicted_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.evicted_response_ids())),
        "stored responses whose backend was forgotten to make room: requests for them go to all backends, or are a 404 where there are client keys",
    ),
    gauge(
        "penstock_session_homes",
        &[],
        |_, scrape| one(from_size(scrape.proxy.session_homes().len())),
        "sessions whose last backend is known; the limit is `limits.session_homes`",
    ),
    counter(
        "penstock_session_homes_evicted_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.session_homes().evicted())),
        "sessions whose last backend was forgotten to make room: their next request is routed as their first one",
    ),
    gauge(
        "penstock_commands",
        &[],
        |_, scrape| one(from_size(scrape.proxy.commands())),
        "pulls, creates, copies, deletes, pushes and uploads of Ollama clients that run now; the limit is `ollama.commands`, refused ones are in penstock_errors_total",
    ),
    gauge(
        "penstock_connections",
        &[],
        |_, scrape| one(from_size(scrape.proxy.clients().connections())),
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
            let reasons = scrape.proxy.clients().close_reasons();
            let count = |reason: &CloseReason| to_sample(reasons.count(*reason));
            CloseReason::ALL.iter().map(|reason| number(&[reason.name()], count(reason))).collect()
        },
        "client connections closed without a response; `reason` is tls (the handshake failed), proxy_header, too_slow (`limits.header_timeout`), http2 (a protocol violation or a limit of `limits.http2`) or ca_revoked (a CA was removed from `client_ca`)",
    ),
    gauge(
        "penstock_tls_certificate_expiry_timestamp_seconds",
        &["listen"],
        |_, scrape| {
            let certificates = scrape.proxy.clients().certificates();
            certificates.map(|(listen, at)| number(&[&listen], to_sample(at))).collect()
        },
        "expiry time of a listener's certificate, in seconds since 1970",
    ),
    counter(
        "penstock_tls_certificate_failures_total",
        &[],
        |_, scrape| one(to_sample(scrape.proxy.clients().certificate_failures())),
        "changed certificates that could not be loaded; the previous one stays in use",
    ),
    gauge(
        "penstock_models",
        &[],
        |_, scrape| one(from_size(scrape.fleet.models().len())),
        "known models of all backends",
    ),
];
