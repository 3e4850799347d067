//! Metrics of the models on each backend, and of predictions and their errors.
//! `limits.metric_models` bounds the labels per backend; a missing value has no sample. Without
//! `routing.predict` predictions have none.

use penstock_core::fleet::{Serving, Topology};
use penstock_predict::PredictorReport;
use penstock_scoring::Residency;

use super::super::Scrape;
use super::super::row::{MetricRow, gauge};
use super::super::samples::{Samples, number, to_sample};

const LABELS: &[&str] = &["backend", "model"];
const MICRO: f64 = 1e-6;

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_model_resident",
        LABELS,
        |_, scrape| resident(scrape),
        "1 while the backend has the model in memory, 0 while it would load or wake it; absent while that is not known; at most `limits.metric_models` per backend, those in memory first",
    ),
    gauge(
        "penstock_model_vram_bytes",
        LABELS,
        |_, scrape| per_model(scrape, |row| row.model_state.vram().map(|vram| to_sample(vram.0))),
        "VRAM that the model occupies, where the engine reports it",
    ),
    gauge(
        "penstock_model_in_flight",
        LABELS,
        |_, scrape| {
            per_model(scrape, |row| {
                Some(row.model_state.load.in_flight()).filter(|count| *count > 0).map(f64::from)
            })
        },
        "requests for the model dispatched to the backend that have not ended; absent without one",
    ),
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
        "penstock_prediction_idle_bias_ratio",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.idle_bias.exp())),
        "the same factor while the engine has nothing else to do: far above 1 where all first tokens have become late",
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
        "penstock_predicted_tokenizer_token_seconds",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.tokenizer_token_us * MICRO)),
        "further time there per token of the prompt, cached or not, as learned",
    ),
    gauge(
        "penstock_predicted_slots",
        LABELS,
        |_, scrape| per_predictor(scrape, |one| Some(one.slots).filter(|slots| slots.is_finite())),
        "requests in the engine's batch at most, reported or learned; absent while nothing shows it",
    ),
];

fn resident(scrape: &Scrape<'_>) -> Samples {
    let residency = |row: &Serving| row.residency(scrape.now);
    let mut samples = Bounded::new(scrape);
    // Resident models first: they must not be left out when the limit of samples is reached.
    samples.add(|row| (residency(row) == Residency::Resident).then_some(1.0));
    let is_elsewhere =
        |row: &Serving| matches!(residency(row), Residency::Loadable | Residency::Sleeping);
    samples.add(|row| is_elsewhere(row).then_some(0.0));
    samples.all
}

/// One sample for each model of each backend for which `read` returns a value.
fn per_model(scrape: &Scrape<'_>, read: impl Fn(&Serving) -> Option<f64>) -> Samples {
    let mut samples = Bounded::new(scrape);
    samples.add(read);
    samples.all
}

/// The same, with the values of a further label.
fn per_model_by<I: IntoIterator<Item = (String, f64)>>(
    scrape: &Scrape<'_>,
    read: impl Fn(&Serving) -> Option<I>,
) -> Samples {
    let mut samples = Bounded::new(scrape);
    samples.for_each(read, |all, [backend, model], found| {
        all.extend(found.into_iter().map(|(by, value)| number(&[backend, model, &by], value)));
    });
    samples.all
}

/// Samples of at most `limits.metric_models` models per backend.
struct Bounded<'a> {
    fleet: &'a Topology,
    /// The remaining number of models for each backend.
    room: Vec<usize>,
    all: Samples,
}

impl<'a> Bounded<'a> {
    fn new(scrape: &Scrape<'a>) -> Self {
        let limit = scrape.generation.config.limits.metric_models;
        let room = vec![limit; scrape.fleet.backends.len()];
        Self { fleet: scrape.fleet, room, all: Samples::new() }
    }

    fn add(&mut self, read: impl Fn(&Serving) -> Option<f64>) {
        self.for_each(read, |all, labels, value| all.push(number(&labels, value)));
    }

    fn for_each<T>(
        &mut self,
        read: impl Fn(&Serving) -> Option<T>,
        push: impl Fn(&mut Samples, [&str; 2], T),
    ) {
        for model in self.fleet.models() {
            for row in &model.serving {
                let Some(room) = self.room.get_mut(usize::from(row.backend)) else { continue };
                let Some(value) = read(row).filter(|_| *room > 0) else { continue };
                *room -= 1;
                push(&mut self.all, [&row.state.name, &model.name], value);
            }
        }
    }
}

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
