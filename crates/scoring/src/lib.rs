//! Scorers, and the decision by their scores: pure arithmetic over a few readings. The router
//! passes readings of the fleet, `penstock score` those of its input, a simulator generated ones.
//!
//! A [`Profile`] is a list of weighted scorers and a [`Picker`]. Each scorer gives each candidate a
//! number in 0..=1; other numbers are clamped, and an unknown score is 0. The total of a candidate
//! is the weighted sum of its scores; the weights sum to 1. Source: the composable scorers of BLIS
//! and llm-d.

mod costs;
mod objectives;
mod params;
mod picker;
mod prediction;
mod prefix_params;
mod preset;
mod profile;
mod reading_values;
mod readings;
mod request;
mod scorers;
mod spec;

pub use costs::{RELEASE_COST_MS, RequestCosts};
pub use objectives::{Headroom, Objectives};
pub use params::{ParamError, Params, Value};
pub use picker::{PICKERS, Picker, PickerError};
pub use prediction::PredictedLatency;
pub use prefix_params::PrefixParams;
pub use preset::{PRESETS, Preset, SLO_SCORERS};
pub use profile::{Profile, ProfileError, ScoreMatrix};
pub use reading_values::{Adapter, Eviction, Residency, Standing, known_reading};
pub use readings::{Candidate, READINGS, ReadingRow, ScoreReading, WARM};
pub use request::{PromptSize, RequestFeatures};
pub use scorers::{Needs, SCORERS, Scorer, ScorerRow};
pub use spec::{ScorerSpec, parse_scorers};

/// The canonical form of a name: lower case, with `_` and `-` alike.
pub fn normalize(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('_', "-")
}
