//! A scorer as a configuration, a preset or a command line names it.

use super::normalize;
use super::params::Params;

/// A scorer as it is configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorerSpec {
    /// Which one, in lower case; `-` and `_` are alike.
    pub name: String,
    /// How much it counts, relative to the others.
    pub weight: f64,
    /// Its own parameters.
    pub params: Params,
}

impl ScorerSpec {
    /// A scorer with its parameters at their defaults.
    pub fn new(name: &str, weight: f64) -> Self {
        Self { name: name.to_owned(), weight, params: Params::default() }
    }

    /// The same with its name spelled as everywhere else.
    #[must_use]
    pub fn in_one_spelling(self) -> Self {
        Self { name: normalize(&self.name), ..self }
    }

    /// Whether it is the scorer of that name, in whatever spelling.
    pub fn is(&self, name: &str) -> bool {
        normalize(&self.name) == name
    }
}
