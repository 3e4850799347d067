//! What is told of requests.

use super::super::row::{MetricRow, counter, histogram};
use super::super::samples;
use super::BACKEND;

pub(super) const ROWS: [MetricRow; 12] = [
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
        "penstock_retries_total",
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
        "penstock_decisions_without_telemetry_total",
        &[],
        samples::untold,
        "decisions by `weighted` over backends of which none had told its load lately: by penstock's own requests in flight alone",
    ),
    counter(
        "penstock_errors_total",
        &["code"],
        samples::errors,
        "errors penstock answered with itself, limits that were hit among them",
    ),
];
