//! Further copies of popular prompts. A prompt that most backends have cached comes again soon. A
//! decision that weighs only its own request would send all of them to these backends, however idle
//! the others are, because the first request there has to compute the prompt. Found in simulation:
//! with one client that sends three of four requests, all with one system prompt, two of eight
//! backends never got a copy, and responses took 5 % longer.

use penstock_scoring::{
    Candidate, PredictedLatency, RequestCosts, RequestFeatures, Residency, WARM,
};

/// The least number of backends that have a popular prompt: a session that moved leaves its prompt
/// on two or three. Found in simulation: with 3, requests take 3 % longer on four unequal engines
/// that are full.
const MIN_COPIES: usize = 4;
/// The number of later requests that a further copy is expected to serve, per backend that has the
/// prompt. Found in simulation: with 8, agents whose caches are full have 3 % fewer tokens per
/// second, because copies evict other prompts; with 1 as many as without further copies.
const USES_PER_COPY: f64 = 1.0;

/// The share of a KV cache in use from which it has no room for a copy, which would evict other
/// prompts and interrupt streams. Found in simulation: without it, up to 4 points fewer requests
/// are in time in bursts on engines with a twentieth of the usual cache; with it, one point.
const MAX_USED_KV: f64 = 0.3;

/// The tokens of prompts that wait before a request, as a share of those of its prompt, from which
/// no copy is made: the copies may be unfinished themselves, and many requests at once show no
/// prompt that comes again. Found in simulation: without it, a client that sends each of its
/// prompts 150 times at once takes all backends from the others, not most.
const MAX_BEFORE: f64 = 0.25;

/// Returns the candidate that lacks the prompt and saves most by a copy, if `chosen` has it, the
/// prompt is popular, and later requests save more than this one loses.
pub(super) fn choose_for_copy(
    features: &RequestFeatures,
    candidates: &[Candidate],
    chosen: usize,
) -> Option<usize> {
    let has_prompt = |one: &Candidate| one.match_ratio() >= WARM;
    let has_room = |one: &Candidate| one.kv_utilization.is_none_or(|used| used < MAX_USED_KV);
    // The one that is busy shows how full the other one will be.
    let warm = candidates.get(chosen).filter(|one| has_prompt(one) && has_room(one))?;
    let own = warm.prediction.as_ref()?;
    let prompt_tokens = f64::from(features.cached_tokens(warm)) + features.new_tokens(warm);
    if f64::from(own.before) > MAX_BEFORE * prompt_tokens {
        return None;
    }
    let copies = candidates.iter().filter(|one| has_prompt(one)).count();
    let is_popular = copies >= MIN_COPIES && 2 * copies > candidates.len();
    if !is_popular || copies == candidates.len() {
        return None;
    }
    let costs = RequestCosts::of(&features.objectives, candidates);
    let own_cost = costs.of_one(own);
    let uses = USES_PER_COPY * copies as f64;
    let saved = |one: &Candidate| {
        let prediction = one.prediction.as_ref().filter(|one| one.is_trusted)?;
        let gain = own_cost - costs.of_one(&with_prompt(prediction, own));
        let loss = costs.of_one(prediction) - own_cost;
        Some(gain * uses - loss).filter(|saved| gain > 0.0 && *saved > 0.0)
    };
    // To load a model or an adapter may take another one's place.
    let is_loaded = |one: &Candidate| {
        matches!(one.residency, Residency::Unknown | Residency::Resident)
            && one.adapter == warm.adapter
    };
    let may_get = |one: &Candidate| {
        !has_prompt(one) && one.priority == warm.priority && is_loaded(one) && has_room(one)
    };
    let others = candidates.iter().enumerate().filter(|(_, one)| may_get(one));
    let savings = others.filter_map(|(place, one)| Some((place, saved(one)?)));
    savings.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(place, _)| place)
}

/// Returns the prediction for a backend once it has as much of the prompt as that of `warm`.
fn with_prompt(one: &PredictedLatency, warm: &PredictedLatency) -> PredictedLatency {
    let share = (warm.uncached / one.uncached.max(1.0)).min(1.0);
    let saved = one.prefill * (1.0 - share);
    PredictedLatency {
        ttft: (one.ttft - saved).max(0.0),
        ttft_p90: (one.ttft_p90 - saved).max(0.0),
        prefill: one.prefill - saved,
        work: one.work * share,
        uncached: one.uncached * share,
        ..*one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns candidates of which the first `copies` have the prompt, with that many requests on
    /// each, and none on the others.
    fn fleet(copies: u32, requests: f32, count: u32) -> Vec<Candidate> {
        let candidate = |row: u32| {
            let has_prompt = row < copies;
            let uncached = if has_prompt { 300.0 } else { 7300.0 };
            let prediction = PredictedLatency {
                ttft: uncached * 0.04,
                prefill: uncached * 0.04,
                work: uncached * 0.04,
                uncached,
                further: 4000.0,
                slowdown: 100.0,
                output: 200.0,
                requests: if has_prompt { requests } else { 1.0 },
                tightest_tpot: f32::INFINITY,
                is_trusted: true,
                ..PredictedLatency::default()
            };
            let matched_blocks = if has_prompt { 96 } else { 0 };
            let prediction = Some(prediction);
            Candidate {
                row,
                prompt_blocks: 100,
                matched_blocks,
                prediction,
                ..Candidate::default()
            }
        };
        (0..count).map(candidate).collect()
    }

    fn placed(candidates: &[Candidate]) -> Option<usize> {
        let features = RequestFeatures { prompt_tokens: 7600, ..RequestFeatures::default() };
        choose_for_copy(&features, candidates, 0)
    }

    #[test]
    fn popular_prompt_gets_a_copy_where_later_requests_save_more_than_it_costs() {
        assert!(placed(&fleet(5, 30.0, 8)).is_some_and(|place| place >= 5));
        assert_eq!(placed(&fleet(5, 2.0, 8)), None, "the others are hardly less busy");
        assert_eq!(placed(&fleet(4, 30.0, 8)), None, "half of the backends are not most of them");
        assert_eq!(placed(&fleet(2, 30.0, 3)), None, "a session that moved");
        assert_eq!(placed(&fleet(8, 30.0, 8)), None, "all have it");
        assert_eq!(
            choose_for_copy(&RequestFeatures::default(), &fleet(5, 30.0, 8), 6),
            None,
            "no copy"
        );
        let mut unequal = fleet(5, 30.0, 8);
        unequal.iter_mut().for_each(|one| one.priority = one.row / 5);
        assert_eq!(placed(&unequal), None, "the others are for emergencies");
        let mut full = fleet(5, 30.0, 8);
        full.iter_mut().for_each(|one| one.kv_utilization = Some(0.6));
        assert_eq!(placed(&full), None, "no room for a copy");
        let mut unloaded = fleet(5, 30.0, 8);
        unloaded.iter_mut().skip(5).for_each(|one| one.residency = Residency::Loadable);
        assert_eq!(placed(&unloaded), None, "no model is loaded for it");
        let mut unfinished = fleet(5, 30.0, 8);
        for one in unfinished.iter_mut().filter_map(|one| one.prediction.as_mut()) {
            one.before = 2000.0;
        }
        assert_eq!(placed(&unfinished), None, "the copies are still computed");
        let mut untrusted = fleet(5, 30.0, 8);
        for one in untrusted.iter_mut().filter_map(|one| one.prediction.as_mut()) {
            one.is_trusted = false;
        }
        assert_eq!(placed(&untrusted), None, "too little is known");
    }
}
