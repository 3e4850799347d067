//! `slo-headroom`: prefers backends on which the objectives of the request, and of those that run there, are predicted to
//! be met.

mod late;

use super::{Needs, Scorer, ScorerRow};
use crate::scoring::params::ParamError;
use crate::scoring::prediction::PredictedLatency;
use crate::scoring::readings::{Candidate, WARM};
use crate::scoring::request::RequestFeatures;

/// The share of an objective that `knee` keeps free: the 90th percentiles of predictions are off by 10 to 20 %.
const RESERVE: f64 = 0.2;
/// How much a millisecond of the time to the first token counts beside one of what follows: the further tokens, and the
/// delay of the requests there, of which there are many. Found in simulation: from 1 to 3 goodput is the same within its
/// noise; with 10 up to 3 % fewer requests meet their objectives where the fleet is nearly full.
const TTFT: f64 = 2.0;
/// The least score of a backend that meets the objectives: it is better than one that does not.
const LEAST: f64 = 1e-3;
/// By how many milliseconds a backend with the prompt may be slower than the others, which it is preferred to: llm-d's
/// prefix-affinity filter. What a request gains elsewhere, the next ones of its session lose there.
const RELEASE_MS: f64 = 5000.0;
/// The least score of a backend that has the prompt, while those are preferred.
const FIRST: f64 = 0.5;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "slo-headroom",
    formula: "headroom = objective - prediction, the least of TTFT and TPOT (that of running streams, too). TTFT is the mean; it is the p90 for priorities below 0, and on a backend without the prompt where another one has 80 % of it. cost = 2 x TTFT + further tokens + requests there x (prompt tokens before it and its own, and how much its tokens slow down a stream). most = (max - cost) / (max - min), least = 1 - most, knee prefers the smallest headroom above 20 %; 0 without headroom. No headroom anywhere: the longest wait (TTFT without its own prompt and front end) that misses the objective, up to 10 x it, is best, of the backends with the prompt if there are any; without one, while requests of a priority below 0 run, or for these, the cheapest. Backends with 80 % of the prompt cached, and the home of the session, come first (0.5 + half of it, the others half of it), unless the best of them is 5 s slower than the best of the others",
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
        let is_warm = |one: &Candidate| is_warm(features, one);
        let has_warm = candidates.iter().any(is_warm);
        let headroom = |one: &Candidate| {
            let prediction = one.prediction?;
            // By the 90th percentile, backends that are alike would take turns in meeting a tight objective, and those that
            // just do would get all requests. A request leaves a backend that has its prompt only for one that meets it
            // surely; one that may be refused is refused by the 90th percentile.
            let is_sure = objectives.is_sheddable() || has_warm && !is_warm(one);
            let ttft_p90 = if is_sure { prediction.ttft_p90 } else { prediction.ttft };
            Some(objectives.headroom(&PredictedLatency { ttft_p90, ..prediction }))
        };
        let meets = |one: &Candidate| {
            headroom(one).is_some_and(|headroom| headroom.is_none_or(|headroom| headroom.is_met()))
        };
        let is_late = !candidates.iter().any(meets);
        if is_late && late::score(features, candidates, scores) {
            return;
        }
        // Otherwise a request that is late does the least harm where it costs the least.
        let eligible = || {
            let eligible = candidates.iter().filter(|one| is_late || meets(one));
            eligible.filter_map(|one| Some((is_warm(one), one.prediction?)))
        };
        let usual = Usual::of(eligible().map(|(_, one)| one));
        let costs = Range::of(eligible().map(|(_, one)| usual.cost(&one)));
        let best = |warm: bool| {
            let group = eligible().filter(|(is_warm, _)| *is_warm == warm);
            group.map(|(_, one)| f64::from(one.ttft)).fold(f64::INFINITY, f64::min)
        };
        let (warm, cold) = (best(true), best(false));
        let keeps = warm.is_finite() && cold.is_finite() && warm - cold <= RELEASE_MS;
        for (score, one) in scores.iter_mut().zip(candidates) {
            let Some((prediction, headroom)) = one.prediction.as_ref().zip(headroom(one)) else {
                *score = f64::NAN;
                continue;
            };
            if !is_late && headroom.is_some_and(|headroom| !headroom.is_met()) {
                *score = 0.0;
                continue;
            }
            let own = headroom.filter(|_| objectives.has_latency() && !is_late);
            let cheapness = costs.place(usual.cost(prediction));
            let place = self.prefer(cheapness, own.map(|headroom| headroom.share));
            *score = match (keeps, is_warm(one)) {
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
/// backend that is believed to be the cheapest. How fast each is now is known well: its time per token.
struct Usual {
    /// Milliseconds per prompt token.
    token: f64,
    /// Milliseconds of delay per stream.
    slowdown: f64,
    /// Milliseconds per output token.
    tpot: f64,
}

impl Usual {
    fn of(all: impl Iterator<Item = PredictedLatency>) -> Self {
        let mut sums = [0.0; 5];
        for one in all {
            let own = [1.0, one.work, one.uncached, one.slowdown, one.tpot].map(f64::from);
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let [count, work, uncached, slowdown, tpot] = sums;
        let ratio = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Self {
            token: ratio(work, uncached),
            slowdown: ratio(slowdown, count),
            tpot: ratio(tpot, count),
        }
    }

    /// What a request costs itself and the others there, in milliseconds.
    fn cost(&self, one: &PredictedLatency) -> f64 {
        let speed = if self.tpot > 0.0 { f64::from(one.tpot) / self.tpot } else { 1.0 };
        // LMetric (arXiv 2603.15202): prompt tokens x requests. Prompts that wait become streams beside this one.
        let each = f64::from(one.before + one.uncached) * self.token + self.slowdown;
        TTFT * f64::from(one.ttft) + f64::from(one.further) + f64::from(one.requests) * each * speed
    }
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
mod tests {
    use super::*;
    use crate::scoring::objectives::Objectives;
    use crate::scoring::params::{Params, Value};

    fn scores(prefer: &str, ttft: Option<f64>, predicted: [f32; 3]) -> [f64; 3] {
        let candidates = predicted.map(|ttft| Candidate {
            prediction: Some(PredictedLatency {
                ttft,
                ttft_p90: ttft,
                prefill: ttft,
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
        with_priority(0, cached, ttft, objective)
    }

    /// The first of two backends has so much of the prompt cached.
    fn with_priority(
        priority: i32,
        cached: u32,
        ttft: [f32; 2],
        objective: Option<f64>,
    ) -> [f64; 2] {
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
        let objectives = Objectives { ttft_ms: objective, priority, ..Objectives::default() };
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
    fn request_that_may_be_refused_goes_where_it_surely_is_in_time() {
        let [warm, cold] = with_priority(-1, 90, [400.0, 100.0], Some(500.0));
        assert!(cold > warm, "the 90th percentiles are 800 and 200");
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
        for prefer in ["most", "least", "knee"] {
            let [one, two, three] = scores(prefer, Some(100.0), [120.0, 150.0, 300.0]);
            assert!(one > two && two > three && three > 0.0, "{prefer}");
        }
    }

    #[test]
    fn fastest_is_best_without_an_objective() {
        let [first, second, third] = scores("most", None, [100.0, 250.0, 400.0]);
        assert_eq!((first, second, third), (1.0, 0.5, 1e-3));
    }

    #[test]
    fn delay_of_the_requests_there_counts() {
        let candidate = |ttft, requests| Candidate {
            prediction: Some(PredictedLatency {
                ttft,
                ttft_p90: ttft,
                requests,
                slowdown: 10.0,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        };
        let picks = |requests: f32| {
            let candidates = [candidate(100.0, requests), candidate(150.0, 100.0)];
            let mut scores = [0.0; 2];
            let scorer = ROW.make(&Params::default()).unwrap();
            scorer.score(&RequestFeatures::default(), &candidates, &mut scores);
            scores[0] > scores[1]
        };
        assert!(picks(109.0), "50 ms are worth 100");
        assert!(!picks(111.0));
    }

    #[test]
    fn noise_of_what_is_learned_does_not_favour_a_backend() {
        let candidate = |requests, noise: f32| Candidate {
            prediction: Some(PredictedLatency {
                ttft: 100.0,
                ttft_p90: 100.0,
                tpot: 30.0,
                further: 3000.0,
                requests,
                work: 10.0 * noise,
                uncached: 250.0,
                slowdown: 10.0 * noise,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        };
        let candidates = [candidate(110.0, 0.5), candidate(100.0, 2.0)];
        let mut scores = [0.0; 2];
        let scorer = ROW.make(&Params::default()).unwrap();
        scorer.score(&RequestFeatures::default(), &candidates, &mut scores);
        assert!(scores[1] > scores[0], "the one with fewer requests: {scores:?}");
    }

    #[test]
    fn unknown_preference_is_refused() {
        let mut params = Params::default();
        params.set("prefer", Value::Text("best".to_owned()));
        assert!(ROW.make(&params).is_err());
    }
}
