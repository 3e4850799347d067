//! `slo-headroom`: prefers backends on which a request costs little: its time, that of the requests there, and objectives
//! that are missed because of it.
//!
//! No objective keeps a request away from a backend. Where all requests went to the backends that still meet a time per
//! token, those came to miss it as well, and then all of them were late; a miss that is a cost is weighed instead, and the
//! backends that miss it anyway take what is too much for the others.

use super::{Needs, Scorer, ScorerRow};
use crate::objectives::Objectives;
use crate::params::ParamError;
use crate::prediction::PredictedLatency;
use crate::readings::{Candidate, WARM};
use crate::request::RequestFeatures;

/// The share of an objective that `knee` keeps free: the 90th percentiles of predictions are off by 10 to 20 %.
const RESERVE: f64 = 0.2;
/// How much a millisecond of the time to the first token counts beside one of what follows: the further tokens, and the
/// delay of the requests there, of which there are many. Found in simulation: from 1 to 3 goodput is the same within its
/// noise; with 10 up to 3 % fewer requests meet their objectives where the fleet is nearly full.
const TTFT: f64 = 2.0;
/// How much the time that its prompt takes counts for each request there: those that arrive meanwhile wait as well. Found in
/// simulation: with 1, up to 15 points fewer requests are in time on fleets that are nearly full.
const DELAY: f64 = 4.0;
/// How much a missed objective counts, for the first token and per token, in times that a response takes which just meets
/// the objective for its time per token. Found in simulation: with half as much, up to 2 points fewer requests are in time
/// on unequal engines.
const MISS_TTFT: f64 = 6.0;
/// See [`MISS_TTFT`].
const MISS_TPOT: f64 = 5.0;
/// The least chance of missing the time per token on any backend, from which on misses count for nothing: who avoids them
/// then only moves them to others.
const LOST: f64 = 0.5;
/// How much the wait for a slot counts, beside being part of the time to the first token: in a full batch, those that come
/// later wait for longer as well.
const SLOT: f64 = 5.0;
/// The scale of a logistic distribution as a share of the distance from its mean to its 90th percentile.
const SCALE: f64 = 1.0 / 2.197_224_577_336_219_5; // 1 / ln 9
/// The least scale as a share of an objective: no prediction is surer.
const LEAST_SCALE: f64 = 0.05;
/// By how many scales a prediction has to be below an objective for no chance of a miss.
const SURE: f64 = 20.0;
/// The least score of a backend of which something is predicted.
const LEAST: f64 = 1e-3;
/// By how many milliseconds a backend with the prompt may be slower than the others, which it is preferred to: llm-d's
/// prefix-affinity filter. What a request gains elsewhere, the next ones of its session lose there.
const RELEASE_MS: f64 = 5000.0;
/// The least score of a backend that has the prompt, while those are preferred.
const FIRST: f64 = 0.5;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "slo-headroom",
    formula: "cost = 2 x TTFT + 5 x the wait for a slot + further tokens + requests there x (prompt tokens before it and 4 x its own, and how much its tokens slow down a stream) + hope x a response that just meets its time per token x (6 x chance of a late first token + 5 x (chance of a late time per token + requests there x how much that chance grows by it)). Hope = 1 - 2 x the least chance of a late time per token on any backend, at least 0. Chances are of a logistic distribution with the predicted mean and 90th percentile; the time per token that a running stream can bear counts as an objective, too. most = (max - cost) / (max - min). least and knee: of the backends that meet the objectives, 1 - most, or the smallest headroom above 20 %; 0 for the others. Backends with 80 % of the prompt cached, and the home of the session, come first (0.5 + half of it, the others half of it), unless the best of them is 5 s slower than the best of the others, or only one of the others meets the objective for the first token (there by the p90; for priorities below 0 by the p90 everywhere)",
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

/// Which of the backends that meet the objectives is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefer {
    /// The one with the least headroom: it packs, so that others stay free.
    Least,
    /// The cheapest one, which mostly is the one with the most.
    Most,
    /// The one with the least headroom above a reserve.
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
        let usual = Usual::of(predicted(), objectives);
        let headroom = |one: &PredictedLatency| {
            // By the 90th percentile, backends that are alike would take turns in meeting a tight objective. One that may be
            // refused is refused by it.
            let ttft_p90 = if objectives.is_sheddable() { one.ttft_p90 } else { one.ttft };
            objectives.headroom(&PredictedLatency { ttft_p90, ..*one })
        };
        let meets = |one: &PredictedLatency| headroom(one).is_none_or(|headroom| headroom.is_met());
        let packs = self.prefer != Prefer::Most && objectives.has_latency();
        let packs = packs && predicted().any(|one| meets(&one));
        for (score, one) in scores.iter_mut().zip(candidates) {
            *score = match &one.prediction {
                None => f64::NAN,
                Some(prediction) if packs && !meets(prediction) => f64::INFINITY,
                Some(prediction) => usual.cost(prediction, objectives),
            };
        }
        let costs = Range::of(scores.iter().copied().filter(|cost| cost.is_finite()));
        let keeps = keeps(features, candidates);
        for (score, one) in scores.iter_mut().zip(candidates) {
            let Some(prediction) = &one.prediction else { continue };
            if score.is_infinite() {
                *score = 0.0;
                continue;
            }
            let own = headroom(prediction).filter(|_| packs);
            let place = self.prefer(costs.place(*score), own.map(|headroom| headroom.share));
            *score = match (keeps, is_warm(features, one)) {
                (true, true) => FIRST + (1.0 - FIRST) * place,
                (true, false) => ((FIRST - LEAST) * place).max(LEAST),
                (false, _) => place.max(LEAST),
            };
        }
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES.with(Needs::PREDICTIONS).with(Needs::HOMES)
    }
}

/// What the backends have in common, as means. What a token of a prompt costs, and by how much one more stream slows down the
/// others, is learned of each with noise that lasts; multiplied by all streams there it would send most requests to the
/// backend that is believed to be the cheapest.
struct Usual {
    /// Milliseconds per prompt token.
    token: f64,
    /// Milliseconds of delay per stream.
    slowdown: f64,
    /// Milliseconds per output token.
    tpot: f64,
    /// How much misses count: 1 while some backend surely meets the time per token, 0 where all are likely to miss it.
    hope: f64,
}

impl Usual {
    fn of(all: impl Iterator<Item = PredictedLatency>, objectives: &Objectives) -> Self {
        let (mut sums, mut least) = ([0.0; 5], LOST);
        for one in all {
            least = least.min(own_chance(&one, objectives).missed);
            let own = [1.0, one.work, one.uncached, one.slowdown, one.tpot].map(f64::from);
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let [count, work, uncached, slowdown, tpot] = sums;
        let ratio = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Self {
            token: ratio(work, uncached),
            slowdown: ratio(slowdown, count),
            tpot: ratio(tpot, count),
            hope: 1.0 - least / LOST,
        }
    }

    /// What a request costs itself and the others there, in milliseconds.
    fn cost(&self, one: &PredictedLatency, objectives: &Objectives) -> f64 {
        let requests = f64::from(one.requests);
        // LMetric (arXiv 2603.15202): prompt tokens x requests. Prompts that wait become streams beside this one. Not times
        // how slow the backend is: fast ones got too many requests by that.
        let prompts = f64::from(one.before) + DELAY * f64::from(one.uncached);
        let each = prompts * self.token + self.slowdown;
        let own = TTFT * f64::from(one.ttft) + SLOT * f64::from(one.slot_wait);
        let time = own + f64::from(one.further) + requests * each;
        if !objectives.has_latency() && !one.tightest_tpot.is_finite() {
            return time;
        }
        let first = objectives.ttft_ms.unwrap_or(f64::INFINITY);
        let first = Chance::of(first, one.ttft, one.ttft_p90);
        let limit = objectives.tpot_ms.unwrap_or(f64::INFINITY);
        let own = own_chance(one, objectives);
        let others = Chance::of(limit.min(one.tightest_tpot.into()), one.tpot, one.tpot_p90);
        let missed = own.missed + requests * others.growth * f64::from(one.added);
        let each = if limit.is_finite() { limit } else { self.tpot };
        let whole = self.hope * each * f64::from(one.output);
        time + whole * (MISS_TTFT * first.missed + MISS_TPOT * missed)
    }
}

/// The chance of missing an objective, and by how much it grows with a millisecond.
#[derive(Debug, Clone, Copy, Default)]
struct Chance {
    missed: f64,
    growth: f64,
}

impl Chance {
    /// Of an objective that may be infinite, by a predicted mean and 90th percentile.
    fn of(limit: f64, mean: f32, p90: f32) -> Self {
        let scale = (SCALE * f64::from(p90 - mean)).max(LEAST_SCALE * limit.max(1e-3));
        let below = (limit - f64::from(mean)) / scale;
        if !limit.is_finite() || below >= SURE {
            return Self::default();
        }
        let missed = 1.0 / (1.0 + below.exp());
        Self { missed, growth: missed * (1.0 - missed) / scale }
    }
}

/// The chance that its own tokens come too slowly.
fn own_chance(one: &PredictedLatency, objectives: &Objectives) -> Chance {
    Chance::of(objectives.tpot_ms.unwrap_or(f64::INFINITY), one.tpot, one.tpot_p90)
}

/// Whether backends with the prompt come first: while they are not much slower, and unless a request would be in time on
/// another one surely, but on none of them. What it gains elsewhere, the next ones of its session lose there.
fn keeps(features: &RequestFeatures, candidates: &[Candidate]) -> bool {
    let objectives = &features.objectives;
    let best = |warm: bool, time: fn(&PredictedLatency) -> f32| {
        let group = candidates.iter().filter(|one| is_warm(features, one) == warm);
        let times = group.filter_map(|one| Some(f64::from(time(one.prediction.as_ref()?))));
        times.fold(f64::INFINITY, f64::min)
    };
    let (mean, p90): (fn(&_) -> _, fn(&_) -> _) =
        (|one: &PredictedLatency| one.ttft, |one: &PredictedLatency| one.ttft_p90);
    let (warm, cold) = (best(true, mean), best(false, mean));
    if !(warm.is_finite() && cold.is_finite() && warm - cold <= RELEASE_MS) {
        return false;
    }
    let own = if objectives.is_sheddable() { p90 } else { mean };
    objectives.ttft_ms.is_none_or(|limit| best(true, own) <= limit || best(false, p90) > limit)
}

/// Whether a backend has most of the prompt cached, or the session is at home there; and emits
/// something.
fn is_warm(features: &RequestFeatures, one: &Candidate) -> bool {
    let is_silent = one.prediction.is_some_and(|prediction| prediction.stall > 0.0);
    features.is_warm(one, WARM) && !is_silent
}

impl SloHeadroom {
    /// The score of a backend that meets the objectives, by how little the request costs there among those that do, and by
    /// its headroom as a share of the objective. Without an objective the cheapest is best.
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

/// The least and the greatest of some costs.
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

    /// 1 for the least, 0 for the most; 1 where all are equal.
    fn place(&self, value: f64) -> f64 {
        let width = self.most - self.least;
        if width > 0.0 { (self.most - value) / width } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
