//! Exploration: if predictions decide, a backend that is predicted too slow is never picked, so
//! nothing new is learned about it. A small share of the requests that may be late goes to a
//! backend of which little is known.

use penstock_scoring::{Candidate, RequestFeatures};
use rand::Rng;
use rand::rngs::SmallRng;

/// The share of requests that explore.
const SHARE: f64 = 0.01;

/// Returns the candidate that the request explores, if it does. Backends with trusted predictions
/// are excluded: the slow ones stay unused. So are stalled ones: they get a single request once
/// they may work again.
pub(super) fn explored(
    features: &RequestFeatures,
    candidates: &[Candidate],
    rng: &mut SmallRng,
) -> Option<usize> {
    let objectives = &features.objectives;
    if objectives.has_latency() && !objectives.is_sheddable() {
        return None;
    }
    let is_unknown =
        |one: &&Candidate| one.prediction.is_some_and(|one| !one.is_trusted && one.stall <= 0.0);
    let unknown = candidates.iter().filter(is_unknown).count();
    // If none is trusted, all of them get requests anyway.
    if unknown == 0 || unknown == candidates.len() || rng.random::<f64>() >= SHARE {
        return None;
    }
    let nth = rng.random_range(0..unknown);
    candidates
        .iter()
        .enumerate()
        .filter(|(_, one)| is_unknown(one))
        .nth(nth)
        .map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use penstock_scoring::{Objectives, PredictedLatency};

    fn counts(objectives: Objectives, trusted: &[bool]) -> Vec<u32> {
        let candidates: Vec<Candidate> = trusted
            .iter()
            .map(|is_trusted| Candidate {
                prediction: Some(PredictedLatency {
                    is_trusted: *is_trusted,
                    ..Default::default()
                }),
                ..Candidate::default()
            })
            .collect();
        let features = RequestFeatures { objectives, ..RequestFeatures::default() };
        let mut rng = SmallRng::seed_from_u64(1);
        let mut counts = vec![0; trusted.len()];
        for _ in 0..20_000 {
            if let Some(place) = explored(&features, &candidates, &mut rng) {
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
}
