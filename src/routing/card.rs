//! What the scorers made of the backend that was picked, small enough to travel with the decision.

use crate::fleet::{Readings, Standing};
use crate::scoring::{Ask, Candidate, Profile, SCORERS, Sheet};
use crate::units::{Micros, to_millis};

/// The scorers a [`ScoreCard`] has room for: none is listed twice, so all that there can be.
const CARD_SCORES: usize = SCORERS.len();

/// Which scorers the scores of a card are from, and what they weigh; small enough to be kept with every
/// decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Legend {
    rows: [u8; CARD_SCORES],
    weights: [f32; CARD_SCORES],
    count: u8,
}

impl Legend {
    pub(super) fn of(profile: &Profile) -> Self {
        let mut legend = Self::default();
        let places = legend.rows.iter_mut().zip(&mut legend.weights);
        for ((row, part), (name, weight)) in places.zip(profile.weights()) {
            let found = SCORERS.iter().position(|one| one.name == name);
            *row = found.and_then(|row| u8::try_from(row).ok()).unwrap_or(u8::MAX);
            *part = to_f32(weight);
            legend.count += 1;
        }
        legend
    }

    /// Each scorer's name and its part of all weights together, in the order of the profile.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f32)> + '_ {
        let name = |row: &u8| SCORERS.get(usize::from(*row)).map_or("", |row| row.name);
        let all = self.rows.iter().map(name).zip(self.weights.iter().copied());
        all.take(self.count.into())
    }
}

/// How old what an engine told was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// The age of the last sample; `None` before the first.
    pub age: Option<Micros>,
    /// How far it can be relied on.
    pub standing: Standing,
}

impl Told {
    pub(super) fn of(readings: &Readings) -> Self {
        Self { age: readings.age, standing: readings.standing }
    }

    /// The age in milliseconds.
    pub fn age_ms(&self) -> Option<f64> {
        self.age.map(|age| to_millis(age.to_duration()))
    }
}

/// What the scorers made of the backend that was picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreCard {
    /// The weighted sum, 0..=1.
    pub total: f32,
    /// Leading blocks of the prompt it is believed to have cached.
    pub matched_blocks: u32,
    /// Full blocks of the prompt.
    pub prompt_blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// How old what its engine told is, and how far that can be relied on.
    pub told: Told,
    /// Whether no candidate's engine had told its load lately, so that only our own counts said it.
    pub is_untold: bool,
    pub(super) first_block: u64,
    scores: [f32; CARD_SCORES],
    count: u8,
}

impl ScoreCard {
    /// The score of each scorer of the profile, in its order, 0..=1.
    pub fn scores(&self) -> &[f32] {
        self.scores.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// The tokens it is believed to have cached.
    pub fn expected_tokens(&self) -> u32 {
        self.matched_blocks.saturating_mul(self.block_tokens)
    }

    pub(super) fn of(
        profile: &Profile,
        (chosen, candidate, told): (usize, &Candidate, &[Told]),
        (ask, sheet): (&Ask, &Sheet),
    ) -> Self {
        let mut scores = [0.0; CARD_SCORES];
        let all = profile.weights().enumerate();
        let given = all.map(|(index, _)| sheet.scores(index).get(chosen).copied());
        let mut count = 0;
        for (slot, score) in scores.iter_mut().zip(given) {
            *slot = to_f32(score.unwrap_or_default());
            count += 1;
        }
        Self {
            total: to_f32(sheet.totals().get(chosen).copied().unwrap_or_default()),
            matched_blocks: candidate.matched_blocks,
            prompt_blocks: candidate.prompt_blocks,
            block_tokens: ask.block_tokens,
            told: told.get(chosen).copied().unwrap_or_default(),
            is_untold: told.iter().all(|one| one.standing != Standing::Fresh),
            first_block: ask.first_block,
            scores,
            count,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "0..=1, for people to read")]
fn to_f32(score: f64) -> f32 {
    score as f32
}
