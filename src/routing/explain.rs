//! A decision laid open: every candidate with its score or the reason it was left out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::card::Told;
use super::filters::{self, Fit, RejectReason};
use super::notes::SILENT;
use super::readings;
use super::strategy;
use super::weighted::Marks;
use super::{Chance, RouteError, RouteInput, Router, RoutingDecision, Scratch};
use crate::config::Strategy;
use crate::fleet::{Model, Serving, Standing};
use crate::units::to_millis;

/// One backend that serves a model in question.
#[derive(Debug, Clone, Serialize)]
pub struct CandidateReport {
    /// Its name.
    pub backend: String,
    /// The model it would be asked for.
    pub model: String,
    /// Its score by the `smart` formula, 0..=100; only when it may take the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// What each scorer of the weighted strategy makes of it, 0..=1, before weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<BTreeMap<&'static str, f64>>,
    /// The sum of those by weight, 0..=1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// Leading blocks of the prompt it is believed to have cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_blocks: Option<u32>,
    /// Full blocks of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_blocks: Option<u32>,
    /// How old what its engine last told is; only where that counts, and absent before it told any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry_age_ms: Option<f64>,
    /// How far that can be relied on: unknown, fresh, stale or failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<&'static str>,
    /// Whether a needed capability is assumed, not known.
    pub assumed: bool,
    /// Its priority.
    pub priority: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// The latency it is scored by.
    pub latency_ms: f64,
    /// Why it was left out: a short name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<&'static str>,
    /// Why it was left out: in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A decision with everything that went into it.
#[derive(Debug)]
pub struct Explanation {
    /// Where the request goes, or why nowhere.
    pub result: Result<RoutingDecision, RouteError>,
    /// Every backend that serves the model or one of its fallbacks.
    pub candidates: Vec<CandidateReport>,
}

impl Router {
    /// Decides as [`Router::route`] does, and says why.
    pub fn explain(&self, input: &RouteInput<'_>, chance: &mut impl Chance) -> Explanation {
        let mut names = vec![self.names.resolve(input.model)];
        let chain = self.names.chain(input.model).unwrap_or_default();
        names.extend(chain.iter().map(|entry| self.names.resolve(entry)));
        let candidates = names.iter().flat_map(|name| self.report(name, input)).collect();
        let result = self.route(input, chance, &mut Scratch::default());
        Explanation { result, candidates }
    }

    fn report(&self, name: &str, input: &RouteInput<'_>) -> Vec<CandidateReport> {
        let topology = input.fleet;
        let Some(model) = topology.model_id(name).and_then(|id| topology.model(id)) else {
            return Vec::new();
        };
        let streaming = input.request.streaming;
        let in_panic = self.is_in_panic(model);
        let marks = self.marks((input, model), in_panic);
        let report = |(row, candidate): (u32, &Serving)| {
            let scored = marks.iter().find(|marks| marks.row == row);
            let verdict = verdict(input, candidate, in_panic);
            let told = self.weighted.as_ref();
            let told = told.map(|_| Told::of(&readings::told(candidate, input.now)));
            let is_silent = told.is_some_and(|told| told.standing == Standing::Failing)
                && (scored.is_none() && !marks.is_empty() && verdict.is_ok());
            let points = strategy::points(&(row, candidate), streaming, &self.weights);
            CandidateReport {
                backend: candidate.state.name.to_string(),
                model: name.to_owned(),
                score: (verdict.is_ok() && self.strategy == Strategy::Smart)
                    .then(|| f64::from(points) / 100.0),
                scores: scored.map(|marks| marks.scores.iter().copied().collect()),
                total: scored.map(|marks| marks.total),
                matched_blocks: scored.map(|marks| marks.matched_blocks),
                prompt_blocks: scored.map(|marks| marks.prompt_blocks),
                telemetry_age_ms: told.and_then(|told| told.age_ms()),
                telemetry: told.map(|told| told.standing.name()),
                assumed: verdict.is_ok_and(|fit| !fit.is_known),
                priority: candidate.priority,
                in_flight: candidate.state.load.in_flight(),
                latency_ms: to_millis(strategy::latency(candidate, streaming)),
                excluded: verdict.err().map(RejectReason::name).or(is_silent.then_some(SILENT.0)),
                reason: (verdict.err().map(|reason| in_words(reason, input)))
                    .or(is_silent.then(|| SILENT.1.to_owned())),
            }
        };
        (0_u32..).zip(&model.serving).map(report).collect()
    }

    /// What the scorers make of those that may take the request: of those known to have what it
    /// needs, else of those assumed to.
    fn marks(&self, (input, model): (&RouteInput<'_>, &Model), in_panic: bool) -> Vec<Marks> {
        let Some(weighted) = &self.weighted else { return Vec::new() };
        let fits = |candidate: &Serving| verdict(input, candidate, in_panic).ok();
        let fitting =
            (0_u32..).zip(&model.serving).filter_map(|(row, one)| Some((row, fits(one)?)));
        let fitting: Vec<(u32, Fit)> = fitting.collect();
        let any_known = fitting.iter().any(|(_, fit)| fit.is_known);
        let counts = |(_, fit): &&(u32, Fit)| fit.is_known || !any_known;
        weighted.marks((input, model), fitting.iter().filter(counts).map(|(row, _)| *row).collect())
    }
}

fn verdict(
    input: &RouteInput<'_>,
    candidate: &Serving,
    in_panic: bool,
) -> Result<Fit, RejectReason> {
    let fit = filters::check_in(input, candidate, in_panic)?;
    if filters::sits_out(input, candidate) {
        return Err(RejectReason::slow_start(input, candidate));
    }
    Ok(fit)
}

pub(super) fn in_words(reason: RejectReason, input: &RouteInput<'_>) -> String {
    match reason {
        RejectReason::Tried => "an earlier attempt of this request failed there".to_owned(),
        RejectReason::Operation => {
            format!("does not serve {}", input.request.operation.name())
        }
        RejectReason::Capabilities(lacking) => format!("lacks {lacking}"),
        RejectReason::Context(length) => format!(
            "context of {} tokens is shorter than the prompt's {}",
            length.0, input.tokens.0
        ),
        RejectReason::Health(health) => format!("is {}", health.name()),
        RejectReason::BreakerOpen => "its circuit breaker is open".to_owned(),
        RejectReason::Cooldown { until, status } => format!(
            "rests for another {:.1} s after its own {status}",
            until.since(input.now).as_secs_f64()
        ),
        RejectReason::SlowStart { percent } => {
            format!("is coming back and gets {percent} % of its share for now")
        }
        RejectReason::Full { limit } => format!("has {limit} requests in flight, its limit"),
    }
}
