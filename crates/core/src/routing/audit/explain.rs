//! A decision with every candidate's scores, or the reason for its rejection.

use std::collections::BTreeMap;

use penstock_api::units::to_millis;
use penstock_config::Strategy;
use penstock_scoring::{Candidate, Needs};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::trace::{Pass, Trace};
use crate::fleet::Model;
use crate::routing::filters::RejectReason;
use crate::routing::prediction::PredictedRequest;
use crate::routing::random::{Peek, RandomSource};
use crate::routing::scratch::RouteContext;
use crate::routing::strategies::smart;
use crate::routing::{RouteError, RouteInput, Router, RoutingDecision, Scratch, filters, readings};

/// A backend that serves one of the considered models. Of one that a capture only names with the
/// reason for its rejection, all else is absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CandidateReport {
    pub backend: String,
    /// The model that the backend would receive.
    pub model: String,
    /// Its score by the `smart` formula, 0..=100; only if it may take the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Its score by each scorer of the weighted strategy, 0..=1, before weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<BTreeMap<String, f64>>,
    /// The weighted sum of these scores, 0..=1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// Leading blocks of the prompt it is believed to have cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_blocks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_blocks: Option<u32>,
    /// The age of its engine's last sample; only if scorers decide, and absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry_age_ms: Option<f64>,
    /// The reliability of its telemetry: unknown, fresh, stale or failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<String>,
    /// The operation that the request is converted to, if the backend does not serve its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub converted_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Its weight, if the weights of the model's backends differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The latency that `smart` scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// The residency of the model: unknown, loadable, sleeping or resident. This and the next three
    /// are present only if the strategy reads them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residency: Option<String>,
    /// The models that loading it would evict: nothing, idle or in_use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicts: Option<String>,
    /// Requests for the model in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_in_flight: Option<u32>,
    /// The number of them that run at a time; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Its predicted latency, if latencies are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<String>,
    /// Its margin below the objectives of the request and of its streams; negative if it misses
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_ms: Option<f64>,
    /// The short name of the reason for its rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
    /// The reason for its rejection, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A decision with everything that went into it.
#[derive(Debug)]
pub struct Explanation {
    /// The decision, or the error if no backend gets the request.
    pub result: Result<RoutingDecision, RouteError>,
    /// Every backend that serves the model or one of its fallbacks.
    pub candidates: Vec<CandidateReport>,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count")]
fn to_count(reading: f64) -> u32 {
    reading as u32
}

impl Router {
    /// Decides as [`Router::route`] does, and explains the decision.
    pub fn explain(&self, input: &RouteInput<'_>, random: &mut impl RandomSource) -> Explanation {
        let (mut scratch, mut trace) = (Scratch::default(), Trace::default());
        let result = self.route(input, random, &mut scratch, &mut trace);
        // Fallbacks that were not needed are shown as they would have been considered.
        let mut peek = Peek { topology: input.fleet, rng: SmallRng::seed_from_u64(0) };
        let context =
            &mut RouteContext { random: &mut peek, scratch: &mut scratch, recorder: &mut trace };
        for entry in self.names.chain(input.model, input.fleet, input.split) {
            let (name, input) = self.fall_back(input, entry);
            let id = input.fleet.model_id(name);
            if id.is_some_and(|id| context.recorder.pass(id).is_none()) {
                self.pick(name, &input, context);
            }
        }
        let passes = trace
            .passes()
            .iter()
            .filter_map(|pass| Some(self.reports(input, input.fleet.model(pass.model)?, pass)));
        Explanation { result, candidates: passes.flatten().collect() }
    }

    fn reports(&self, input: &RouteInput<'_>, model: &Model, pass: &Pass) -> Vec<CandidateReport> {
        let strategy = self.strategy_of(model, input.now);
        let request = PredictedRequest::of(input);
        let reports = (0_u32..).zip(&model.serving).map(|(row, serving)| {
            let one = pass.candidate(row).copied();
            // The filters reject a backend before its readings are taken.
            let one = one.unwrap_or_else(|| readings::read_all(serving, input, row));
            let reason = pass.reason(row);
            // `Assumed` rejects only as long as another backend is known to have what is needed.
            let is_open = reason.is_none_or(|reason| reason == RejectReason::Assumed);
            let converted_to = serving.conversion(input.request.operation);
            let predicted = self.predicts().then(|| request.on(serving, one.matched_blocks));
            CandidateReport {
                predicted: predicted.map(|one| input.objectives.compare_text(&one)),
                prediction: predicted.map(|one| one.to_value()),
                headroom_ms: predicted.and_then(|one| Some(input.objectives.headroom(&one)?.ms)),
                backend: serving.state.name.to_string(),
                assumed: Some(is_open && !filters::is_known(input, serving)),
                converted_to: converted_to.map(|operation| operation.name().to_owned()),
                excluded: reason.map(|reason| reason.name().to_owned()),
                reason: reason.map(|reason| reason.to_text(input)),
                ..self.report(strategy, &model.name, pass, &one)
            }
        });
        reports.collect()
    }

    pub(super) fn report(
        &self,
        strategy: Strategy,
        model: &str,
        pass: &Pass,
        one: &Candidate,
    ) -> CandidateReport {
        let weighted = self.weighted_in(strategy);
        let scores = weighted.and_then(|weighted| pass.scores(one.row, weighted.profile()));
        let is_scored = scores.is_some();
        let is_candidate = pass.reason(one.row).is_none();
        let reads_residency = strategy == Strategy::Deployment
            || weighted
                .is_some_and(|weighted| weighted.profile().needs().contains(Needs::RESIDENCY));
        let shown = Some(one).filter(|_| reads_residency);
        CandidateReport {
            model: model.to_owned(),
            score: (is_candidate && strategy == Strategy::Smart)
                .then(|| f64::from(smart::points(&one, self.weights())) / 100.0),
            scores: scores.map(|scores| {
                scores.into_iter().map(|(name, one)| (name.to_owned(), one)).collect()
            }),
            total: pass.total(one.row),
            matched_blocks: is_scored.then_some(one.matched_blocks),
            prompt_blocks: is_scored.then_some(one.prompt_blocks),
            telemetry_age_ms: weighted
                .and(one.telemetry_age)
                .map(|age| to_millis(age.to_duration())),
            telemetry: weighted.map(|_| one.telemetry.name().to_owned()),
            assumed: Some(false),
            priority: Some(one.priority),
            in_flight: Some(to_count(one.in_flight)),
            weight: one.weight.map(to_count),
            latency_ms: Some(to_millis(one.latency.to_duration())),
            residency: shown.map(|one| one.residency.name().to_owned()),
            evicts: shown.map(|one| one.eviction.name().to_owned()),
            model_in_flight: shown.and_then(|one| one.model_in_flight).map(to_count),
            slots: shown.and_then(|one| one.slots).map(to_count),
            ..CandidateReport::default()
        }
    }
}
