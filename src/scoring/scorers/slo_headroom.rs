//! `slo-headroom`: prefers backends on which the objectives of the request, and of those that run there, are predicted to
//! be met.

use super::{Needs, Scorer, ScorerRow};
use crate::scoring::params::ParamError;
use crate::scoring::prediction::PredictedLatency;
use crate::scoring::readings::Candidate;
use crate::scoring::request::RequestFeatures;

/// The share of an objective that `knee` keeps free: the 90th percentiles of predictions are off by 10 to 20 %.
const RESERVE: f64 = 0.2;
/// How much the time to the first token counts beside the time per token, as in llm-d's latency scorer.
const TTFT: f64 = 0.8;
/// The least score of a backend that meets the objectives: it is better than one that does not.
const LEAST: f64 = 1e-3;
/// The part of a prompt that must be cached for its backend to be preferred, and by how many milliseconds it may be
/// slower than the others: llm-d's prefix-affinity filter. What a request gains elsewhere, the next ones of its session
/// lose there.
const WARM: f64 = 0.8;
const RELEASE_MS: f64 = 5000.0;
/// The least score of a backend that has the prompt, while those are preferred.
const FIRST: f64 = 0.5;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "slo-headroom",
    formula: "headroom = objective - prediction, the least of TTFT (p90) and TPOT (that of running streams, too); where any backend has headroom, most = 0.8 x (max - TTFT) / (max - min) + 0.2 x the same of TPOT, least = 1 - most, knee prefers the smallest headroom above 20 %, and backends without headroom get 0; elsewhere 1 / (1 + miss / objective). Backends with at least 80 % of the prompt cached count by their mean TTFT, and come first (0.5 + half of it, the others half of it) unless the best of them is 5 s slower than the best of the others",
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
    /// The one with the most: the fastest.
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
        let headroom = |one: &Candidate| {
            let prediction = one.prediction?;
            // Most of its prefill is saved, which bounds how late it can be.
            let ttft_p90 = if is_warm(one) { prediction.ttft } else { prediction.ttft_p90 };
            Some(objectives.headroom(&PredictedLatency { ttft_p90, ..prediction }))
        };
        let meets = |one: &&Candidate| {
            headroom(one).is_some_and(|headroom| headroom.is_none_or(|headroom| headroom.is_met()))
        };
        let met = || {
            let met = candidates.iter().filter(meets);
            met.filter_map(|one| Some((is_warm(one), one.prediction?)))
        };
        let ttft = Range::of(met().map(|(_, one)| f64::from(one.ttft)));
        let tpot = Range::of(met().map(|(_, one)| f64::from(one.tpot)));
        let best = |warm: bool| {
            let group = met().filter(|(is_warm, _)| *is_warm == warm);
            group.map(|(_, one)| f64::from(one.ttft)).fold(f64::INFINITY, f64::min)
        };
        let (warm, cold) = (best(true), best(false));
        let keeps = warm.is_finite() && cold.is_finite() && warm - cold <= RELEASE_MS;
        for (score, one) in scores.iter_mut().zip(candidates) {
            let Some((prediction, headroom)) = one.prediction.as_ref().zip(headroom(one)) else {
                *score = f64::NAN;
                continue;
            };
            *score = match headroom {
                Some(headroom) if !headroom.is_met() => {
                    // Where another one meets the objectives, this one is out.
                    if ttft.is_empty() { 1.0 / (1.0 - headroom.share) } else { 0.0 }
                }
                headroom => {
                    let fastness = Range::mix(&ttft, &tpot, prediction);
                    let own = headroom.filter(|_| objectives.has_latency());
                    let score = self.prefer(fastness, own.map(|headroom| headroom.share));
                    match (keeps, is_warm(one)) {
                        (true, true) => FIRST + (1.0 - FIRST) * score,
                        (true, false) => ((FIRST - LEAST) * score).max(LEAST),
                        (false, _) => score.max(LEAST),
                    }
                }
            };
        }
    }

    fn needs(&self) -> Needs {
        Needs::PREFIXES.with(Needs::PREDICTIONS)
    }
}

/// Whether a backend has most of the prompt cached.
fn is_warm(one: &Candidate) -> bool {
    one.match_ratio() >= WARM
}

impl SloHeadroom {
    /// The score of a backend that meets the objectives, by how fast it is among those that do, and by its headroom as
    /// a share of the objective. Without an objective the fastest is best.
    fn prefer(&self, fastness: f64, share: Option<f64>) -> f64 {
        match (self.prefer, share) {
            (Prefer::Most, _) | (_, None) => fastness,
            (Prefer::Least, Some(_)) => 1.0 - fastness,
            (Prefer::Knee, Some(share)) if share >= RESERVE => {
                1.0 - 0.5 * (share - RESERVE) / (1.0 - RESERVE)
            }
            (Prefer::Knee, Some(share)) => 0.5 * share / RESERVE,
        }
    }
}

/// The least and the greatest of some latencies.
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

    fn is_empty(&self) -> bool {
        self.least > self.most
    }

    /// 1 for the least, 0 for the most; `None` where all are equal.
    fn place(&self, value: f64) -> Option<f64> {
        let width = self.most - self.least;
        (width > 0.0).then(|| (self.most - value) / width)
    }

    /// Both latencies as one; one that is the same everywhere does not count.
    fn mix(ttft: &Self, tpot: &Self, prediction: &PredictedLatency) -> f64 {
        match (ttft.place(prediction.ttft.into()), tpot.place(prediction.tpot.into())) {
            (Some(first), Some(next)) => TTFT * first + (1.0 - TTFT) * next,
            (one, other) => one.or(other).unwrap_or(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoring::objectives::Objectives;
    use crate::scoring::params::{Params, Value};

    fn scores(prefer: &str, ttft: Option<f64>, predicted: [f32; 3]) -> [f64; 3] {
        let candidates = predicted.map(|ttft| Candidate {
            prediction: Some(PredictedLatency {
                ttft,
                ttft_p90: ttft,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        });
        let objectives = Objectives { ttft_ms: ttft, ..Objectives::default() };
        let features = RequestFeatures { objectives, ..RequestFeatures::default() };
        let mut params = Params::default();
        params.set("prefer", Value::Text(prefer.to_owned()));
        let mut scores = [0.0; 3];
        ROW.make(&params).unwrap().score(&features, &candidates, &mut scores);
        scores
    }

    fn with_cached(cached: u32, ttft: [f32; 2], objective: Option<f64>) -> [f64; 2] {
        let candidate = |matched_blocks, ttft| Candidate {
            prompt_blocks: 100,
            matched_blocks,
            prediction: Some(PredictedLatency {
                ttft,
                ttft_p90: 2.0 * ttft,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        };
        let candidates = [candidate(cached, ttft[0]), candidate(0, ttft[1])];
        let objectives = Objectives { ttft_ms: objective, ..Objectives::default() };
        let features = RequestFeatures { objectives, ..RequestFeatures::default() };
        let mut scores = [0.0; 2];
        ROW.make(&Params::default()).unwrap().score(&features, &candidates, &mut scores);
        scores
    }

    #[test]
    fn backend_with_the_prompt_is_kept_while_it_meets_the_objective() {
        let keeps = |cached, ttft, objective| {
            let [warm, cold] = with_cached(cached, ttft, objective);
            warm > cold
        };
        assert!(keeps(80, [400.0, 100.0], None));
        assert!(!keeps(79, [400.0, 100.0], None), "a small part of the prompt is no reason");
        assert!(keeps(90, [5000.0, 100.0], None));
        assert!(!keeps(90, [5200.0, 100.0], None), "until it is 5 s slower");
        assert!(keeps(90, [400.0, 100.0], Some(500.0)), "its mean counts");
        assert!(!keeps(90, [600.0, 100.0], Some(500.0)));
    }

    #[test]
    fn backends_that_miss_an_objective_come_last() {
        let [fast, slow, missed] = scores("most", Some(500.0), [100.0, 350.0, 600.0]);
        assert!(fast > slow && slow > 0.0 && missed == 0.0);
        let [fast, slow, missed] = scores("least", Some(500.0), [100.0, 350.0, 600.0]);
        assert!(slow > fast && fast > 0.0 && missed == 0.0);
        let [fast, knee, close] = scores("knee", Some(500.0), [100.0, 390.0, 480.0]);
        assert!(knee > fast && fast > close, "{fast} {knee} {close}");
    }

    #[test]
    fn least_miss_is_best_where_all_miss() {
        let [one, two, three] = scores("most", Some(100.0), [120.0, 150.0, 300.0]);
        assert!(one > two && two > three && three > 0.0);
    }

    #[test]
    fn fastest_is_best_without_an_objective() {
        let [first, second, third] = scores("most", None, [100.0, 250.0, 400.0]);
        assert_eq!((first, second, third), (1.0, 0.5, 1e-3));
    }

    #[test]
    fn unknown_preference_is_refused() {
        let mut params = Params::default();
        params.set("prefer", Value::Text("best".to_owned()));
        assert!(ROW.make(&params).is_err());
    }
}
