//! The cost of a request on a backend, in milliseconds, to itself and to the requests there.

use crate::objectives::Objectives;
use crate::prediction::PredictedLatency;
use crate::readings::Candidate;

/// The cost by which a backend with the prompt, or the home of a session, may exceed the cheapest
/// one. Found in simulation and live: by the request's own time alone, 5 s longer at most, twelve
/// requests that begin alike crowd one of four idle backends, and 20 points fewer requests of
/// sessions are in time on unequal engines.
pub const RELEASE_COST_MS: f64 = 1000.0;
/// The weight of a millisecond of the time to the first token relative to later ones: the further
/// tokens, and the delay of the requests there, which are many. Found in simulation: from 1 to 3
/// goodput is the same within its noise; with 10 up to 3 % fewer requests meet their objectives if
/// the fleet is nearly full.
const TTFT: f64 = 2.0;
/// The weight of the time for its prompt per request there: requests that arrive meanwhile wait as
/// well. Found in simulation: with 1, up to 15 points fewer requests are in time on fleets that are
/// nearly full; with 4, up to 1 % fewer tokens per second of agents whose caches are full.
const DELAY: f64 = 8.0;
/// The power of the used share of the KV caches in the cost of evicted prompts. The less room
/// streams leave for cached prompts, the more of them a new prompt evicts, and these have to be
/// computed again. Found in simulation: without it, 8 points fewer requests are in time where
/// streams fill the caches; with 1, one point fewer on unequal engines.
const USED_KV_POWER: i32 = 4;
/// The least free share of the KV caches that counts.
const MIN_FREE: f64 = 0.02;
/// The cost of missing the objective for the first token. The unit is the duration of a response
/// that just meets its time per token. Found in simulation: with 4, up to 1.1 points fewer requests
/// are in time in bursts, and up to 1.5 more of agents whose caches are full.
const MISS_TTFT: f64 = 8.0;
/// The cost of missing the objective per token. Found in simulation: with 3.5, up to 2 points fewer
/// requests are in time on unequal engines; with 5, about 0.7 points.
const MISS_TPOT: f64 = 6.0;
/// The least cost of one more stream to one that is late anyway, as a share of a miss. Found in
/// simulation: without it backends that are late get the load of those that are not yet, and 5
/// points fewer chats are in time where a full fleet could just serve all; with 0.15, up to 10
/// points fewer requests on unequal engines that are full.
const MIN_LATE_COST: f64 = 0.05;
/// If every backend has at least this chance of missing the time per token, misses count for
/// nothing: avoiding them would only move them to other requests.
const HOPELESS_CHANCE: f64 = 0.5;
/// The weight of the wait for a slot, in addition to its part in the time to the first token: in a
/// full batch, later requests wait longer as well.
const SLOT: f64 = 5.0;
/// The scale of a logistic distribution as a share of the distance from its mean to its 90th
/// percentile.
const SCALE: f64 = 1.0 / 2.197_224_577_336_219_5; // 1 / ln 9
/// The minimum scale as a share of an objective: the certainty of predictions is limited.
const MIN_SCALE: f64 = 0.05;
/// The distance below an objective, in scales, from which the chance of a miss is 0: below half the
/// objective if predictions are certain. An objective of a day would multiply any rest of a chance.
const SURE: f64 = 10.0;
/// The costs of a request on its candidates: its own time, the time of the requests there, and the
/// objectives that are missed because of it.
///
/// The cost of a prompt token, and the slowdown by another stream, are learned per backend with
/// persistent noise. Multiplied by all streams there, it would send most requests to the backend
/// that is believed to be the cheapest. So they are means over all backends.
#[derive(Debug, Clone, Copy)]
pub struct RequestCosts {
    objectives: Objectives,
    /// Milliseconds per prompt token.
    token: f64,
    /// Milliseconds of delay per stream.
    slowdown: f64,
    /// Milliseconds per output token.
    tpot: f64,
    /// The weight of the tokens of its prompt.
    delay: f64,
    /// The factor of misses: 1 while some backend surely meets the time per token, 0 if all are
    /// likely to miss it.
    hope: f64,
}

impl RequestCosts {
    /// The costs of a request with these objectives.
    pub fn of(objectives: &Objectives, candidates: &[Candidate]) -> Self {
        let used_kv = used_kv(candidates);
        let (mut sums, mut least) = ([0.0; 5], HOPELESS_CHANCE);
        for one in candidates.iter().filter_map(|one| one.prediction) {
            least = least.min(own_chance(&one, objectives));
            let own = [1.0, one.work, one.uncached, one.slowdown, one.tpot].map(f64::from);
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let [count, work, uncached, slowdown, tpot] = sums;
        let ratio = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Self {
            objectives: *objectives,
            token: ratio(work, uncached),
            slowdown: ratio(slowdown, count),
            tpot: ratio(tpot, count),
            delay: DELAY * (1.0 + used_kv.powi(USED_KV_POWER) / (1.0 - used_kv)),
            hope: 1.0 - least / HOPELESS_CHANCE,
        }
    }

    /// Returns the cost on one of them, in milliseconds.
    pub fn of_one(&self, one: &PredictedLatency) -> f64 {
        let objectives = &self.objectives;
        let requests = f64::from(one.requests);
        // LMetric (arXiv 2603.15202): prompt tokens x requests. Waiting prompts become streams
        // beside this one. Not multiplied by the slowness of the backend: fast ones got too many
        // requests by that.
        let prompts = f64::from(one.before) + self.delay * f64::from(one.uncached);
        let each = prompts * self.token + self.slowdown;
        let own = TTFT * f64::from(one.ttft) + SLOT * f64::from(one.slot_wait);
        let time = own + f64::from(one.further) + requests * each;
        // Nothing can be missed.
        if !objectives.has_latency() && !one.tightest_tpot.is_finite() {
            return time;
        }
        let first = objectives.ttft_ms.unwrap_or(f64::INFINITY);
        let first = chance(first, one.ttft, one.ttft_p90);
        let limit = objectives.tpot_ms.unwrap_or(f64::INFINITY);
        let others_limit = limit.min(one.tightest_tpot.into());
        // A stream stands still while the prompt is computed.
        let added = one.added + one.work / one.output.max(1.0);
        let later = chance(others_limit, one.tpot + added, one.tpot_p90 + added);
        let growth = later - chance(others_limit, one.tpot, one.tpot_p90);
        let missed = own_chance(one, objectives) + requests * growth.max(MIN_LATE_COST * later);
        let each = if limit.is_finite() { limit } else { self.tpot };
        let whole = self.hope * each * f64::from(one.output);
        time + whole * (MISS_TTFT * first + MISS_TPOT * missed)
    }
}

/// Returns the mean used share of the KV caches that are known; 0 if none is.
fn used_kv(candidates: &[Candidate]) -> f64 {
    let known = candidates.iter().filter_map(|one| one.kv_utilization);
    let (used, count) = known.fold((0.0, 0.0), |(sum, count), used| (sum + used, count + 1.0));
    if count > 0.0 { (used / count).min(1.0 - MIN_FREE) } else { 0.0 }
}

/// Returns the chance of missing a limit, which may be infinite, by a predicted mean and 90th
/// percentile.
fn chance(limit: f64, mean: f32, p90: f32) -> f64 {
    let scale = (SCALE * f64::from(p90 - mean)).max(MIN_SCALE * limit.max(1e-3));
    let below = (limit - f64::from(mean)) / scale;
    if !limit.is_finite() || below >= SURE {
        return 0.0;
    }
    1.0 / (1.0 + below.exp())
}

/// Returns the chance that the request misses its own objective per token.
fn own_chance(one: &PredictedLatency, objectives: &Objectives) -> f64 {
    chance(objectives.tpot_ms.unwrap_or(f64::INFINITY), one.tpot, one.tpot_p90)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_of_a_miss_grows_with_the_prediction() {
        let missed = |mean, p90| chance(100.0, mean, p90);
        assert_eq!(missed(100.0, 140.0), 0.5);
        assert!((missed(80.0, 100.0) - 0.1).abs() < 1e-6, "it is the 90th percentile");
        assert!(missed(80.0, 120.0) > 0.2 && missed(80.0, 80.0) < 0.02 && missed(1e9, 2e9) <= 1.0);
        assert_eq!(chance(f64::INFINITY, 50.0, 90.0), 0.0);
        assert!(chance(0.0, 50.0, 60.0) > 0.99, "what is left after a wait may be nothing");
    }
}
