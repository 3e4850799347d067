//! The scores of the backend that was picked, small enough to travel with the decision.

use std::time::Duration;

use penstock_api::slices::{element_of, part_of};
use penstock_api::units::{Micros, to_millis};
use penstock_scoring::{
    Candidate, PredictedLatency, Profile, RequestFeatures, SCORERS, ScoreMatrix, Standing,
};

use crate::prefix::Chain;

/// An upper bound of the speed of prefills: several times that of an engine with eight GPUs.
const MAX_PREFILL_TOKENS_PER_MS: f64 = 200.0;

/// Room for every scorer: a profile lists none twice.
const MAX_SCORERS: usize = SCORERS.len();

/// The names and weights of a profile's scorers, in its order; small enough for every decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScorerNames {
    rows: [u8; MAX_SCORERS],
    weights: [f32; MAX_SCORERS],
    count: u8,
}

impl ScorerNames {
    pub(super) fn of(profile: &Profile) -> Self {
        let mut names = Self::default();
        let slots = names.rows.iter_mut().zip(&mut names.weights);
        for ((row, part), (name, weight)) in slots.zip(profile.weights()) {
            let found = SCORERS.iter().position(|one| one.name == name);
            *row = found.and_then(|row| u8::try_from(row).ok()).unwrap_or(u8::MAX);
            *part = to_f32(weight);
            names.count += 1;
        }
        names
    }

    /// Returns the name of each scorer and its share of the total weight, in the profile's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f32)> + '_ {
        let rows = self.rows.iter().map(|row| SCORERS.get(usize::from(*row)));
        let names = rows.map(|row| row.map_or("", |row| row.name));
        names.zip(self.weights.iter().copied()).take(self.count.into())
    }
}

/// The scores of the backend that was picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreRecord {
    /// The weighted sum, 0..=1.
    pub total: f32,
    /// Leading blocks of the prompt that it is believed to have cached.
    pub matched_blocks: u32,
    /// Full blocks of the prompt.
    pub prompt_blocks: u32,
    pub block_tokens: u32,
    /// The tokens of the prompt that it is believed to have cached.
    pub cached_tokens: u32,
    /// The reliability of its engine's telemetry.
    pub telemetry: Standing,
    /// The age of the engine's last sample; `None` before the first.
    pub telemetry_age: Option<Micros>,
    /// True if no candidate had fresh telemetry, so that only our own counts showed their load.
    pub has_no_telemetry: bool,
    /// The predicted latency, if the scorers read it.
    pub prediction: Option<PredictedLatency>,
    pub(super) first_block: u64,
    /// The first block of the prompt that it is not believed to have cached.
    pub(super) new_block: Option<u64>,
    /// The last full block of the prompt.
    pub(super) last_block: u64,
    scores: [f32; MAX_SCORERS],
    count: u8,
}

impl ScoreRecord {
    /// Returns the score of each scorer, 0..=1, in the order of the profile.
    pub fn scores(&self) -> &[f32] {
        part_of(&self.scores, ..usize::from(self.count))
    }

    /// Returns the record with the first block of `prompt` that is not believed to be cached.
    pub(super) fn with_prompt(self, prompt: Option<&Chain>) -> Self {
        let matched = self.matched_blocks as usize;
        Self { new_block: prompt.and_then(|chain| chain.hashes().get(matched)).copied(), ..self }
    }

    /// Returns whether the engine may have computed most of the prompt `took` after it was sent.
    pub(super) fn may_be_computed(&self, took: Duration) -> bool {
        let uncached = self.prompt_blocks.saturating_sub(self.matched_blocks);
        // A first token takes the waits, the prefill and a decode step. Without the last one and
        // half of the prefill, most of the prompt is computed.
        let least = match self.prediction.filter(|one| one.first_tokens >= 1.0) {
            Some(one) => f64::from(one.ttft - one.decode - one.prefill / 2.0),
            None => f64::from(uncached) * f64::from(self.block_tokens) / MAX_PREFILL_TOKENS_PER_MS,
        };
        to_millis(took) >= least
    }

    /// Returns the age of the engine's last sample in milliseconds.
    pub fn telemetry_age_ms(&self) -> Option<f64> {
        self.telemetry_age.map(|age| to_millis(age.to_duration()))
    }

    /// Records the scores of the candidate that `profile` chose.
    pub(super) fn of(
        profile: &Profile,
        features: &RequestFeatures,
        candidates: &[Candidate],
        matrix: &ScoreMatrix,
        chosen: usize,
    ) -> Self {
        let one = candidates.get(chosen);
        debug_assert!(one.is_some(), "a candidate is chosen");
        let one = one.copied().unwrap_or_default();
        let mut record = Self {
            total: to_f32(element_of(matrix.totals(), chosen)),
            matched_blocks: one.matched_blocks,
            prompt_blocks: one.prompt_blocks,
            block_tokens: features.block_tokens,
            cached_tokens: features.cached_tokens(&one),
            telemetry: one.telemetry,
            telemetry_age: one.telemetry_age,
            has_no_telemetry: candidates.iter().all(|one| one.telemetry != Standing::Fresh),
            prediction: one.prediction,
            first_block: features.first_block,
            new_block: None,
            last_block: features.last_block,
            scores: [0.0; MAX_SCORERS],
            count: 0,
        };
        for (index, slot) in (0..profile.weights().count()).zip(&mut record.scores) {
            *slot = to_f32(element_of(matrix.scores(index), chosen));
            record.count += 1;
        }
        record
    }
}

#[expect(clippy::cast_possible_truncation, reason = "0..=1, for people to read")]
fn to_f32(score: f64) -> f32 {
    score as f32
}
