//! Exploration: if predictions decide, a backend that is predicted too slow is never picked, so
//! nothing new is learned about it. A share of the requests that may be late goes to a backend of
//! which little is known.

use penstock_scoring::{Candidate, Objectives, PredictedLatency, RequestFeatures};
use rand::Rng;
use rand::rngs::SmallRng;

/// The share of requests that explore.
const SHARE: f64 = 0.01;
/// The share while an idle backend has served fewer requests than [`FIRST`]. It is predicted like
/// another one, so without requests there it would seem as slow as that.
const FIRST_SHARE: f64 = 0.25;
/// The number of first tokens that show how fast a backend is: what was believed of its front end
/// counts until then.
const FIRST: f32 = 8.0;

/// Returns the candidate that the request explores instead of `chosen`, if it does. Backends with
/// trusted predictions are excluded: the slow ones stay unused. So are stalled ones: they get a
/// single request once they may work again.
pub(super) fn explored(
    features: &RequestFeatures,
    candidates: &[Candidate],
    chosen: usize,
    rng: &mut SmallRng,
) -> Option<usize> {
    let objectives = &features.objectives;
    let may_be_late = !objectives.has_latency() || objectives.is_sheddable();
    let unknown = candidates.iter().filter(|one| is_unknown(one)).count();
    // If none is trusted, all of them get requests anyway.
    if unknown == 0 || unknown == candidates.len() {
        return None;
    }
    let untried = candidates.iter().filter(|one| is_untried(one)).count();
    if untried > 0 && (may_be_late || is_late(candidates.get(chosen)?, objectives)) {
        return nth_of(candidates, is_untried, untried, FIRST_SHARE, rng);
    }
    if !may_be_late {
        return None;
    }
    nth_of(candidates, is_unknown, unknown, SHARE, rng)
}

/// Returns one of the `count` candidates of this kind for a share of the requests.
fn nth_of(
    candidates: &[Candidate],
    is_of_kind: fn(&Candidate) -> bool,
    count: usize,
    share: f64,
    rng: &mut SmallRng,
) -> Option<usize> {
    if rng.random::<f64>() >= share {
        return None;
    }
    let nth = rng.random_range(0..count);
    let mut places = candidates.iter().enumerate().filter(|(_, one)| is_of_kind(one));
    places.nth(nth).map(|(place, _)| place)
}

fn is_unknown(one: &Candidate) -> bool {
    one.prediction.is_some_and(|one| !one.is_trusted && one.stall <= 0.0)
}

/// Returns whether a backend is idle and too few requests have shown how fast it is.
fn is_untried(one: &Candidate) -> bool {
    let is_idle = |one: PredictedLatency| one.first_tokens < FIRST && one.requests < 1.0;
    is_unknown(one) && one.prediction.is_some_and(is_idle)
}

/// Returns whether a request is predicted to miss its objectives on a candidate.
fn is_late(one: &Candidate, objectives: &Objectives) -> bool {
    let headroom = one.prediction.and_then(|prediction| objectives.headroom(&prediction));
    headroom.is_some_and(|headroom| !headroom.is_met())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use penstock_scoring::{Objectives, PredictedLatency};

    fn counts(objectives: Objectives, trusted: &[bool]) -> Vec<u32> {
        let prediction = |is_trusted: &bool| PredictedLatency {
            is_trusted: *is_trusted,
            first_tokens: 8.0,
            ..Default::default()
        };
        counts_by(objectives, trusted.iter().map(prediction))
    }

    fn counts_by(
        objectives: Objectives,
        predictions: impl Iterator<Item = PredictedLatency>,
    ) -> Vec<u32> {
        let candidate = |one| Candidate { prediction: Some(one), ..Candidate::default() };
        let candidates: Vec<Candidate> = predictions.map(candidate).collect();
        let features = RequestFeatures { objectives, ..RequestFeatures::default() };
        let mut rng = SmallRng::seed_from_u64(1);
        let mut counts = vec![0; candidates.len()];
        for _ in 0..20_000 {
            if let Some(place) = explored(&features, &candidates, 0, &mut rng) {
                counts[place] += 1;
            }
        }
        counts
    }

    #[test]
    fn unknown_backends_are_explored_by_requests_that_may_be_late() {
        let strict = Objectives { ttft_ms: Some(500.0), ..Objectives::default() };
        let batch = Objectives { priority: -1, ..strict };
        for may_be_late in [Objectives::default(), batch] {
            let counts = counts(may_be_late, &[true, false, false]);
            assert_eq!(counts[0], 0, "one that is known is not explored");
            assert!(counts[1..].iter().all(|count| (60..140).contains(count)), "{counts:?}");
        }
        assert_eq!(counts(strict, &[true, false, false]), [0, 0, 0]);
        assert_eq!(counts(batch, &[true, true]), [0, 0]);
        assert_eq!(counts(batch, &[false, false]), [0, 0], "all get requests anyway");
    }

    #[test]
    fn idle_backend_with_few_responses_is_tried_soon() {
        let known = PredictedLatency {
            ttft: 1000.0,
            ttft_p90: 1000.0,
            is_trusted: true,
            ..Default::default()
        };
        let adopted = PredictedLatency { is_trusted: false, first_tokens: 7.0, ..known };
        let tried = PredictedLatency { requests: 1.0, ..adopted };
        let counts = |objectives, other| counts_by(objectives, [known, other].into_iter())[1];
        let within = |ttft_ms| Objectives { ttft_ms: Some(ttft_ms), ..Objectives::default() };
        assert!((4700..5300).contains(&counts(Objectives::default(), adopted)));
        assert!((150..250).contains(&counts(Objectives::default(), tried)), "one at a time");
        assert_eq!(counts(within(2000.0), adopted), 0, "the request is in time where it goes");
        assert!((4700..5300).contains(&counts(within(500.0), adopted)), "it is late there");
    }
}
