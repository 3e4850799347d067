//! `routing:` how a backend is chosen, and what happens when it fails.

use std::collections::BTreeMap;
use std::time::Duration;

use super::scorers::{PickerSetting, PresetName, Scorers};
use super::shadow::ShadowConfig;
use super::strategy::{Strategy, Weights};
use crate::config::syntax::collections::{List, Maybe, Table};
use crate::config::syntax::errors::Warning;
use crate::config::syntax::setting::{choice, section};
use crate::config::syntax::values::{Positive, Share};
use crate::scoring::{Picker, Preset, ScorerSpec};

choice! {
    /// How the length of a prompt is estimated.
    pub enum TokenEstimate {
        /// Characters / 4: right for English.
        Chars = "chars",
        /// UTF-8 bytes / 4: nearer for Chinese, Japanese, Korean.
        Utf8 = "utf8",
    }
}
choice!(@setting TokenEstimate);

impl Default for TokenEstimate {
    fn default() -> Self {
        RoutingConfig::default().token_estimate
    }
}

choice! {
    /// What a model is taken for when nobody says what it can do.
    pub enum UnknownCapability {
        /// It can; models known to can go first.
        Assume = "assume",
        /// It cannot.
        Deny = "deny",
    }
}
choice!(@setting UnknownCapability);

section! {
    /// How a backend is chosen, and what happens when it fails.
    pub struct RoutingConfig {
        /// smart, round_robin, priority_only, random or weighted.
        pub strategy: Strategy = Strategy::Smart,
        /// What counts how much in the weighted strategy: name, weight, and the scorer's own
        /// parameters. Without any, and without a preset, that of llm-d: 3 : 2 : 2.
        pub scorers: Vec<ScorerSpec> ["scorers" as Scorers] = Vec::new(),
        /// A list of scorers by name, in place of one's own.
        pub preset: Option<&'static str> ["preset" as PresetName] = None,
        /// How one of the scored backends is picked.
        pub picker: Picker ["picker" as PickerSetting] = Picker::MaxScore,
        /// How often a request may be repeated on another backend.
        pub max_retries: u32 = 2,
        /// How many repeats all requests together may cause.
        pub retry_budget: RetryBudget = RetryBudget::default(),
        /// What counts how much in the smart strategy; the sum must be 100.
        pub weights: Weights = Weights::default(),
        /// Other names for models.
        pub aliases: BTreeMap<String, String> ["aliases" as Table<String>] = BTreeMap::new(),
        /// Models to use, in this order, when one cannot be served.
        pub fallbacks: BTreeMap<String, Vec<String>> ["fallbacks" as Table<List<String>>] =
            BTreeMap::new(),
        /// How the length of a prompt is estimated: chars or utf8.
        pub token_estimate: TokenEstimate = TokenEstimate::Chars,
        /// What a model is taken for when nobody says what it can do: assume it can, or deny.
        pub unknown_capability: UnknownCapability = UnknownCapability::Assume,
        /// Whether to repeat a request that a backend read and never answered.
        pub retry_unanswered: bool = false,
        /// Whether to repeat a request that a backend answered with a 5xx other than 503.
        pub retry_5xx: bool = false,
        /// Below this share of healthy backends a model's requests go to all of them, whatever their
        /// checks say; 0 turns that off.
        pub panic_threshold: f64 ["panic_threshold" as Share] = 0.0,
        /// Whether answers name the backend and the reason in `x-penstock-…` headers.
        pub expose_decision: bool = false,
        /// Whether the fallback models are used when every backend is full.
        pub fallback_on_saturation: bool = false,
        /// Whether `max_tokens` counts towards the context a request needs.
        pub reserve_output: bool = false,
        /// How long a backend rests after its own 429 or 503.
        pub cooldown: CooldownConfig = CooldownConfig::default(),
        /// Another strategy that is tried out on live traffic; left out: none.
        pub shadow: Option<ShadowConfig> ["shadow" as Maybe<ShadowConfig>] = None,
    }
}

impl RoutingConfig {
    /// The scorers of the weighted strategy: one's own, those of the preset, or llm-d's.
    pub fn scorer_specs(&self) -> Vec<ScorerSpec> {
        if !self.scorers.is_empty() {
            return self.scorers.clone();
        }
        let preset = Preset::find(self.preset.unwrap_or("llm-d"));
        preset.map(Preset::specs).unwrap_or_default()
    }

    /// The routing that `shadow` tries out: another strategy, all else as here. The model is settled
    /// by then, so that aliases and fallbacks have no part in it.
    #[must_use]
    pub fn tried_out(&self, shadow: &ShadowConfig) -> Self {
        Self {
            strategy: shadow.strategy,
            scorers: shadow.scorers.clone(),
            preset: shadow.preset,
            picker: shadow.picker,
            weights: shadow.weights.clone(),
            aliases: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            shadow: None,
            ..self.clone()
        }
    }

    /// What is set for the weighted strategy while another one decides, by its key in `section`.
    pub(crate) fn unused(
        &self,
        section: &'static str,
    ) -> impl Iterator<Item = (&'static str, Warning)> {
        let (strategy, is_weighted) = (self.strategy.name(), self.strategy == Strategy::Weighted);
        let set = [
            ("scorers", !self.scorers.is_empty()),
            ("preset", self.preset.is_some()),
            ("picker", self.picker != Picker::default()),
        ];
        let unused = set.into_iter().filter(move |(_, is_set)| *is_set && !is_weighted);
        unused.map(move |(key, _)| (key, Warning::NotWeighted { section, key, strategy }))
    }
}

section! {
    /// How many repeats all requests together may cause.
    pub struct RetryBudget {
        /// Repeats per request, on average.
        pub ratio: f64 ["ratio" as Share] = 0.2,
        /// Repeats per second that are always allowed.
        pub per_second: u32 = 10,
    }
}

section! {
    /// How long a backend rests after its own 429 or 503.
    pub struct CooldownConfig {
        /// Without a Retry-After.
        pub default: Duration ["default" as Positive] = Duration::from_secs(1),
        /// The least, whatever Retry-After says.
        pub min: Duration = Duration::from_secs(1),
        /// The most, whatever Retry-After says.
        pub max: Duration ["max" as Positive] = Duration::from_secs(60),
    }
}
