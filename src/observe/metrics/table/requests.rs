//! Metrics of requests, attempts and decisions, and those of OpenTelemetry's conventions for
//! generative AI.

use std::sync::atomic::Ordering;

use penstock_api::{ERROR_CODES, Operation};
use penstock_core::routing::RejectReason;
use prometheus::Histogram;

use super::super::Metrics;
use super::super::requests::GenAiSeries;
use super::super::row::{MetricRow, counter, histogram};
use super::super::samples::{Samples, counter_value, distribution, number, to_sample};
use super::BACKEND;

const GEN_AI: &[&str] = &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"];

pub(super) const ROWS: &[MetricRow] = &[
    counter(
        "penstock_requests_total",
        &["model", "backend", "operation", "status", "outcome"],
        |metrics, _| requests(metrics),
        "finished requests; `outcome` is ok, client (4xx), busy (429, 503), fault or cancel (the client disconnected)",
    ),
    histogram(
        "penstock_request_duration_seconds",
        &["model", "backend", "outcome"],
        |metrics, _| durations(metrics),
        "time from the arrival of a request to the end of its response",
    ),
    histogram(
        "penstock_ttft_seconds",
        BACKEND,
        |metrics, _| {
            let all = metrics.backends.all();
            all.iter()
                .filter_map(|series| distribution(&[&series.name], &series.first_token))
                .collect()
        },
        "time to first token (TTFT): from the arrival of a request to the first token of its stream, observed when the token arrives",
    ),
    counter(
        "penstock_stream_tokens_total",
        BACKEND,
        |metrics, _| {
            let count =
                |count: &std::sync::atomic::AtomicU64| to_sample(count.load(Ordering::Relaxed));
            let all = metrics.backends.all();
            all.iter().map(|series| number(&[&series.name], count(&series.stream_tokens))).collect()
        },
        "token events relayed in streams, counted as they pass",
    ),
    counter(
        "penstock_tokens_total",
        &["model", "backend", "type"],
        |metrics, _| tokens(metrics),
        "tokens as counted by the engines; `type` is input, output, cached (part of input) or expected (what the prefix index expected to be cached, for responses that report cached tokens)",
    ),
    counter(
        "penstock_attempts_total",
        &["backend", "outcome", "code"],
        |metrics, _| attempts(metrics),
        "finished attempts; `code` is the error code of a failed attempt, or none",
    ),
    counter(
        "penstock_retries_total",
        &[],
        |metrics, _| counter_value(&metrics.retries),
        "retries: further attempts of a request, on another backend",
    ),
    counter(
        "penstock_moves_total",
        BACKEND,
        |metrics, _| {
            let count =
                |count: &std::sync::atomic::AtomicU64| to_sample(count.load(Ordering::Relaxed));
            let all = metrics.backends.all();
            all.iter().map(|series| number(&[&series.name], count(&series.moves))).collect()
        },
        "streams that waited for their first token and were sent elsewhere (`routing.move_waiting`), by the backend they left",
    ),
    counter(
        "penstock_usage_cut_total",
        &["backend", "count"],
        |metrics, _| cut_counts(metrics),
        "token counts that engines reported above what their request can have had, and that were cut to it; `count` is prompt, completion or cached",
    ),
    counter(
        "penstock_conversions_total",
        &["from", "to"],
        |metrics, _| {
            let all = metrics.conversions.all();
            all.map(|(from, to, count)| number(&[from, to], to_sample(count))).collect()
        },
        "attempts whose request was converted to another operation, because the backend does not serve that of the client",
    ),
    counter(
        "penstock_fallbacks_total",
        &[],
        |metrics, _| counter_value(&metrics.fallbacks),
        "requests served by a fallback model",
    ),
    counter(
        "penstock_context_shifts_total",
        &[],
        |metrics, _| counter_value(&metrics.context_shifts),
        "requests shortened to fit a context (`context_shift`)",
    ),
    counter(
        "penstock_context_shift_dropped_messages_total",
        &[],
        |metrics, _| counter_value(&metrics.dropped_messages),
        "messages dropped from them",
    ),
    counter(
        "penstock_requests_without_total",
        &["dropped"],
        |metrics, _| {
            let read =
                |count: &std::sync::atomic::AtomicU64| to_sample(count.load(Ordering::Relaxed));
            let counts = [("tools", &metrics.without_tools), ("vision", &metrics.without_vision)];
            counts.map(|(dropped, count)| number(&[dropped], read(count))).into()
        },
        "requests sent once more without tools or images, because the model cannot do it (`routing.retry_without`)",
    ),
    counter(
        "penstock_assumed_capability_total",
        &[],
        |metrics, _| counter_value(&metrics.assumed),
        "decisions for a backend that is not known to have a required capability",
    ),
    counter(
        "penstock_panic_decisions_total",
        &[],
        |metrics, _| counter_value(&metrics.panics),
        "decisions that included unhealthy backends, because fewer than `routing.panic_threshold` were healthy",
    ),
    counter(
        "penstock_decisions_without_telemetry_total",
        &[],
        |metrics, _| counter_value(&metrics.without_telemetry),
        "`weighted` decisions over backends without fresh telemetry; they use penstock's own in-flight counts only",
    ),
    counter(
        "penstock_errors_total",
        &["code"],
        |metrics, _| {
            let rows = ERROR_CODES.iter().zip(metrics.errors.read());
            rows.map(|(row, count)| number(&[row.name], to_sample(count))).collect()
        },
        "error responses generated by penstock, including those of limits",
    ),
    counter(
        "penstock_rejections_total",
        &["reason"],
        |metrics, _| {
            let names = RejectReason::NAMES.iter().zip(&metrics.rejections);
            names
                .map(|(name, count)| number(&[name], to_sample(count.load(Ordering::Relaxed))))
                .collect()
        },
        "backends that could not take a request which none could take, by the reason against each, as in `penstock explain`",
    ),
];

/// By OpenTelemetry's conventions; only of complete responses.
pub(super) const GEN_AI_ROWS: &[MetricRow] = &[
    histogram(
        "gen_ai_server_request_duration_seconds",
        GEN_AI,
        |metrics, _| gen_ai(metrics, |series| &series.took),
        "time to the end of a response; like all gen_ai metrics, counts complete responses only",
    ),
    histogram(
        "gen_ai_server_time_to_first_token_seconds",
        GEN_AI,
        |metrics, _| gen_ai(metrics, |series| &series.first_token),
        "time to the first token of a stream",
    ),
    histogram(
        "gen_ai_server_time_per_output_token_seconds",
        GEN_AI,
        |metrics, _| gen_ai(metrics, |series| &series.per_token),
        "time per token of a stream after the first",
    ),
    histogram(
        "gen_ai_client_token_usage",
        &[
            "gen_ai_operation_name",
            "gen_ai_provider_name",
            "gen_ai_request_model",
            "gen_ai_token_type",
        ],
        |metrics, _| {
            let mut samples = gen_ai_tokens(metrics, "input", |series| &series.input);
            samples.extend(gen_ai_tokens(metrics, "output", |series| &series.output));
            samples
        },
        "tokens per request as counted by the engine; `gen_ai_token_type` is input or output",
    ),
];

fn cut_counts(metrics: &Metrics) -> Samples {
    let mut samples = Samples::new();
    for series in metrics.backends.all() {
        for (count, cuts) in series.cut_counts() {
            samples.push(number(&[&series.name, count], to_sample(cuts)));
        }
    }
    samples
}

fn requests(metrics: &Metrics) -> Samples {
    let mut samples = Vec::new();
    for (key, series) in metrics.requests.by_labels.sorted() {
        let labels = [
            &*metrics.model_names.name(key.model),
            &*metrics.backend_names.name(key.backend),
            key.operation.map_or("none", Operation::name),
            &key.status.to_string(),
            key.outcome.name(),
        ];
        samples.push(number(&labels, to_sample(series.count.load(Ordering::Relaxed))));
    }
    samples
}

fn durations(metrics: &Metrics) -> Samples {
    let all = metrics.requests.durations.sorted();
    all.iter()
        .filter_map(|(key, took)| {
            let model = metrics.model_names.name(key.model);
            let backend = metrics.backend_names.name(key.backend);
            distribution(&[&model, &backend, key.outcome.name()], took)
        })
        .collect()
}

fn attempts(metrics: &Metrics) -> Samples {
    let mut samples = Vec::new();
    for series in metrics.backends.all() {
        samples.extend(series.attempts().map(|(outcome, code, count)| {
            number(&[&series.name, outcome, code], to_sample(count))
        }));
    }
    samples
}

fn tokens(metrics: &Metrics) -> Samples {
    let mut samples = Vec::new();
    for (key, series) in metrics.requests.tokens.sorted() {
        let model = metrics.model_names.name(key.model);
        let backend = metrics.backend_names.name(key.backend);
        let kinds = [
            ("input", &series.input),
            ("output", &series.output),
            ("cached", &series.cached),
            ("expected", &series.expected),
        ];
        for (kind, counter) in kinds {
            let count = counter.load(Ordering::Relaxed);
            if count > 0 {
                samples.push(number(&[&model, &backend, kind], to_sample(count)));
            }
        }
    }
    samples
}

fn gen_ai(metrics: &Metrics, pick: impl Fn(&GenAiSeries) -> &Histogram) -> Samples {
    let all = metrics.requests.gen_ai.sorted();
    all.iter()
        .filter_map(|(key, series)| {
            let model = metrics.model_names.name(key.model);
            distribution(&[key.operation, key.provider, &model], pick(series))
        })
        .collect()
}

fn gen_ai_tokens(
    metrics: &Metrics,
    kind: &str,
    pick: impl Fn(&GenAiSeries) -> &Histogram,
) -> Samples {
    let mut samples = gen_ai(metrics, pick);
    samples.iter_mut().for_each(|sample| sample.labels.push(kind.to_owned()));
    samples
}
