//! `slo-headroom`: prefers backends on which a request costs little: its own time, the time of the
//! requests there, and the objectives that are missed because of it.
//!
//! No objective excludes a backend. If all requests go to the backends that still meet a time per
//! token, those come to miss it as well, and then all of them are late. So a miss is a cost that is
//! weighed, and the backends that miss the objective anyway take the load that is too much for the
//! others.

use super::{Needs, Scorer, ScorerRow};
use crate::costs::{RELEASE_COST_MS, RequestCosts};
use crate::objectives::Objectives;
use crate::params::ParamError;
use crate::prediction::PredictedLatency;
use crate::readings::{Candidate, WARM};
use crate::request::RequestFeatures;

/// The share of an objective that `knee` keeps free: the 90th percentiles of predictions are off by
/// 10 to 20 %.
const RESERVE: f64 = 0.2;
/// The least score of a backend with a prediction.
const MIN_SCORE: f64 = 1e-3;
/// The least score of a backend that has the prompt, while such backends are preferred.
const MIN_PREFERRED: f64 = 0.5;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "slo-headroom",
    formula: "cost = 2 x TTFT + 5 x the wait for a slot + further tokens + requests there x (prompt tokens before it and 8 x its own x (1 + U^4 / (1 - U)), and how much its tokens slow down a stream) + hope x a response that just meets its time per token x (8 x chance of a late first token + 6 x (chance of a late time per token + requests there x how much that chance grows by its prompt and its tokens, at least 5 % of it)). U = the mean used share of the KV caches, at most 98 %. Hope = 1 - 2 x the least chance of a late time per token on any backend, at least 0. Chances are of a logistic distribution with the predicted mean and 90th percentile; the time per token that a running stream can bear counts as an objective, too. most = (max - cost) / (max - min). least and knee: of the backends that meet the objectives, 1 - most, or the smallest headroom above 20 %; 0 for the others. Backends with 80 % of the prompt cached come first (0.5 + half of it, the others half of it), unless the best of them costs 1 s more than the best of the others, or only one of the others meets the objective for the first token (there by the p90; for priorities below 0 by the p90 everywhere)",
    source: "SLO-aware routing of the Gateway API Inference Extension",
    unknown: "0",
    params: &["prefer"],
    build: |params| {
        let expected = "least, most or knee";
        let prefer = match params.token("prefer", expected)?.unwrap_or("most") {
            "least" => Prefer::Least,
            "most" => Prefer::Most,
            "knee" => Prefer::Knee,
            _ => return Err(ParamError::Bad { name: "prefer", expected }),
        };
        Ok(Box::new(SloHeadroom { prefer }))
    },
};

/// The preference among the backends that meet the objectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefer {
    /// The backend where the request costs most: packs, so that others stay free.
    Least,
    /// The cheapest backend, which is mostly the one with the most headroom.
    Most,
    /// The backend with the least headroom above a reserve.
    Knee,
}

#[derive(Debug)]
struct SloHeadroom {
    prefer: Prefer,
}

impl Scorer for SloHeadroom {
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        let objectives = &features.objectives;
        let predicted = || candidates.iter().filter_map(|one| one.prediction);
        let request_costs = RequestCosts::of(objectives, candidates);
        let headroom = |one: &PredictedLatency| {
            // By the 90th percentile, similar backends would take turns in meeting a tight
            // objective. Sheddable requests are refused by it, so for them it counts.
            let ttft_p90 = if objectives.is_sheddable() { one.ttft_p90 } else { one.ttft };
            objectives.headroom(&PredictedLatency { ttft_p90, ..*one })
        };
        let meets = |one: &PredictedLatency| headroom(one).is_none_or(|headroom| headroom.is_met());
        let packs = self.prefer != Prefer::Most && objectives.has_latency();
        let packs = packs && predicted().any(|one| meets(&one));
        for (score, one) in scores.iter_mut().zip(candidates) {
            *score = match &one.prediction {
                None => f64::NAN,
                // Kept out of the range of costs; becomes 0 below.
                Some(prediction) if packs && !meets(prediction) => f64::INFINITY,
                Some(prediction) => request_costs.of_one(prediction),
            };
        }
        let costs = Range::of(scores.iter().copied().filter(|cost| cost.is_finite()));
        let keeps = keeps(objectives, candidates, scores);
        for (score, one) in scores.iter_mut().zip(candidates) {
            let Some(prediction) = &one.prediction else { continue };
            if score.is_infinite() {
                *score = 0.0;
                continue;
            }
            let own = if packs { headroom(prediction) } else { None };
            let place = self.prefer(costs.place(*score), own.map(|headroom| headroom.share));
            *score = match (keeps, is_warm(one)) {
                (true, true) => MIN_PREFERRED + (1.0 - MIN_PREFERRED) * place,
                (true, false) => ((MIN_PREFERRED - MIN_SCORE) * place).max(MIN_SCORE),
                (false, _) => place.max(MIN_SCORE),
            };
        }
    }

    fn needs(&self) -> Needs {
        let needs = Needs::PREFIXES.with(Needs::PREDICTIONS);
        // Nothing spreads what it packs.
        if self.prefer == Prefer::Most { needs.with(Needs::COPIES) } else { needs }
    }
}

/// Returns whether backends with the prompt come first, by the costs of all. They do while they
/// cost little more, unless the request would surely be in time on another backend, but on none of
/// them. The time that it gains elsewhere is lost by the next ones of its session.
fn keeps(objectives: &Objectives, candidates: &[Candidate], costs: &[f64]) -> bool {
    let cost_of = |warm: bool| {
        let group = candidates.iter().zip(costs).filter(|(one, _)| is_warm(one) == warm);
        let known = group.map(|(_, cost)| *cost).filter(|cost| cost.is_finite());
        known.fold(f64::INFINITY, f64::min)
    };
    let (warm, cold) = (cost_of(true), cost_of(false));
    if !(warm.is_finite() && cold.is_finite() && warm - cold <= RELEASE_COST_MS) {
        return false;
    }
    let best = |warm: bool, time: fn(&PredictedLatency) -> f32| {
        let group = candidates.iter().filter(|one| is_warm(one) == warm);
        let times = group.filter_map(|one| Some(f64::from(time(one.prediction.as_ref()?))));
        times.fold(f64::INFINITY, f64::min)
    };
    let (mean, p90): (fn(&_) -> _, fn(&_) -> _) =
        (|one: &PredictedLatency| one.ttft, |one: &PredictedLatency| one.ttft_p90);
    let own = if objectives.is_sheddable() { p90 } else { mean };
    objectives.ttft_ms.is_none_or(|limit| best(true, own) <= limit || best(false, p90) > limit)
}

/// Returns whether a backend has most of the prompt cached, and emits tokens.
fn is_warm(one: &Candidate) -> bool {
    let is_silent = one.prediction.is_some_and(|prediction| prediction.stall > 0.0);
    one.match_ratio() >= WARM && !is_silent
}

impl SloHeadroom {
    /// The score of a backend that meets the objectives, by its cheapness among those that do, and
    /// by its headroom as a share of the objective. Without an objective the cheapest is best.
    fn prefer(&self, cheapness: f64, share: Option<f64>) -> f64 {
        match (self.prefer, share) {
            (Prefer::Most, _) | (_, None) => cheapness,
            (Prefer::Least, Some(_)) => 1.0 - cheapness,
            (Prefer::Knee, Some(share)) if share >= RESERVE => {
                1.0 - 0.5 * (share - RESERVE) / (1.0 - RESERVE)
            }
            (Prefer::Knee, Some(share)) => 0.5 * share / RESERVE,
        }
    }
}

struct Range {
    least: f64,
    most: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let empty = Self { least: f64::INFINITY, most: f64::NEG_INFINITY };
        values.fold(empty, |range, value| Self {
            least: range.least.min(value),
            most: range.most.max(value),
        })
    }

    /// 1 for the least, 0 for the most; 1 if all are equal.
    fn place(&self, value: f64) -> f64 {
        let width = self.most - self.least;
        if width > 0.0 { (self.most - value) / width } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
