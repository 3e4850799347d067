//! The soft home of a session: the backend that served it last, until it is too far behind.

use penstock_scoring::{Candidate, RELEASE_MS, RequestFeatures, WARM};

use super::laggards::whole;

/// The most tokens that the home may be behind the best of the others: the default of the scorer
/// `sticky`, 18 seconds at 15,928 tokens per second.
const RELEASE_TOKENS: f64 = 18.0 * 15_928.0;

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
    let is_behind = cost(home) - least > RELEASE_TOKENS || is_slow(home, candidates);
    (!is_behind).then_some(index)
}

/// Returns whether a response from the home is predicted to take much longer than from another.
fn is_slow(home: &Candidate, candidates: &[Candidate]) -> bool {
    let whole = |one: &Candidate| one.prediction.as_ref().map(|one| f64::from(whole(one)));
    let least = candidates.iter().filter_map(whole).fold(f64::INFINITY, f64::min);
    whole(home).is_some_and(|own| own - least > RELEASE_MS)
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
    fn prompt_counts_more_than_a_home_without_it() {
        assert_eq!(kept_at(Some(5), &[candidate(3, 0.0, 9), candidate(5, 0.0, 7)]), None);
        assert_eq!(kept_at(Some(5), &[candidate(3, 0.0, 9), candidate(5, 0.0, 8)]), Some(1));
    }
}
