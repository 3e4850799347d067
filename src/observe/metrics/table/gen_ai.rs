//! Metrics by OpenTelemetry's conventions for generative AI; only of complete responses.

use prometheus::Histogram;

use super::super::Metrics;
use super::super::requests::GenAiSeries;
use super::super::row::{MetricRow, histogram};
use super::super::samples::{Samples, distribution};

const LABELS: &[&str] = &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"];

pub(super) const ROWS: &[MetricRow] = &[
    histogram(
        "gen_ai_server_request_duration_seconds",
        LABELS,
        |metrics, _| gen_ai(metrics, |series| &series.took),
        "time to the end of a response; like all gen_ai metrics, counts complete responses only",
    ),
    histogram(
        "gen_ai_server_time_to_first_token_seconds",
        LABELS,
        |metrics, _| gen_ai(metrics, |series| &series.first_token),
        "time to the first token of a stream",
    ),
    histogram(
        "gen_ai_server_time_per_output_token_seconds",
        LABELS,
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
            let mut samples = tokens(metrics, "input", |series| &series.input);
            samples.extend(tokens(metrics, "output", |series| &series.output));
            samples
        },
        "tokens per request as counted by the engine; `gen_ai_token_type` is input or output",
    ),
];

fn gen_ai(metrics: &Metrics, pick: impl Fn(&GenAiSeries) -> &Histogram) -> Samples {
    let all = metrics.requests.gen_ai.sorted();
    all.iter()
        .filter_map(|(key, series)| {
            let model = metrics.model_names.name(key.model);
            distribution(&[key.operation, key.provider, &model], pick(series))
        })
        .collect()
}

fn tokens(metrics: &Metrics, kind: &str, pick: impl Fn(&GenAiSeries) -> &Histogram) -> Samples {
    let mut samples = gen_ai(metrics, pick);
    samples.iter_mut().for_each(|sample| sample.labels.push(kind.to_owned()));
    samples
}
