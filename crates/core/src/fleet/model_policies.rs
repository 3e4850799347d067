//! The policies whose models' patterns match a model, found once when the fleet learns of the
//! model, so that no request compares patterns with names.

use std::hash::{DefaultHasher, Hash, Hasher};

use penstock_config::{Config, ModelGlob};

/// The patterns for models of each policy, by position.
#[derive(Debug, Default)]
pub struct ModelPolicies {
    /// Empty for all models.
    patterns: Box<[Box<[ModelGlob]>]>,
    /// The policies for all models, as a bit mask of positions.
    of_all: u64,
    version: u64,
}

impl ModelPolicies {
    /// Returns the patterns of a configuration.
    pub fn of(config: &Config) -> Self {
        let patterns = config.policies.iter().map(|policy| policy.models.clone().into());
        let patterns: Box<[Box<[ModelGlob]>]> = patterns.collect();
        let mut hasher = DefaultHasher::new();
        for policy in &patterns {
            policy.len().hash(&mut hasher);
            policy.iter().for_each(|glob| glob.as_str().hash(&mut hasher));
        }
        let all = (0..u64::BITS).zip(&patterns).filter(|(_, globs)| globs.is_empty());
        let of_all = all.fold(0, |set, (position, _)| set | 1 << position);
        Self { of_all, version: hasher.finish(), patterns }
    }

    /// A number that differs between other patterns.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the policies that are for a model by one of its names, those for all models
    /// included.
    pub fn matching<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> u64 {
        let mut found = self.of_all;
        for (position, globs) in (0..u64::BITS).zip(&self.patterns) {
            let is_match = |glob: &ModelGlob| names.clone().any(|name| glob.matches_spelling(name));
            found |= u64::from(globs.iter().any(is_match)) << position;
        }
        found
    }
}
