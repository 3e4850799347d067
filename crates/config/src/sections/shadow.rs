//! `routing.shadow:` shadow routing, a second strategy on live traffic.

use penstock_api::units::ByteSize;
use penstock_scoring::{Picker, ScorerSpec};

use super::scorers::{PickerSetting, PresetName, Scorers};
use super::strategy::{Strategy, Weights};
use crate::syntax::setting::section;
use crate::syntax::values::Share;

section! {
    /// Shadow routing: a second strategy decides on live traffic; its decisions are only counted.
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
        /// The share of conversations to compare, 0 to 1, sampled by the start of their prompts.
        pub sample: f64 ["sample" as Share] = 1.0,
        /// Memory for the prefix indexes of both sides.
        pub prefix_memory: ByteSize = ByteSize::mib(128),
    }
}
