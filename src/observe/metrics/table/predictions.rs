//! Metrics of predictions and their errors. Without `routing.predict` there are no samples.

use penstock_core::fleet::Serving;
use penstock_predict::PredictorReport;

use super::super::Scrape;
use super::super::row::{MetricRow, gauge};
use super::super::samples::Samples;
use super::models::{LABELS, per_model, per_model_by};

const MICRO: f64 = 1e-6;

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_prediction_error_ratio",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| (one.first_token_count > 0.0).then_some(one.error)),
        "mean absolute error of predicted times to the first token, as a share of the truth (MAPE), of about the last 50",
    ),
    gauge(
        "penstock_prediction_coverage_ratio",
        LABELS,
        |_, scrape| {
            per_predictor(scrape, |one| (one.first_token_count > 0.0).then_some(one.coverage))
        },
        "share of about the last 200 first tokens that came within the predicted 90th percentile",
    ),
    gauge(
        "penstock_prediction_bias_ratio",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.bias.exp())),
        "factor by which predictions are corrected: above 1 where the engine is slower than its steps explain",
    ),
    gauge(
        "penstock_prediction_trusted",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(f64::from(u8::from(one.is_trusted)))),
        "1 once enough steps and first tokens were seen, and predictions hold; requests are refused by trusted predictions only",
    ),
    gauge(
        "penstock_predicted_backlog_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.backlog_us * MICRO)),
        "prompts that were sent to the backend and have no first token: how long they take",
    ),
    gauge(
        "penstock_predicted_step_seconds",
        LABELS,
        |_, scrape| {
            per_predictor(scrape, |one| {
                Some(one.coefficients.step_us(one.stream_count, one.context_tokens) * MICRO)
            })
        },
        "how long a step of the engine takes with the streams that it has now: the time between two tokens of a stream",
    ),
    gauge(
        "penstock_predicted_step_base_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.coefficients.base_us * MICRO)),
        "how long a step of the engine takes without anything in it, as learned",
    ),
    gauge(
        "penstock_predicted_step_stream_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.coefficients.decode_us * MICRO)),
        "by how much a stream makes a step longer, as learned",
    ),
    gauge(
        "penstock_predicted_step_context_token_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.coefficients.context_us * MICRO)),
        "by how much a token in the context of a stream makes a step longer, as learned",
    ),
    gauge(
        "penstock_predicted_step_batch_ratio",
        &["backend", "model", "requests"],
        |_, scrape| per_model_by(scrape, |row| Some(batches(&report(row, scrape)?))),
        "steps of a batch of 1 to 8 requests in relation to what base, streams and contexts come to, as learned",
    ),
    gauge(
        "penstock_predicted_prefill_token_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.coefficients.token_us * MICRO)),
        "by how much a new prompt token makes a step longer, as learned",
    ),
    gauge(
        "penstock_predicted_front_end_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.front_end_us * MICRO)),
        "network and front end before the engine starts with a request, as learned",
    ),
    gauge(
        "penstock_predicted_slots",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.slots).filter(|slots| slots.is_finite())),
        "requests in the engine's batch at most, reported or learned; absent while nothing shows it",
    ),
];

fn per_predictor(scrape: &Scrape<'_>, read: impl Fn(&PredictorReport) -> Option<f64>) -> Samples {
    per_model(scrape, |row| read(&report(row, scrape)?))
}

fn report(row: &Serving, scrape: &Scrape<'_>) -> Option<PredictorReport> {
    let predictor = row.model_state.used_predictor()?;
    Some(predictor.report(scrape.now.0 as f64))
}

/// The ratios of small batches, by the size of the batch.
fn batches(report: &PredictorReport) -> impl Iterator<Item = (String, f64)> + use<> {
    let ratios = (1_u8..).zip(report.coefficients.batch_ratios.all());
    ratios.map(|(requests, ratio)| (requests.to_string(), ratio))
}
