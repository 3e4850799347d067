//! Laggards: backends that are many times slower than another one, such as a GPU that throttles or
//! an engine that has fallen back to its CPU. A sum of scores would keep the sessions there whose
//! prompts they have cached.

use penstock_scoring::{Candidate, PredictedLatency};

use crate::routing::filters::RejectReason;
use crate::routing::recorder::Recorder;

/// The factor by which a response must take longer than on another backend. Unequal engines of one
/// fleet, such as two generations of GPUs, are up to 3 times as slow as each other.
const FACTOR: f32 = 4.0;
/// The time after which an idle laggard may get a request again, in milliseconds: nothing else
/// shows that it has recovered.
const RETRY_MS: f32 = 60_000.0;

/// Drops the laggards among the candidates. The one that they are compared with stays.
pub(super) fn exclude<R: Recorder>(candidates: &mut Vec<Candidate>, recorder: &mut R) {
    let Some(fastest) = fastest(candidates) else { return };
    candidates.retain(|one| {
        let is_kept = !is_laggard(one, &fastest) || may_have_recovered(one);
        if !is_kept {
            recorder.excluded(one.row, RejectReason::Slower);
        }
        is_kept
    });
}

/// Returns whether a candidate is a laggard that was kept to be tried again.
pub(super) fn is_tried_again(one: &Candidate, fastest: Option<&PredictedLatency>) -> bool {
    fastest.is_some_and(|fastest| is_laggard(one, fastest)) && may_have_recovered(one)
}

/// Returns the prediction of the candidate with the shortest response, of those that have sent a
/// first token and do not stall: others are only believed to be as fast.
pub(super) fn fastest(candidates: &[Candidate]) -> Option<PredictedLatency> {
    let known = candidates.iter().filter_map(|one| one.prediction.as_ref());
    let known = known.filter(|one| one.first_tokens >= 1.0 && one.stall <= 0.0);
    known.min_by(|one, other| whole(one).total_cmp(&whole(other))).copied()
}

/// Returns whether a response takes much longer on a backend than on the fastest one, even if
/// nothing else was there: load is for the scorers to weigh. The first token must not come later on
/// the fastest one: a response in time is worth more than a short one.
fn is_laggard(one: &Candidate, fastest: &PredictedLatency) -> bool {
    one.prediction.as_ref().is_some_and(|one| {
        one.is_trusted && one.alone > FACTOR * whole(fastest) && fastest.ttft <= one.ttft
    })
}

fn may_have_recovered(one: &Candidate) -> bool {
    one.prediction.as_ref().is_some_and(|one| is_idle_for(one, RETRY_MS))
}

/// Returns whether a backend is idle and has shown nothing for `least_ms`.
pub(super) fn is_idle_for(one: &PredictedLatency, least_ms: f32) -> bool {
    one.requests < 1.0 && one.since_learned > least_ms
}

/// Returns the time of a whole response with what runs there, in milliseconds.
pub(super) fn whole(one: &PredictedLatency) -> f32 {
    // Predictions of idle and of busy engines are corrected by different factors, so that a
    // response may seem to take longer alone than beside others. Without the bound even the fastest
    // one would be dropped.
    (one.ttft + one.further).max(one.alone)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::routing::recorder::NoRecord;

    fn taking(ttft: f32, further: f32) -> PredictedLatency {
        PredictedLatency {
            ttft,
            further,
            alone: ttft + further,
            first_tokens: 20.0,
            ..PredictedLatency::default()
        }
    }

    fn fast() -> PredictedLatency {
        taking(100.0, 900.0)
    }

    fn slow() -> PredictedLatency {
        PredictedLatency { is_trusted: true, ..taking(1000.0, 4000.0) }
    }

    fn rows(predictions: &[PredictedLatency]) -> Vec<u32> {
        let candidate = |(row, one): (u32, &PredictedLatency)| Candidate {
            row,
            prediction: Some(*one),
            ..Candidate::default()
        };
        let mut candidates: Vec<_> = (0..).zip(predictions).map(candidate).collect();
        exclude(&mut candidates, &mut NoRecord);
        candidates.iter().map(|one| one.row).collect()
    }

    #[test]
    fn backend_that_takes_over_four_times_as_long_is_dropped() {
        assert_eq!(rows(&[fast(), slow()]), [0]);
        assert_eq!(rows(&[slow(), fast(), slow()]), [1]);
        assert_eq!(rows(&[slow(), slow()]), [0, 1]);
        let less = PredictedLatency { alone: 4000.0, ..slow() };
        assert_eq!(rows(&[fast(), less]), [0, 1], "4 times is still a backend to use");
        let full = PredictedLatency { further: 1500.0, ..fast() };
        assert_eq!(rows(&[full, slow()]), [0, 1], "until the other one is as full as that");
    }

    #[test]
    fn load_makes_no_laggard() {
        let queue = PredictedLatency { ttft: 9000.0, alone: 1000.0, ..slow() };
        let batch = PredictedLatency { further: 9000.0, alone: 1000.0, ..slow() };
        assert_eq!(rows(&[fast(), queue, batch]), [0, 1, 2]);
    }

    #[test]
    fn response_takes_no_longer_alone() {
        let all = [PredictedLatency { is_trusted: true, alone: 9000.0, ..fast() }; 3];
        assert_eq!(rows(&all), [0, 1, 2]);
        assert_eq!(rows(&[fast(), all[1]]), [0]);
    }

    proptest! {
        #[test]
        fn one_backend_is_always_left(
            times in proptest::collection::vec((0_f32..1e6, 0_f32..1e6, 0_f32..1e6, 0_f32..3.0), 1..5),
        ) {
            let prediction = |(ttft, further, alone, first_tokens)| PredictedLatency {
                is_trusted: true,
                alone,
                first_tokens,
                ..taking(ttft, further)
            };
            let predictions: Vec<_> = times.into_iter().map(prediction).collect();
            prop_assert!(!rows(&predictions).is_empty());
        }
    }

    #[test]
    fn first_token_in_time_is_worth_more_than_a_short_response() {
        let queue = PredictedLatency { ttft: 1001.0, further: 100.0, ..fast() };
        assert_eq!(rows(&[queue, slow()]), [0, 1]);
    }

    #[test]
    fn only_what_is_learned_counts() {
        let unknown = PredictedLatency { first_tokens: 0.0, ..fast() };
        assert_eq!(rows(&[unknown, slow()]), [0, 1], "the fast one is a guess");
        let silent = PredictedLatency { stall: 1.0, ..fast() };
        assert_eq!(rows(&[silent, slow()]), [0, 1], "the fast one emits nothing");
        let guess = PredictedLatency { is_trusted: false, ..slow() };
        assert_eq!(rows(&[fast(), guess]), [0, 1], "the slow one may have loaded its model");
    }

    #[test]
    fn idle_laggard_gets_one_request_a_minute() {
        let later = PredictedLatency { since_learned: 60_001.0, ..slow() };
        assert_eq!(rows(&[fast(), later]), [0, 1]);
        let tried = PredictedLatency { requests: 1.0, ..later };
        assert_eq!(rows(&[fast(), tried]), [0], "one of them shows it");
    }
}
