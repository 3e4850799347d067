//! `routing.shadow:` another strategy that is tried out on live traffic.

use super::scorers::{PickerSetting, PresetName, Scorers};
use super::strategy::{Strategy, Weights};
use crate::config::syntax::setting::section;
use crate::config::syntax::values::Share;
use crate::scoring::{Picker, ScorerSpec};
use crate::units::ByteSize;

section! {
    /// Another strategy that decides on live traffic and is not acted on; metrics compare.
    pub struct ShadowConfig requires ["strategy"] {
        /// As routing.strategy.
        pub strategy: Strategy = Strategy::Weighted,
        /// As routing.scorers.
        pub scorers: Vec<ScorerSpec> ["scorers" as Scorers] = Vec::new(),
        /// As routing.preset.
        pub preset: Option<&'static str> ["preset" as PresetName] = None,
        /// As routing.picker.
        pub picker: Picker ["picker" as PickerSetting] = Picker::MaxScore,
        /// As routing.weights.
        pub weights: Weights = Weights::default(),
        /// The share of conversations that are compared, by how their prompts begin.
        pub sample: f64 ["sample" as Share] = 1.0,
        /// The prefix indexes it keeps, one for each side.
        pub prefix_memory: ByteSize = ByteSize::mib(128),
    }
}
