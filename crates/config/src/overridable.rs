//! The settings by the names of their environment variables and flags.

use super::sections::Config;
use super::syntax::setting::Setting;
use super::syntax::shape::Shape;
use super::syntax::suggest::nearest;

/// The prefix of the variables of this program.
pub(super) const PREFIX: &str = "PENSTOCK_";

/// A setting that a variable or a flag can override.
pub(super) struct Override {
    /// The path of the setting, as in `["routing", "max_retries"]`.
    pub(super) path: Vec<&'static str>,
    /// True if a single value can express it; lists and tables are set in the file only.
    is_plain: bool,
}

impl Override {
    /// Returns the name of its environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.path.join("_").to_uppercase())
    }

    /// Returns its path as text.
    pub(super) fn dotted(&self) -> String {
        self.path.join(".")
    }
}

/// Every environment variable that overrides a setting, for help texts.
pub fn known_variables() -> Vec<String> {
    overrides().iter().map(Override::variable).collect()
}

/// Every setting that a variable or a flag can override: scalars in a section.
pub(super) fn overrides() -> Vec<Override> {
    let mut found = all_settings();
    found.retain(|one| one.is_plain && one.path.len() > 1);
    found
}

/// Every setting that only the file can hold: lists and tables.
pub(super) fn file_only_settings() -> Vec<Override> {
    let mut found = all_settings();
    found.retain(|one| !one.is_plain);
    found
}

fn all_settings() -> Vec<Override> {
    let mut found = Vec::new();
    collect_settings(&Config::shape(), &mut Vec::new(), &mut found);
    found
}

fn collect_settings(shape: &Shape, path: &mut Vec<&'static str>, found: &mut Vec<Override>) {
    match shape {
        Shape::Section(section) => {
            for field in &section.fields {
                path.push(field.name);
                collect_settings(&field.shape, path, found);
                path.pop();
            }
        }
        Shape::Scalar(_) | Shape::List(_) | Shape::Table(_) | Shape::Either(_) => {
            found.push(Override { path: path.clone(), is_plain: shape.is_plain() });
        }
    }
}

/// Returns the name in `known` that is nearest to a misspelled one.
pub(super) fn near(given: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let known: Vec<String> = known.collect();
    nearest(given, known.iter().map(String::as_str)).map(str::to_owned)
}
