//! `weighted`: the highest sum of weighted scores.

use penstock_scoring::{Candidate, Profile, RequestFeatures, Standing};

use super::exploration::explored;
use super::{Picked, copies, home, laggards};
use crate::fleet::ModelId;
use crate::routing::filters::RejectReason;
use crate::routing::random::RandomSource;
use crate::routing::record::ScoreRecord;
use crate::routing::recorder::Recorder;
use crate::routing::scratch::{CandidateReadings, RouteContext};

/// Picks one of the candidates in `context.scratch` by their readings alone, live or recorded.
/// `features` are the request's, with `in_turn` set if it has no prompt.
pub(in crate::routing) fn pick(
    profile: &Profile,
    features: &RequestFeatures,
    model: ModelId,
    context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
) -> Option<Picked> {
    let RouteContext { random, scratch, recorder } = context;
    let CandidateReadings { candidates, matrix, .. } = &mut scratch.readings;
    if candidates.is_empty() {
        return None;
    }
    exclude_failing(candidates, *recorder);
    laggards::exclude(candidates, *recorder);
    let mut features = *features;
    // Equals that no prompt distinguishes take turns.
    features.in_turn |= !profile.reads_prompts();
    // Taken only if it counts, because a live source advances it.
    let turn = features.in_turn.then(|| random.turn(model));
    features.turn = turn.unwrap_or(0);
    let chosen = profile.pick(&features, candidates, matrix, random.rng())?;
    recorder.scored(candidates, matrix);
    let kept = if profile.decides_homes() { None } else { home::kept(&features, candidates) };
    let chosen = kept.unwrap_or(chosen);
    // A session at home does not explore: elsewhere its whole prompt would be computed again.
    let is_home = candidates.get(chosen).is_some_and(|one| features.home == Some(one.row));
    let other = match is_home {
        true => None,
        false => explored(&features, candidates, chosen, random.rng()).or_else(|| {
            let copies = profile.copies_prompts();
            copies.then(|| copies::choose_for_copy(&features, candidates, chosen)).flatten()
        }),
    };
    let chosen = other.unwrap_or(chosen);
    Some(Picked {
        row: candidates.get(chosen)?.row,
        candidates: u32::try_from(candidates.len()).ok()?,
        turn,
        scores: Some(ScoreRecord::of(profile, &features, candidates, matrix, chosen)),
    })
}

/// Drops candidates whose engines have not been scraped for long while another's sample is fresh:
/// they may be gone, and their load is unknown.
fn exclude_failing<R: Recorder>(candidates: &mut Vec<Candidate>, recorder: &mut R) {
    if !has_standing(candidates, Standing::Failing) || !has_standing(candidates, Standing::Fresh) {
        return;
    }
    candidates.retain(|one| {
        let is_failing = one.telemetry == Standing::Failing;
        if is_failing {
            recorder.excluded(one.row, RejectReason::Telemetry);
        }
        !is_failing
    });
}

fn has_standing(candidates: &[Candidate], standing: Standing) -> bool {
    candidates.iter().any(|one| one.telemetry == standing)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::routing::random::ReplaySource;
    use crate::routing::recorder::NoRecord;
    use crate::routing::scratch::Scratch;
    use penstock_scoring::{Picker, PredictedLatency, parse_scorers};

    /// Returns the requests of 20,000 that the last of three equals gets; only the first is known.
    fn strays(home: Option<u32>) -> usize {
        let specs = parse_scorers("slo-headroom:1").unwrap();
        let profile = Profile::new(&specs, Picker::MaxScore).unwrap();
        let features = RequestFeatures { home, ..RequestFeatures::default() };
        let mut rng = SmallRng::seed_from_u64(1);
        let candidate = |row: u32| Candidate {
            row,
            prediction: Some(PredictedLatency {
                ttft: [100.0, 110.0, 120.0][row as usize],
                ttft_p90: 150.0,
                is_trusted: row == 0,
                first_tokens: 8.0,
                tightest_tpot: f32::INFINITY,
                ..PredictedLatency::default()
            }),
            ..Candidate::default()
        };
        let picked = |_| {
            let candidates = (0..3).map(candidate).collect();
            let mut scratch = Scratch::default();
            scratch.readings.candidates = candidates;
            let mut random = ReplaySource { turn: 0, rng: &mut rng };
            let context = &mut RouteContext {
                random: &mut random,
                scratch: &mut scratch,
                recorder: &mut NoRecord,
            };
            pick(&profile, &features, ModelId(0), context)
        };
        (0..20_000).filter_map(picked).filter(|picked| picked.row == 2).count()
    }

    #[test]
    fn sessions_do_not_explore_from_their_home() {
        assert!((60..140).contains(&strays(None)), "{}", strays(None));
        assert_eq!(strays(Some(0)), 0, "home is one that is known");
        assert_eq!(strays(Some(1)), 0, "home is one that is not");
    }
}
