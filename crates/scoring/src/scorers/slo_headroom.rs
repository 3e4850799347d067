//! `slo-headroom`: prefers backends on which a request costs little: its own time, the time of the
//! requests there, and the objectives that are missed because of it.
//!
//! No objective excludes a backend. If all requests go to the backends that still meet a time per
//! token, those come to miss it as well, and then all of them are late. So a miss is a cost that is
//! weighed, and the backends that miss the objective anyway take the load that is too much for the
//! others.

use super::{Needs, Scorer, ScorerRow};
use crate::objectives::Objectives;
use crate::params::ParamError;
use crate::prediction::{PredictedLatency, RELEASE_MS};
use crate::readings::{Candidate, WARM};
use crate::request::RequestFeatures;

/// The share of an objective that `knee` keeps free: the 90th percentiles of predictions are off by
/// 10 to 20 %.
const RESERVE: f64 = 0.2;
/// The weight of a millisecond of the time to the first token relative to later ones: the further
/// tokens, and the delay of the requests there, which are many. Found in simulation: from 1 to 3
/// goodput is the same within its noise; with 10 up to 3 % fewer requests meet their objectives if
/// the fleet is nearly full.
const TTFT: f64 = 2.0;
/// The weight of the time for its prompt per request there: requests that arrive meanwhile wait as
/// well. Found in simulation: with 1, up to 15 points fewer requests are in time on fleets that are
/// nearly full; with 4, up to 1 % fewer tokens per second of agents whose caches are full.
const DELAY: f64 = 8.0;
/// The power of the used share of the KV caches in the cost of evicted prompts. The less room
/// streams leave for cached prompts, the more of them a new prompt evicts, and these have to be
/// computed again. Found in simulation: without it, 8 points fewer requests are in time where
/// streams fill the caches; with 1, one point fewer on unequal engines.
const FULL: i32 = 4;
/// The least free share of the KV caches that counts.
const MIN_FREE: f64 = 0.02;
/// The cost of missing the objective for the first token. The unit is the duration of a response
/// that just meets its time per token. Found in simulation: with 4, up to 1.1 points fewer requests
/// are in time in bursts, and up to 1.5 more of agents whose caches are full.
const MISS_TTFT: f64 = 8.0;
/// The cost of missing the objective per token. Found in simulation: with 3.5, up to 2 points fewer
/// requests are in time on unequal engines; with 5, about 0.7 points.
const MISS_TPOT: f64 = 6.0;
/// The least cost of one more stream to one that is late anyway, as a share of a miss. Found in
/// simulation: without it backends that are late get the load of those that are not yet, and 5
/// points fewer chats are in time where a full fleet could just serve all; with 0.15, up to 10
/// points fewer requests on unequal engines that are full.
const LATE: f64 = 0.05;
/// If every backend has at least this chance of missing the time per token, misses count for
/// nothing: avoiding them would only move them to other requests.
const LOST: f64 = 0.5;
/// The weight of the wait for a slot, in addition to its part in the time to the first token: in a
/// full batch, later requests wait longer as well.
const SLOT: f64 = 5.0;
/// The scale of a logistic distribution as a share of the distance from its mean to its 90th
/// percentile.
const SCALE: f64 = 1.0 / 2.197_224_577_336_219_5; // 1 / ln 9
/// The minimum scale as a share of an objective: the certainty of predictions is limited.
const MIN_SCALE: f64 = 0.05;
/// The distance below an objective, in scales, from which the chance of a miss is 0: below half the
/// objective if predictions are certain. An objective of a day would multiply any rest of a chance.
const SURE: f64 = 10.0;
/// The least score of a backend with a prediction.
const MIN_SCORE: f64 = 1e-3;
/// The least score of a backend that has the prompt, while such backends are preferred.
const FIRST: f64 = 0.5;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "slo-headroom",
    formula: "cost = 2 x TTFT + 5 x the wait for a slot + further tokens + requests there x (prompt tokens before it and 8 x its own x (1 + U^4 / (1 - U)), and how much its tokens slow down a stream) + hope x a response that just meets its time per token x (8 x chance of a late first token + 6 x (chance of a late time per token + requests there x how much that chance grows by its prompt and its tokens, at least 5 % of it)). U = the mean used share of the KV caches, at most 98 %. Hope = 1 - 2 x the least chance of a late time per token on any backend, at least 0. Chances are of a logistic distribution with the predicted mean and 90th percentile; the time per token that a running stream can bear counts as an objective, too. most = (max - cost) / (max - min). least and knee: of the backends that meet the objectives, 1 - most, or the smallest headroom above 20 %; 0 for the others. The home of the session, if it has 80 % of the prompt cached, else all backends with that much and the home, come first (0.5 + half of it, the others half of it), unless the whole response takes 5 s longer on the best of them than on the best of the others, or only one of the others meets the objective for the first token (there by the p90; for priorities below 0 by the p90 everywhere)",
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
        let usual = Usual::of(predicted(), objectives, used_kv(candidates));
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
                Some(prediction) => usual.cost(prediction, objectives),
            };
        }
        let costs = Range::of(scores.iter().copied().filter(|cost| cost.is_finite()));
        let preferred = Preferred::of(features, candidates);
        let keeps = preferred.keeps(features, candidates);
        for (score, one) in scores.iter_mut().zip(candidates) {
            let Some(prediction) = &one.prediction else { continue };
            if score.is_infinite() {
                *score = 0.0;
                continue;
            }
            let own = headroom(prediction).filter(|_| packs);
            let place = self.prefer(costs.place(*score), own.map(|headroom| headroom.share));
            *score = match (keeps, preferred.contains(features, one)) {
                (true, true) => FIRST + (1.0 - FIRST) * place,
                (true, false) => ((FIRST - MIN_SCORE) * place).max(MIN_SCORE),
                (false, _) => place.max(MIN_SCORE),
            };
        }
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES.with(Needs::PREDICTIONS).with(Needs::HOMES)
    }
}

/// The means over all backends. The cost of a prompt token, and the slowdown by another stream, are
/// learned per backend with persistent noise. Multiplied by all streams there, it would send most
/// requests to the backend that is believed to be the cheapest.
struct Usual {
    /// Milliseconds per prompt token.
    token: f64,
    /// Milliseconds of delay per stream.
    slowdown: f64,
    /// Milliseconds per output token.
    tpot: f64,
    /// The weight of the tokens of its prompt.
    delay: f64,
    /// The factor of misses: 1 while some backend surely meets the time per token, 0 if all are
    /// likely to miss it.
    hope: f64,
}

impl Usual {
    fn of(
        all: impl Iterator<Item = PredictedLatency>,
        objectives: &Objectives,
        used_kv: f64,
    ) -> Self {
        let (mut sums, mut least) = ([0.0; 5], LOST);
        for one in all {
            least = least.min(own_chance(&one, objectives));
            let own = [1.0, one.work, one.uncached, one.slowdown, one.tpot].map(f64::from);
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let [count, work, uncached, slowdown, tpot] = sums;
        let ratio = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Self {
            token: ratio(work, uncached),
            slowdown: ratio(slowdown, count),
            tpot: ratio(tpot, count),
            delay: DELAY * (1.0 + used_kv.powi(FULL) / (1.0 - used_kv)),
            hope: 1.0 - least / LOST,
        }
    }

    /// The cost of a request to itself and to the others there, in milliseconds.
    fn cost(&self, one: &PredictedLatency, objectives: &Objectives) -> f64 {
        let requests = f64::from(one.requests);
        // LMetric (arXiv 2603.15202): prompt tokens x requests. Waiting prompts become streams
        // beside this one. Not multiplied by the slowness of the backend: fast ones got too many
        // requests by that.
        let prompts = f64::from(one.before) + self.delay * f64::from(one.uncached);
        let each = prompts * self.token + self.slowdown;
        let own = TTFT * f64::from(one.ttft) + SLOT * f64::from(one.slot_wait);
        let time = own + f64::from(one.further) + requests * each;
        // Nothing can be missed.
        if !objectives.has_latency() && !one.tightest_tpot.is_finite() {
            return time;
        }
        let first = objectives.ttft_ms.unwrap_or(f64::INFINITY);
        let first = chance(first, one.ttft, one.ttft_p90);
        let limit = objectives.tpot_ms.unwrap_or(f64::INFINITY);
        let others_limit = limit.min(one.tightest_tpot.into());
        // A stream stands still while the prompt is computed.
        let added = one.added + one.work / one.output.max(1.0);
        let later = chance(others_limit, one.tpot + added, one.tpot_p90 + added);
        let growth = later - chance(others_limit, one.tpot, one.tpot_p90);
        let missed = own_chance(one, objectives) + requests * growth.max(LATE * later);
        let each = if limit.is_finite() { limit } else { self.tpot };
        let whole = self.hope * each * f64::from(one.output);
        time + whole * (MISS_TTFT * first + MISS_TPOT * missed)
    }
}

/// Returns the mean used share of the KV caches that are known; 0 if none is.
fn used_kv(candidates: &[Candidate]) -> f64 {
    let known = candidates.iter().filter_map(|one| one.kv_utilization);
    let (used, count) = known.fold((0.0, 0.0), |(sum, count), used| (sum + used, count + 1.0));
    if count > 0.0 { (used / count).min(1.0 - MIN_FREE) } else { 0.0 }
}

/// Returns the chance of missing a limit, which may be infinite, by a predicted mean and 90th
/// percentile.
fn chance(limit: f64, mean: f32, p90: f32) -> f64 {
    let scale = (SCALE * f64::from(p90 - mean)).max(MIN_SCALE * limit.max(1e-3));
    let below = (limit - f64::from(mean)) / scale;
    if !limit.is_finite() || below >= SURE {
        return 0.0;
    }
    1.0 / (1.0 + below.exp())
}

/// Returns the chance that the request misses its own objective per token.
fn own_chance(one: &PredictedLatency, objectives: &Objectives) -> f64 {
    chance(objectives.tpot_ms.unwrap_or(f64::INFINITY), one.tpot, one.tpot_p90)
}

/// The backends that come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preferred {
    /// The home of the session, which has most of the prompt. The others may have it, too, if many
    /// sessions begin alike, but not the rest of this one.
    Home,
    /// Those with most of the prompt, and the home.
    Warm,
}

impl Preferred {
    fn of(features: &RequestFeatures, candidates: &[Candidate]) -> Self {
        let mut homes = candidates.iter().filter(|one| features.home == Some(one.row));
        match homes.any(|one| one.match_ratio() >= WARM) {
            true => Self::Home,
            false => Self::Warm,
        }
    }

    /// Returns whether a backend is one of them, and emits tokens.
    fn contains(self, features: &RequestFeatures, one: &Candidate) -> bool {
        let is_silent = one.prediction.is_some_and(|prediction| prediction.stall > 0.0);
        let is_one = match self {
            Self::Home => features.home == Some(one.row),
            Self::Warm => features.is_warm(one, WARM),
        };
        is_one && !is_silent
    }

    /// Returns whether they come first. They do while they are not much slower, unless the request
    /// would surely be in time on another backend, but on none of them. The time that it gains
    /// elsewhere is lost by the next ones of its session.
    fn keeps(self, features: &RequestFeatures, candidates: &[Candidate]) -> bool {
        let objectives = &features.objectives;
        let best = |is_one: bool, time: fn(&PredictedLatency) -> f32| {
            let group = candidates.iter().filter(|one| self.contains(features, one) == is_one);
            let times = group.filter_map(|one| Some(f64::from(time(one.prediction.as_ref()?))));
            times.fold(f64::INFINITY, f64::min)
        };
        let (mean, p90): (fn(&_) -> _, fn(&_) -> _) =
            (|one: &PredictedLatency| one.ttft, |one: &PredictedLatency| one.ttft_p90);
        let whole = |one: &PredictedLatency| one.ttft + one.further;
        let (warm, cold) = (best(true, whole), best(false, whole));
        if !(warm.is_finite() && cold.is_finite() && warm - cold <= RELEASE_MS) {
            return false;
        }
        let own = if objectives.is_sheddable() { p90 } else { mean };
        objectives.ttft_ms.is_none_or(|limit| best(true, own) <= limit || best(false, p90) > limit)
    }
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
