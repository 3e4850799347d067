//! The result of a line.

use penstock_scoring::{Candidate, Profile, RequestFeatures, ScoreMatrix};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::line::ScoreLine;

#[derive(Debug)]
pub(super) struct LineResult {
    weights: Map<String, Value>,
    scores: Map<String, Value>,
    totals: Map<String, Value>,
    prefix: Option<Map<String, Value>>,
    probabilities: Option<Map<String, Value>>,
    winner: Option<String>,
}

impl LineResult {
    pub(super) fn new(
        line: &ScoreLine,
        profile: &Profile,
        features: &RequestFeatures,
        candidates: &[Candidate],
    ) -> Self {
        let mut matrix = ScoreMatrix::default();
        let mut rng = SmallRng::seed_from_u64(line.seed);
        let winner = profile.pick(features, candidates, &mut matrix, &mut rng);
        let names = || line.backends.iter().map(|one| one.name.clone());
        let by_name = |values: &[f64]| -> Map<String, Value> {
            names().zip(values).map(|(name, value)| (name, json!(value))).collect()
        };
        let scores = profile.weights().enumerate();
        let picker = profile.picker();
        let is_drawn = picker.is_random();
        let has_prefixes = candidates.iter().any(|one| one.prompt_blocks > 0);
        let prefix =
            |one: &Candidate| json!({ "matched": one.matched_blocks, "total": one.prompt_blocks });
        Self {
            weights: profile.weights().map(|(name, part)| (name.to_owned(), json!(part))).collect(),
            scores: scores
                .map(|(index, (name, _))| (name.to_owned(), by_name(matrix.scores(index)).into()))
                .collect(),
            totals: by_name(matrix.totals()),
            prefix: (line.request.is_some() || has_prefixes)
                .then(|| names().zip(candidates.iter().map(prefix)).collect()),
            probabilities: is_drawn
                .then(|| by_name(&profile.probabilities(features, candidates, &matrix))),
            winner: winner.and_then(|index| names().nth(index)),
        }
    }

    /// Returns the backend that was picked.
    pub(super) fn winner(&self) -> Option<&str> {
        self.winner.as_deref()
    }

    pub(super) fn to_json(&self) -> String {
        let mut all = json!({
            "weights": self.weights,
            "scores": self.scores,
            "totals": self.totals,
            "winner": self.winner,
        });
        let optional = [("prefix", &self.prefix), ("probabilities", &self.probabilities)];
        for (name, value) in optional {
            if let (Some(value), Some(all)) = (value, all.as_object_mut()) {
                all.insert(name.to_owned(), json!(value));
            }
        }
        all.to_string()
    }

    pub(super) fn error(message: &str) -> String {
        json!({ "error": { "message": message } }).to_string()
    }
}
