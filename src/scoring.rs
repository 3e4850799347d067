//! Scorers, and what is made of their scores: pure arithmetic over a handful of readings. The router
//! calls it with the fleet's readings, `penstock score` with those it is told, and a simulator with
//! those it makes up.
//!
//! A [`Profile`] is a list of weighted scorers and a [`Picker`]. Every scorer gives every candidate
//! a number in 0..=1; what is outside is clamped, and a score that is not known is 0. The total of a
//! candidate is the sum of its scores by weight, where all weights together are 1. Source: the
//! composable scorers of BLIS and llm-d.

mod candidate;
mod params;
mod picker;
mod prefix_params;
mod preset;
mod profile;
mod scorers;
mod spec;
mod text;

pub use candidate::{Adapter, Ask, Candidate};
pub use params::{ParamError, Params, Value};
pub use picker::{PICKERS, Picker, PickerError};
pub use prefix_params::PrefixParams;
pub use preset::{PRESETS, Preset};
pub use profile::{Profile, ProfileError, Sheet};
pub use scorers::{SCORERS, Scorer, ScorerRow};
pub use spec::ScorerSpec;
pub use text::parse_scorers;

/// A name as it is compared: case does not count, `_` and `-` are alike.
pub(crate) fn normalize(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('_', "-")
}
