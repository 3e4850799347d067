//! Exploration: if predictions decide, a backend that is predicted too slow is never picked, so
//! nothing new is learned about it. A share of the requests that may be late goes to a backend of
//! which little is known, or nothing new for a while.

use penstock_scoring::{Candidate, Objectives, PredictedLatency, RequestFeatures, Residency};
use rand::Rng;
use rand::rngs::SmallRng;

use super::laggards;

/// The share of requests that explore.
const SHARE: f64 = 0.01;
/// The share while only one backend has shown how fast it is. The others are predicted like that
/// one, so without requests there they would seem as slow.
const SECOND_SHARE: f64 = 0.25;
/// The number of first tokens that show how fast a backend is: what was believed of its front end
/// counts until then.
const SHOWN: f32 = 8.0;
/// The share while an idle backend is due to be tried again.
const DUE_SHARE: f64 = 0.1;
/// The time after which it is due, by how much longer a response is predicted to take there than on
/// the fastest one: all of its tries lose at most 1 % of the time.
const RETRY_FACTOR: f32 = 100.0;
/// The least time after which it is due, in milliseconds.
const MIN_RETRY_MS: f32 = 1000.0;

/// Returns the candidate that the request explores instead of `chosen`, if it does. Backends with
/// trusted predictions are excluded, but for idle ones that may have recovered. So are stalled
/// ones: they get a single request once they may work again.
pub(super) fn explored(
    features: &RequestFeatures,
    candidates: &[Candidate],
    chosen: usize,
    rng: &mut SmallRng,
) -> Option<usize> {
    let objectives = &features.objectives;
    let may_be_late = !objectives.has_latency() || objectives.is_sheddable();
    let second = second(candidates);
    if second.is_some() && (may_be_late || is_late(candidates.get(chosen)?, objectives)) {
        return second.filter(|_| rng.random::<f64>() < SECOND_SHARE);
    }
    let fastest = laggards::fastest(candidates);
    let is_in_time = |one: &Candidate| may_be_late || !is_late(one, objectives);
    let is_due = |one: &Candidate| is_due(one, fastest.as_ref()) && is_in_time(one);
    if let Some(due) = candidates.iter().position(is_due)
        && rng.random::<f64>() < DUE_SHARE
    {
        return Some(due);
    }
    if !may_be_late {
        return None;
    }
    let is_of_use =
        |one: &Candidate| is_unknown(one) || laggards::is_tried_again(one, fastest.as_ref());
    let count = candidates.iter().filter(|one| is_of_use(one)).count();
    // If none is trusted, all of them get requests anyway.
    if count == 0 || count == candidates.len() || rng.random::<f64>() >= SHARE {
        return None;
    }
    let nth = rng.random_range(0..count);
    let mut places = candidates.iter().enumerate().filter(|(_, one)| is_of_use(one));
    places.nth(nth).map(|(place, _)| place)
}

fn is_unknown(one: &Candidate) -> bool {
    one.prediction.is_some_and(|one| !one.is_trusted && one.stall <= 0.0)
}

/// Returns whether a backend is predicted to be slower than the fastest one, but has been idle for
/// so long that a try costs little.
fn is_due(one: &Candidate, fastest: Option<&PredictedLatency>) -> bool {
    let (Some(fastest), Some(prediction)) = (fastest, &one.prediction) else { return false };
    // To load a model is no try: it may take another one's place.
    let is_loaded = matches!(one.residency, Residency::Unknown | Residency::Resident);
    let lost = laggards::whole(prediction) - laggards::whole(fastest);
    let retry_ms = (RETRY_FACTOR * lost).max(MIN_RETRY_MS);
    let is_known = prediction.is_trusted && prediction.stall <= 0.0;
    is_loaded && is_known && lost > 0.0 && laggards::is_idle_for(prediction, retry_ms)
}

/// Returns the backend to compare with the only one that has shown its speed: of the idle ones, the
/// one that has shown most. `None` if none or several have, or none is idle.
fn second(candidates: &[Candidate]) -> Option<usize> {
    let shown = |one: &Candidate| one.prediction.map_or(0.0, |one| one.first_tokens);
    if candidates.iter().filter(|one| shown(one) >= SHOWN).count() != 1 {
        return None;
    }
    let is_idle = |one: &Candidate| one.prediction.is_some_and(|one| one.requests < 1.0);
    let places = candidates.iter().enumerate();
    let idle = places.filter(|(_, one)| is_unknown(one) && is_idle(one) && shown(one) < SHOWN);
    idle.max_by(|(_, one), (_, other)| shown(one).total_cmp(&shown(other))).map(|(place, _)| place)
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
    fn second_backend_is_tried_soon() {
        let known = PredictedLatency {
            ttft: 1000.0,
            ttft_p90: 1000.0,
            is_trusted: true,
            first_tokens: 20.0,
            ..Default::default()
        };
        let adopted = PredictedLatency { is_trusted: false, first_tokens: 0.0, ..known };
        let shown = |first_tokens| PredictedLatency { first_tokens, ..adopted };
        let counts =
            |objectives, all: &[PredictedLatency]| counts_by(objectives, all.iter().copied());
        let within = |ttft_ms| Objectives { ttft_ms: Some(ttft_ms), ..Objectives::default() };
        let (any, pair) = (Objectives::default(), [known, adopted]);
        assert!((4700..5300).contains(&counts(any, &pair)[1]));
        assert_eq!(counts(within(2000.0), &pair)[1], 0, "the request is in time where it goes");
        assert!((4700..5300).contains(&counts(within(500.0), &pair)[1]), "it is late there");
        let of_three = counts(any, &[known, shown(1.0), adopted]);
        assert!((4700..5300).contains(&of_three[1]) && of_three[2] == 0, "{of_three:?}");
        let is_rare =
            |all: &[PredictedLatency]| (150..250).contains(&counts(any, all).iter().sum::<u32>());
        assert!(is_rare(&[known, shown(8.0), adopted]), "two have shown it");
        let busy = PredictedLatency { requests: 1.0, ..adopted };
        assert!(is_rare(&[known, busy]), "one request at a time");
        let laggard = PredictedLatency { alone: 5000.0, since_learned: 59_000.0, ..known };
        assert_eq!(counts(any, &[known, laggard])[1], 0, "it stays unused");
        let later = PredictedLatency { since_learned: 61_000.0, ..laggard };
        assert!(is_rare(&[known, later]), "it may have recovered");
        // A request there takes 100 ms longer, which is a share of 1 % in 10 s.
        let slower =
            PredictedLatency { ttft: 1100.0, ttft_p90: 1100.0, since_learned: 9_900.0, ..known };
        assert_eq!(counts(any, &[known, slower])[1], 0, "it would cost too much");
        let later = PredictedLatency { since_learned: 10_100.0, ..slower };
        assert!((1800..2200).contains(&counts(any, &[known, later])[1]), "it may be faster now");
        let unknown = PredictedLatency { first_tokens: 0.0, is_trusted: false, ..later };
        assert!(is_rare(&[known, known, unknown]), "it is a guess");
        assert_eq!(counts(within(2000.0), &[known, known, unknown])[2], 0, "not with an objective");
        let busy = PredictedLatency { requests: 1.0, ..later };
        assert_eq!(counts(any, &[known, busy])[1], 0, "it is learned from");
        let strict = |ttft_ms| counts(within(ttft_ms), &[known, later])[1];
        assert_eq!(strict(1050.0), 0, "it would be late");
        assert!((1800..2200).contains(&strict(2000.0)), "it would be in time");
        assert_eq!(counts(any, &[adopted, adopted]), [0, 0], "all get requests anyway");
    }
}
