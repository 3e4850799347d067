//! The soft home of a session: the backend that served it last, until it is too far behind.

use penstock_scoring::{Candidate, RELEASE_COST_MS, RequestCosts, RequestFeatures, WARM};

use super::laggards::whole;

/// The most tokens that the home may be behind the best of the others: the default of the scorer
/// `sticky`, 18 seconds at 15,928 tokens per second.
const MAX_TOKENS_BEHIND: f64 = 18.0 * 15_928.0;
/// The delay of a response, in milliseconds, up to which a session stays at a home of which little
/// is known yet: llm-d's prefix-affinity filter. The time that a request gains elsewhere is lost by
/// the next ones of its session.
const RELEASE_MS: f64 = 5000.0;

/// Returns the index of the session's home, if the session stays there.
pub(super) fn kept(features: &RequestFeatures, candidates: &[Candidate]) -> Option<usize> {
    let row = features.home?;
    let index = candidates.iter().position(|one| one.row == row)?;
    let home = candidates.get(index)?;
    // After a spill another backend may have the prompt, and the home may have evicted it.
    let has_prompt = |one: &Candidate| one.match_ratio() >= WARM;
    if !has_prompt(home) && candidates.iter().any(has_prompt) {
        return None;
    }
    let cost = |one: &Candidate| one.prefill_tokens + features.new_tokens(one);
    let least = candidates.iter().map(cost).fold(f64::INFINITY, f64::min);
    let is_behind = cost(home) - least > MAX_TOKENS_BEHIND || is_costly(features, home, candidates);
    (!is_behind).then_some(index)
}

/// Returns whether the request costs much more at home than elsewhere, to itself and to those
/// there. What is predicted of a backend by few responses is too noisy for that: sessions would
/// leave their homes for nothing. Then only a response that takes much longer counts.
fn is_costly(features: &RequestFeatures, home: &Candidate, candidates: &[Candidate]) -> bool {
    let costs = RequestCosts::of(&features.objectives, candidates);
    let cost = |one: &Candidate| {
        let prediction = one.prediction.as_ref().filter(|one| one.is_trusted);
        prediction.map(|one| costs.of_one(one))
    };
    let time = |one: &Candidate| one.prediction.as_ref().map(|one| f64::from(whole(one)));
    let exceeds = |of: &dyn Fn(&Candidate) -> Option<f64>, most: f64| {
        let least = candidates.iter().filter_map(of).fold(f64::INFINITY, f64::min);
        of(home).map(|own| own - least > most)
    };
    exceeds(&cost, RELEASE_COST_MS).or_else(|| exceeds(&time, RELEASE_MS)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use penstock_scoring::PredictedLatency;

    use super::*;

    fn candidate(row: u32, prefill_tokens: f64, matched_blocks: u32) -> Candidate {
        Candidate { row, prefill_tokens, matched_blocks, prompt_blocks: 10, ..Candidate::default() }
    }

    fn kept_at(home: Option<u32>, candidates: &[Candidate]) -> Option<usize> {
        kept(&RequestFeatures { home, block_tokens: 16, ..RequestFeatures::default() }, candidates)
    }

    #[test]
    fn session_stays_until_its_home_is_18_seconds_behind() {
        let at = |tokens| kept_at(Some(5), &[candidate(3, 0.0, 0), candidate(5, tokens, 0)]);
        assert_eq!(at(0.0), Some(1));
        assert_eq!(at(286_000.0), Some(1));
        assert_eq!(at(287_000.0), None);
        assert_eq!(
            kept_at(Some(7), &[candidate(3, 0.0, 0)]),
            None,
            "the home takes no request now"
        );
        assert_eq!(kept_at(None, &[candidate(3, 0.0, 0)]), None);
    }

    #[test]
    fn session_leaves_a_home_that_is_predicted_to_take_five_seconds_longer() {
        let predicted = |row: u32, ttft: f32| {
            let prediction = PredictedLatency { ttft, ..PredictedLatency::default() };
            Candidate { prediction: Some(prediction), ..candidate(row, 0.0, 9) }
        };
        let at = |ttft| kept_at(Some(5), &[predicted(3, 100.0), predicted(5, ttft)]);
        assert_eq!(at(5000.0), Some(1));
        assert_eq!(at(5200.0), None);
        let unknown = [candidate(3, 0.0, 9), predicted(5, 9000.0)];
        assert_eq!(kept_at(Some(5), &unknown), Some(1), "nothing to compare it with");
    }

    #[test]
    fn session_leaves_a_home_that_costs_much_more_to_all() {
        let predicted = |row: u32, requests: f32, is_trusted| {
            let prediction = PredictedLatency {
                ttft: 100.0,
                slowdown: 10.0,
                requests,
                tightest_tpot: f32::INFINITY,
                is_trusted,
                ..PredictedLatency::default()
            };
            Candidate { prediction: Some(prediction), ..candidate(row, 0.0, 9) }
        };
        let at = |requests, is_trusted| {
            kept_at(Some(5), &[predicted(3, 20.0, true), predicted(5, requests, is_trusted)])
        };
        assert_eq!(at(120.0, true), Some(1), "10 ms for each of 100 more");
        assert_eq!(at(121.0, true), None);
        assert_eq!(at(900.0, false), Some(1), "too little is known of the home");
    }

    #[test]
    fn prompt_counts_more_than_a_home_without_it() {
        assert_eq!(kept_at(Some(5), &[candidate(3, 0.0, 9), candidate(5, 0.0, 7)]), None);
        assert_eq!(kept_at(Some(5), &[candidate(3, 0.0, 9), candidate(5, 0.0, 8)]), Some(1));
    }
}
