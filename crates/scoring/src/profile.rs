//! A profile: weighted scorers and a picker.

use std::cell::OnceCell;
use std::fmt;

use penstock_api::slices::part_of;
use rand::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::params::ParamError;
use super::picker::Picker;
use super::readings::Candidate;
use super::request::RequestFeatures;
use super::scorers::{Needs, SCORERS, Scorer, ScorerRow};
use super::spec::ScorerSpec;

/// The reason why a list of scorers is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum ProfileError {
    /// There is no scorer of that name.
    UnknownScorer { given: String },
    /// A scorer is listed twice.
    Duplicate { name: &'static str },
    /// A weight is not a finite number above 0.
    Weight { name: &'static str, given: f64 },
    /// A scorer's own parameter is wrong.
    Param { name: &'static str, error: ParamError },
    /// There is no scorer at all.
    Empty,
}

impl std::error::Error for ProfileError {}

impl fmt::Display for ProfileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownScorer { given } => {
                let known: Vec<_> = SCORERS.iter().map(|row| row.name).collect();
                write!(out, "unknown scorer '{given}'; there is {}", known.join(", "))
            }
            Self::Duplicate { name } => write!(out, "scorer '{name}' is listed twice"),
            Self::Weight { name, given } => write!(
                out,
                "the weight of '{name}' must be a finite number above 0, not {given}; leave the \
                 scorer out if it is not to count"
            ),
            Self::Param { name, error } => write!(out, "scorer '{name}': {error}"),
            Self::Empty => out.write_str("no scorers are listed"),
        }
    }
}

/// The share of the weights from which the scorers that weigh homes decide about them.
const DECIDING_SHARE: f64 = 0.5;

/// Weighted scorers and a picker.
#[derive(Debug)]
pub struct Profile {
    scorers: Vec<WeightedScorer>,
    picker: Picker,
    needs: Needs,
    decides_homes: bool,
}

#[derive(Debug)]
struct WeightedScorer {
    name: &'static str,
    scorer: Box<dyn Scorer>,
    /// Its share of the sum of all weights, which is 1.
    weight: f64,
}

/// The scores of a profile for all candidates; kept by its caller so that no decision allocates.
#[derive(Debug, Clone, Default)]
pub struct ScoreMatrix {
    /// Scorer by scorer, one score per candidate.
    scores: Vec<f64>,
    totals: Vec<f64>,
}

impl ScoreMatrix {
    /// The total of each candidate, 0..=1.
    pub fn totals(&self) -> &[f64] {
        &self.totals
    }

    /// The scores the `index`th scorer gave, clamped to 0..=1.
    pub fn scores(&self, index: usize) -> &[f64] {
        let count = self.totals.len();
        part_of(&self.scores, index * count..(index + 1) * count)
    }
}

impl Profile {
    /// The profile of a configured list.
    ///
    /// # Errors
    /// [`ProfileError`] for the first error in the list.
    pub fn new(specs: &[ScorerSpec], picker: Picker) -> Result<Self, ProfileError> {
        let mut scorers: Vec<(&'static str, Box<dyn Scorer>, f64)> = Vec::new();
        for spec in specs {
            let row = find(&spec.name)
                .ok_or_else(|| ProfileError::UnknownScorer { given: spec.name.clone() })?;
            // Two weights of one scorer are more likely a mistake than a sum.
            if scorers.iter().any(|(name, ..)| *name == row.name) {
                return Err(ProfileError::Duplicate { name: row.name });
            }
            let made = row.make(&spec.params);
            let scorer = made.map_err(|error| ProfileError::Param { name: row.name, error })?;
            scorers.push((row.name, scorer, spec.weight));
        }
        Self::of(scorers, picker)
    }

    /// A profile of any scorers, from the table or elsewhere.
    ///
    /// # Errors
    /// [`ProfileError`] without a scorer, or with a weight that is not a finite number above 0.
    pub fn of(
        scorers: Vec<(&'static str, Box<dyn Scorer>, f64)>,
        picker: Picker,
    ) -> Result<Self, ProfileError> {
        let mut wrong = scorers.iter().filter(|(.., weight)| !weight.is_finite() || *weight <= 0.0);
        if let Some((name, _, given)) = wrong.next() {
            return Err(ProfileError::Weight { name, given: *given });
        }
        let most = scorers.iter().map(|(.., weight)| *weight).fold(0.0, f64::max);
        if most <= 0.0 {
            return Err(ProfileError::Empty);
        }
        // Divided by the largest first: the sum of very large weights would overflow.
        let sum: f64 = scorers.iter().map(|(.., weight)| weight / most).sum();
        let needs = scorers.iter().fold(Needs::NONE, |all, (_, one, _)| all.with(one.needs()));
        let weighted = scorers.into_iter().map(|(name, scorer, weight)| WeightedScorer {
            name,
            scorer,
            weight: weight / most / sum,
        });
        let scorers: Vec<WeightedScorer> = weighted.collect();
        let of_homes = scorers.iter().filter(|one| one.scorer.needs().contains(Needs::HOMES));
        let decides_homes = of_homes.map(|one| one.weight).sum::<f64>() >= DECIDING_SHARE;
        Ok(Self { picker, needs, decides_homes, scorers })
    }

    /// Every scorer with its weight; the weights sum to 1.
    pub fn weights(&self) -> impl Iterator<Item = (&'static str, f64)> {
        self.scorers.iter().map(|one| (one.name, one.weight))
    }

    /// The rule that picks one of the scored candidates.
    pub fn picker(&self) -> Picker {
        self.picker
    }

    /// The readings its scorers need besides those that every decision takes.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Returns whether the scorers that weigh the homes of sessions outweigh all others: a session
    /// then needs no other rule to stay at home.
    pub fn decides_homes(&self) -> bool {
        self.decides_homes
    }

    /// Returns whether popular prompts get copies on more backends.
    pub fn copies_prompts(&self) -> bool {
        self.needs.contains(Needs::COPIES) && !self.decides_homes
    }

    /// Returns whether any scorer reads the cached part of a prompt.
    pub fn reads_prefixes(&self) -> bool {
        self.needs.contains(Needs::PREFIXES)
    }

    /// Returns whether any scorer reads the prompt, so that it must be cut into blocks.
    pub fn reads_prompts(&self) -> bool {
        self.needs.contains(Needs::PROMPTS)
    }

    /// Fills in the score of every scorer for every candidate. Allocates only when there are more
    /// candidates than ever before.
    pub fn score(
        &self,
        features: &RequestFeatures,
        candidates: &[Candidate],
        matrix: &mut ScoreMatrix,
    ) {
        let count = candidates.len();
        matrix.totals.clear();
        matrix.totals.resize(count, 0.0);
        matrix.scores.clear();
        // NaN: a candidate that a scorer leaves out has an unknown score.
        matrix.scores.resize(count * self.scorers.len(), f64::NAN);
        // `chunks_exact_mut` panics for chunks of zero scores.
        if count == 0 {
            return;
        }
        for (one, scores) in self.scorers.iter().zip(matrix.scores.chunks_exact_mut(count)) {
            one.scorer.score(features, candidates, scores);
            for (score, total) in scores.iter_mut().zip(&mut matrix.totals) {
                // Clamped before it is weighted; an unknown score counts as 0.
                *score = if score.is_nan() { 0.0 } else { score.clamp(0.0, 1.0) };
                *total += *score * one.weight;
            }
        }
        // Weights that sum to 1 may sum to a little more in floats.
        matrix.totals.iter_mut().for_each(|total| *total = total.min(1.0));
    }

    /// Scores the candidates and picks one: its index, or `None` when there are none.
    pub fn pick(
        &self,
        features: &RequestFeatures,
        candidates: &[Candidate],
        matrix: &mut ScoreMatrix,
        rng: &mut impl Rng,
    ) -> Option<usize> {
        self.score(features, candidates, matrix);
        self.picker.pick(&matrix.totals, self.ranks(features, candidates), rng)
    }

    /// The probability of each candidate to be picked, by the totals in `matrix`; their sum is 1.
    pub fn probabilities(
        &self,
        features: &RequestFeatures,
        candidates: &[Candidate],
        matrix: &ScoreMatrix,
    ) -> Vec<f64> {
        self.picker.probabilities(&matrix.totals, self.ranks(features, candidates))
    }

    /// The rank of each candidate among equals, by its index.
    fn ranks(&self, features: &RequestFeatures, candidates: &[Candidate]) -> impl Fn(usize) -> u64 {
        let is_in_turn = !self.reads_prompts() || features.in_turn;
        // Counted once, and only if there are equals.
        let places = OnceCell::new();
        move |index| {
            candidates.get(index).map_or(0, |one| match is_in_turn {
                true => turn(features, *places.get_or_init(|| count_places(candidates)), one.row),
                false => rank(features, one),
            })
        }
    }
}

/// The rank of a candidate among equals if prompts count, the highest first: a rendezvous hash
/// (Thaler, Ravishankar 1998) of the prompt and the candidate's name. If the candidate has no block
/// of the prompt cached, the first block is hashed: unrelated prompts spread, and all replicas send
/// the same beginning to the same backend. Else the whole prompt is hashed: a popular beginning
/// that is cached everywhere has no home.
fn rank(features: &RequestFeatures, candidate: &Candidate) -> u64 {
    let prompt =
        if candidate.matched_blocks == 0 { features.first_block } else { features.last_block };
    xxh3_64_with_seed(&candidate.key.to_le_bytes(), prompt)
}

/// The rank if prompts do not count: the candidates take turns.
fn turn(features: &RequestFeatures, places: u64, place: u32) -> u64 {
    // `places` comes first, so that the difference stays above 0.
    let since = (u64::from(place) + places - features.turn % places) % places;
    u64::MAX - since
}

fn count_places(candidates: &[Candidate]) -> u64 {
    let last = candidates.iter().map(|one| one.row).max().unwrap_or(0);
    u64::from(last) + 1
}

/// The scorer of a lower-case name; `_` and `-` are alike.
fn find(name: &str) -> Option<&'static ScorerRow> {
    // Configurations of other routers write `queue_depth`.
    let name = name.replace('_', "-");
    SCORERS.iter().find(|row| row.name == name)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
