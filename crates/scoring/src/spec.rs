//! A scorer as a configuration, a preset or a command line names it.

use super::normalize;
use super::params::Params;

/// A scorer as it is configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorerSpec {
    /// The name in lower case; `-` and `_` are alike.
    pub name: String,
    /// Its weight, relative to the others.
    pub weight: f64,
    pub params: Params,
}

impl ScorerSpec {
    /// A scorer with its parameters at their defaults.
    pub fn new(name: &str, weight: f64) -> Self {
        Self { name: name.to_owned(), weight, params: Params::default() }
    }

    /// The same spec with the canonical spelling of its name.
    #[must_use]
    pub fn in_one_spelling(self) -> Self {
        Self { name: normalize(&self.name), ..self }
    }

    /// Returns whether it is the scorer of that name, in any spelling.
    pub fn is(&self, name: &str) -> bool {
        normalize(&self.name) == name
    }
}
