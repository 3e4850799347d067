//! Where a request goes that would be late on every backend.

use super::{LEAST, is_warm};
use crate::scoring::readings::Candidate;
use crate::scoring::request::RequestFeatures;

/// The longest wait that such a request may get, in multiples of its objective. With 5 fewer others are
/// in time in simulated overloads; with 20 more, but late ones wait for twice as long.
const LONGEST: f64 = 10.0;

/// The wait on a backend where the request would be late by that alone, as all others would that arrive now; `None` where
/// it would not, would wait for too long, nothing comes from the backend, or its predictions are not trusted: too pessimistic
/// ones would send every request there.
fn wait(one: &Candidate, objective: f64) -> Option<f64> {
    let prediction = one.prediction?;
    let wait = f64::from(prediction.wait());
    let is_behind = wait > objective && wait <= LONGEST * objective;
    (is_behind && prediction.is_trusted && prediction.stall <= 0.0).then_some(wait)
}

/// Scores the candidates for a request that would be late on all of them. Best is the one with the longest wait of those where
/// all others are late as well: it makes no other one late there, and the other backends catch up. Where some candidates
/// have its prompt, only those count.
///
/// Changes nothing and returns `false` where no candidate is that far behind, for a request that may be refused, and while such
/// requests run.
pub(super) fn score(features: &RequestFeatures, all: &[Candidate], scores: &mut [f64]) -> bool {
    let objectives = &features.objectives;
    let Some(objective) = objectives.ttft_ms.filter(|_| !objectives.is_sheddable()) else {
        return false;
    };
    // Those are to give way, and would take the place of others on the backends that catch up.
    if all.iter().any(|one| one.prediction.is_some_and(|prediction| prediction.sheddable > 0.0)) {
        return false;
    }
    // The next requests of its session would miss its prompt elsewhere.
    let is_warm = |one: &Candidate| is_warm(features, one);
    let has_warm = all.iter().any(is_warm);
    let wait = |one: &Candidate| wait(one, objective).filter(|_| !has_warm || is_warm(one));
    let longest = all.iter().filter_map(wait).fold(0.0, f64::max);
    if longest <= 0.0 {
        return false;
    }
    for (score, one) in scores.iter_mut().zip(all) {
        *score = match (wait(one), one.prediction) {
            (Some(wait), _) => wait / longest,
            (None, Some(_)) => LEAST,
            (None, None) => f64::NAN,
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoring::objectives::Objectives;
    use crate::scoring::prediction::PredictedLatency;

    fn features(objectives: Objectives) -> RequestFeatures {
        RequestFeatures { objectives, ..RequestFeatures::default() }
    }

    /// Scores by wait and own prompt; each request has an objective of 500 ms.
    fn scores<const N: usize>(priority: i32, backends: [(f32, f32); N]) -> Option<[f64; N]> {
        let candidates = backends.map(|(wait, prefill)| Candidate {
            prediction: Some(PredictedLatency {
                ttft: wait + prefill,
                backlog: wait,
                prefill,
                is_trusted: true,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        });
        let objectives = Objectives { ttft_ms: Some(500.0), priority, ..Objectives::default() };
        let mut scores = [0.0; N];
        score(&features(objectives), &candidates, &mut scores).then_some(scores)
    }

    #[test]
    fn late_request_goes_where_all_are_late() {
        let [soon, later, latest] =
            scores(0, [(400.0, 200.0), (600.0, 200.0), (4000.0, 200.0)]).unwrap();
        assert!(latest > later && later > soon && soon > 0.0, "{soon} {later} {latest}");
    }

    #[test]
    fn late_request_waits_for_ten_times_its_objective_at_most() {
        let [soon, later, latest] =
            scores(0, [(400.0, 200.0), (600.0, 200.0), (5100.0, 200.0)]).unwrap();
        assert!(later > soon && soon == latest, "{soon} {later} {latest}");
    }

    #[test]
    fn late_request_of_a_session_stays_with_its_prompt() {
        let candidates = [(600.0, 9), (4000.0, 0)].map(|(wait, matched_blocks)| Candidate {
            prediction: Some(PredictedLatency {
                ttft: wait,
                backlog: wait,
                is_trusted: true,
                ..Default::default()
            }),
            prompt_blocks: 10,
            matched_blocks,
            ..Candidate::default()
        });
        let objectives = Objectives { ttft_ms: Some(500.0), ..Objectives::default() };
        let mut scores = [0.0; 2];
        assert!(score(&features(objectives), &candidates, &mut scores) && scores[0] > scores[1]);
    }

    #[test]
    fn long_prompt_is_no_reason_where_others_are_in_time() {
        assert_eq!(scores(0, [(0.0, 900.0), (400.0, 900.0)]), None);
    }

    #[test]
    fn long_response_in_one_piece_is_no_reason_either() {
        let whole = |ttft| PredictedLatency {
            ttft,
            decode: 3000.0,
            is_trusted: true,
            ..Default::default()
        };
        let candidates = [4500.0, 4800.0]
            .map(|ttft| Candidate { prediction: Some(whole(ttft)), ..Default::default() });
        let objectives = Objectives { ttft_ms: Some(500.0), ..Objectives::default() };
        assert!(!score(&features(objectives), &candidates, &mut [0.0; 2]), "both are idle");
    }

    #[test]
    fn late_request_goes_where_it_is_least_late_beside_requests_that_may_be_refused() {
        let candidates = [0.0, 1.0].map(|sheddable| Candidate {
            prediction: Some(PredictedLatency {
                ttft: 1000.0,
                backlog: 1000.0,
                is_trusted: true,
                sheddable,
                ..Default::default()
            }),
            ..Candidate::default()
        });
        let objectives = Objectives { ttft_ms: Some(500.0), ..Objectives::default() };
        assert!(!score(&features(objectives), &candidates, &mut [0.0; 2]));
        assert!(score(&features(objectives), &candidates[..1], &mut [0.0]), "there are none");
    }

    #[test]
    fn requests_that_may_be_refused_go_where_they_are_least_late() {
        assert_eq!(scores(-1, [(600.0, 200.0), (4000.0, 200.0)]), None);
    }

    #[test]
    fn silent_and_unknown_backends_get_no_late_requests() {
        let known = PredictedLatency {
            ttft: 3000.0,
            backlog: 1000.0,
            is_trusted: true,
            ..Default::default()
        };
        let scores_one = |prediction| {
            let candidates = [Candidate { prediction: Some(prediction), ..Candidate::default() }];
            let objectives = Objectives { ttft_ms: Some(500.0), ..Objectives::default() };
            score(&features(objectives), &candidates, &mut [0.0])
        };
        assert!(scores_one(known));
        assert!(!scores_one(PredictedLatency { stall: 2000.0, ..known }));
        assert!(!scores_one(PredictedLatency { is_trusted: false, ..known }));
    }
}
