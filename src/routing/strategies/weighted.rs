//! `weighted`: the highest sum of weighted scores.

use super::exploration::explored;
use super::{Picked, home};
use crate::fleet::ModelId;
use crate::routing::filters::RejectReason;
use crate::routing::random::RandomSource;
use crate::routing::record::ScoreRecord;
use crate::routing::recorder::Recorder;
use crate::routing::scratch::Readings;
use crate::scoring::{Candidate, Needs, Profile, RequestFeatures, Standing};

/// Picks one of the candidates in `readings` by those readings alone, for live decisions as for recorded
/// ones. `features` are the request's, with `in_turn` where it has no prompt.
pub(in crate::routing) fn pick<R: Recorder>(
    profile: &Profile,
    features: &RequestFeatures,
    readings: &mut Readings,
    model: ModelId,
    random: &mut impl RandomSource,
    recorder: &mut R,
) -> Option<Picked> {
    let Readings { candidates, matrix, .. } = readings;
    if candidates.is_empty() {
        return None;
    }
    exclude_failing(candidates, recorder);
    let mut features = *features;
    features.in_turn |= !profile.reads_prompts();
    let turn = features.in_turn.then(|| random.turn(model));
    features.turn = turn.unwrap_or(0);
    let chosen = profile.pick(&features, candidates, matrix, random.rng())?;
    recorder.scored(candidates, matrix);
    let decides_homes = profile.needs().contains(Needs::HOMES);
    let kept = if decides_homes { None } else { home::kept(&features, candidates) };
    let chosen = kept.unwrap_or(chosen);
    let chosen = explored(&features, candidates, random.rng()).unwrap_or(chosen);
    Some(Picked {
        row: candidates.get(chosen)?.row,
        candidates: u32::try_from(candidates.len()).ok()?,
        turn,
        scores: Some(ScoreRecord::of(profile, &features, candidates, matrix, chosen)),
    })
}

/// Drops candidates whose engines have not been scraped for long, while another's is fresh: they may be
/// gone, and their load is not known.
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
