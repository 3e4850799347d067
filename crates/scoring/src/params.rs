//! A scorer's own parameters, from a configuration or a command line.

use std::collections::BTreeMap;
use std::fmt;

use penstock_api::is_token_byte;

use super::normalize;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Text(String),
}

/// Parameters by name; `-` and `_` in names are alike.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Params(BTreeMap<String, Value>);

/// The reason why parameters are refused.
#[derive(Debug, Clone, PartialEq)]
pub enum ParamError {
    /// The scorer has no such parameter.
    Unknown { given: String, known: &'static [&'static str] },
    /// The value is of the wrong kind or out of range.
    Bad {
        name: &'static str,
        /// The values that it accepts.
        expected: &'static str,
    },
}

impl std::error::Error for ParamError {}

impl fmt::Display for ParamError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { given, known: [] } => {
                write!(out, "it has no parameters, and so no '{given}'")
            }
            Self::Unknown { given, known } => {
                write!(out, "it has no parameter '{given}'; there is {}", known.join(", "))
            }
            Self::Bad { name, expected } => write!(out, "'{name}' must be {expected}"),
        }
    }
}

/// The upper limit of a whole number, and the text that names the range in errors.
pub(super) struct UpperLimit {
    pub(super) most: u32,
    expected: &'static str,
}

/// The limit on tokens per block.
pub(super) const BLOCK: UpperLimit =
    UpperLimit { most: 256, expected: "a whole number from 1 to 256" };
/// The limit on numbers of blocks.
pub(super) const BLOCKS: UpperLimit =
    UpperLimit { most: 1 << 24, expected: "a whole number from 1 to 16777216" };

impl Params {
    /// Adds a parameter, or replaces it.
    pub fn set(&mut self, name: &str, value: Value) {
        self.0.insert(normalize(name), value);
    }

    /// Returns whether no parameters are given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, name: &'static str) -> bool {
        self.0.contains_key(name)
    }

    /// Every parameter with its value, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Checks that only parameters in `known` are given.
    pub(super) fn only(&self, known: &'static [&'static str]) -> Result<(), ParamError> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            Some(given) => Err(ParamError::Unknown { given: given.clone(), known }),
            None => Ok(()),
        }
    }

    /// A number above `above`; `default` if none is given.
    pub(super) fn number_above(
        &self,
        name: &'static str,
        above: f64,
        default: f64,
    ) -> Result<f64, ParamError> {
        match self.0.get(name) {
            None => Ok(default),
            Some(Value::Number(number)) if number.is_finite() && *number > above => Ok(*number),
            Some(_) => Err(ParamError::Bad { name, expected: expected_above(above) }),
        }
    }

    /// A number above 0 and at most 1; `default` if none is given.
    pub(super) fn share(&self, name: &'static str, default: f64) -> Result<f64, ParamError> {
        // One message for both ends of the range.
        let share = self.number_above(name, 0.0, default).ok().filter(|share| *share <= 1.0);
        share.ok_or(ParamError::Bad { name, expected: "a number above 0 and at most 1" })
    }

    /// A whole number of at least 1; `default` if none is given.
    pub(super) fn count(
        &self,
        name: &'static str,
        default: u32,
        UpperLimit { most, expected }: UpperLimit,
    ) -> Result<u32, ParamError> {
        match self.0.get(name) {
            None => Ok(default),
            Some(Value::Number(number)) => {
                let is_fit = number.fract() == 0.0 && (1.0..=f64::from(most)).contains(number);
                // By its text, because a cast from a float is not checked.
                let count = is_fit.then(|| format!("{number:.0}").parse().ok()).flatten();
                count.ok_or(ParamError::Bad { name, expected })
            }
            Some(Value::Text(_)) => Err(ParamError::Bad { name, expected }),
        }
    }

    /// The name of a header or a cookie.
    pub(super) fn token(
        &self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Option<&str>, ParamError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::Text(text))
                if !text.trim().is_empty() && text.trim().bytes().all(is_token_byte) =>
            {
                Ok(Some(text.trim()))
            }
            Some(_) => Err(ParamError::Bad { name, expected }),
        }
    }
}

fn expected_above(above: f64) -> &'static str {
    if above >= 1.0 { "a number above 1" } else { "a number above 0" }
}
