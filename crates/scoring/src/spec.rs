//! A scorer as a configuration, a preset or a command line names it, and scorers in one line:
//! `prefix-affinity:3,queue-depth:2`.

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

/// Reads `name:weight,name:weight`. A weight is never assumed: a forgotten one would change every
/// score.
///
/// # Errors
/// The error in words, with the part of the text it is in.
pub fn parse_scorers(text: &str) -> Result<Vec<ScorerSpec>, String> {
    text.split(',').map(parse_one).collect()
}

fn parse_one(part: &str) -> Result<ScorerSpec, String> {
    let part = part.trim();
    let (name, weight) = part.split_once(':').unwrap_or((part, ""));
    let (name, weight) = (name.trim(), weight.trim());
    if name.is_empty() {
        return Err(format!("'{part}' names no scorer; write name:weight,name:weight"));
    }
    if weight.is_empty() {
        return Err(format!("scorer '{name}' has no weight; write {name}:1"));
    }
    let weight = weight.parse().map_err(|_not_a_number| {
        format!("the weight of '{name}' must be a number, not '{weight}'")
    })?;
    Ok(ScorerSpec::new(name, weight))
}
