//! Scorers in one line: `prefix-affinity:3,queue-depth:2`.

use super::spec::ScorerSpec;

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
