//! `routing:` the choice of a backend, and the reaction to its failures.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_api::units::ByteSize;
use penstock_api::{Capabilities, TokenEstimate, choice};
use penstock_scoring::{Picker, Preset, SLO_SCORERS, ScorerSpec, Value};

use super::aliases::{AliasTargets, SplitBy};
use super::default_model::DefaultModel;
use super::name_sets::{NameList, RetryWithout};
use super::retry_unanswered::RetryUnanswered;
use super::scorers::{PickerSetting, PresetName, Scorers};
use super::strategy::{Strategy, Weights};
use crate::model_table::ModelTable;
use crate::syntax::collections::{ByModel, List, Maybe, Table};
use crate::syntax::setting::{choice_setting, section};
use crate::syntax::values::{Positive, Share};
use crate::syntax::warnings::Warning;

choice_setting!(TokenEstimate);

choice! {
    /// The treatment of models with unknown capabilities.
    pub enum UnknownCapability {
        /// As capable; models with known capabilities are preferred.
        Assume = "assume",
        /// As not capable.
        Deny = "deny",
    }
}
choice_setting!(UnknownCapability);

choice! {
    /// The backend that is preferred among those that meet a request's objectives.
    pub enum HeadroomPreference {
        /// The one where it costs most.
        Least = "least",
        /// The one where it costs least.
        Most = "most",
        /// The one with the least headroom above a reserve.
        Knee = "knee",
    }
}
choice_setting!(HeadroomPreference);

/// The value of `routing.passthrough` that leads to a backend of the request's model.
pub const BY_MODEL: &str = "by-model";

/// The preset of the strategy weighted without scorers and preset: the best of those that
/// docs/performance/simulation.md compares.
const DEFAULT_PRESET: &str = "balanced";

section! {
    /// The choice of a backend, and the reaction to its failures.
    pub struct RoutingConfig {
        /// The strategy: auto, smart, round_robin, priority_only, random, deployment, weighted or
        /// slo. Without one, `scorers` or a `preset` mean weighted, `weights` mean smart, and
        /// nothing means auto.
        pub strategy: Strategy = Strategy::Auto,
        /// The reason for the strategy, if another key selects it.
        pub strategy_reason: Option<&'static str> [] = None,
        /// Scorers of the weighted strategy: name, weight and parameters. Without scorers and
        /// preset, the preset balanced applies.
        pub scorers: Vec<ScorerSpec> ["scorers" as Scorers] = Vec::new(),
        /// A named list of scorers, in place of `scorers`.
        pub preset: Option<&'static str> ["preset" as PresetName] = None,
        /// The picker with which the weighted strategy selects one of the scored backends.
        pub picker: Picker ["picker" as PickerSetting] = Picker::MaxScore,
        /// The maximum number of retries of a request on other backends (failover).
        pub max_retries: u32 = 2,
        /// The limit on the retries of all requests together.
        pub retry_budget: RetryBudget = RetryBudget::default(),
        /// Weights of the smart strategy. They must sum to 100.
        pub weights: Weights = Weights::default(),
        /// Model aliases. An alias with the wildcards * and ? stands for all names that fit it and
        /// that no backend serves; the most specific one counts.
        /// A list of `{ to, weight }` splits its requests among several models.
        pub aliases: BTreeMap<String, AliasTargets> ["aliases" as Table<AliasTargets>] =
            BTreeMap::new(),
        /// The requests for an alias with several models that go to the same one: those of one
        /// session, of one client key, or none.
        pub split_by: SplitBy = SplitBy::Session,
        /// The model of requests that name none: a model, one per operation, `auto` for the fleet's
        /// only model, or none.
        pub default_model: DefaultModel = DefaultModel::Auto,
        /// Fallback models, in order, for a model that cannot be served.
        pub fallbacks: ModelTable<Vec<String>> ["fallbacks" as ByModel<List<String>>] =
            ModelTable::default(),
        /// Further paths that are forwarded, with all methods and WebSocket: a path with the
        /// wildcards * and ?, and the name of a backend, or by-model.
        pub passthrough: BTreeMap<String, String> ["passthrough" as Table<String>] = BTreeMap::new(),
        /// The method that estimates the number of prompt tokens: auto (by kind of character),
        /// chars or utf8.
        pub token_estimate: TokenEstimate = TokenEstimate::Auto,
        /// The treatment of models with unknown capabilities: assume or deny.
        pub unknown_capability: UnknownCapability = UnknownCapability::Assume,
        /// Retries a request that a backend received and whose connection then ended without a
        /// response: `lost` (once, unless it has effects beside its response), `never`, or
        /// `always`.
        pub retry_unanswered: RetryUnanswered = RetryUnanswered::Lost,
        /// Sends a stream without its first token to another backend, once, if less than half of
        /// its remaining wait is predicted there. The engine may have started on it. Needs
        /// predictions.
        pub move_waiting: bool = false,
        /// Retries a request after a 5xx response other than 503.
        pub retry_5xx: bool = false,
        /// The capabilities that a request loses when the engine refuses it because its model lacks
        /// them: tools, vision (images). The request is then sent once more without.
        pub retry_without: Capabilities ["retry_without" as NameList<RetryWithout>] =
            Capabilities::NONE,
        /// Share of healthy backends of a model below which its requests go to all of them, healthy
        /// or not; 0 is off.
        pub panic_threshold: f64 ["panic_threshold" as Share] = 0.0,
        /// Shows the backend and the reason in `x-penstock-…` headers of responses.
        pub expose_decision: bool = false,
        /// Uses fallback models when every backend is saturated, or would miss the objectives of a
        /// request that is refused for that.
        pub fallback_on_saturation: bool = false,
        /// Lets requests exceed the limits of a model on its backends once all of them are reached;
        /// never those of a backend.
        pub spill: bool = false,
        /// The backend that the strategy slo prefers among those that meet a request's objectives:
        /// the one where it costs least (most), where it costs most (least), or with the least
        /// headroom above 20 % of the objective (knee). The last two pack requests, for fleets that
        /// shrink; they miss more objectives.
        pub prefer: HeadroomPreference = HeadroomPreference::Most,
        /// Predicts latencies, also where no decision goes by them: the predictions are then in
        /// metrics, in the fleet's state and in `explain`.
        pub predict: bool = false,
        /// Adds `max_tokens` to the context length that a request needs.
        pub reserve_output: bool = false,
        /// The pause of a backend after its own 429 or 503.
        pub cooldown: CooldownConfig = CooldownConfig::default(),
        /// Shadow routing: a second strategy whose decisions are only counted.
        pub shadow: Option<ShadowConfig> ["shadow" as Maybe<ShadowConfig>] = None,
        /// Recent traffic is kept, and a new configuration is simulated with it before a reload.
        /// Default: off.
        pub reload_gate: Option<ReloadGateConfig> ["reload_gate" as Maybe<ReloadGateConfig>] = None,
    }
}

impl RoutingConfig {
    /// Returns the scorers of the weighted strategy: those configured, those of the preset, or
    /// those of the default preset. The strategy slo has its own.
    pub fn scorer_specs(&self) -> Vec<ScorerSpec> {
        if self.strategy == Strategy::Slo {
            // The strategy is a fixed set of scorers: those of the configuration belong to
            // `weighted`.
            let scorers = SLO_SCORERS.iter().map(|(name, weight)| {
                let mut spec = ScorerSpec::new(name, *weight);
                if spec.is("slo-headroom") {
                    spec.params.set("prefer", Value::Text(self.prefer.name().to_owned()));
                }
                spec
            });
            // Caches and their load would spread what is to be packed.
            let packs = self.prefer != HeadroomPreference::Most;
            return scorers.filter(|spec| !packs || spec.is("slo-headroom")).collect();
        }
        let Some(preset) = self.preset_name() else { return self.scorers.clone() };
        let preset = Preset::find(preset);
        debug_assert!(preset.is_some(), "the name of a preset is checked when it is read");
        preset.map_or_else(Vec::new, Preset::specs)
    }

    /// Returns the name of the preset that `scorer_specs` returns; `None` for scorers that are
    /// listed, and for those of the strategy slo.
    pub fn preset_name(&self) -> Option<&'static str> {
        let is_preset = self.scorers.is_empty() && self.strategy != Strategy::Slo;
        is_preset.then(|| self.preset.unwrap_or(DEFAULT_PRESET))
    }

    /// Returns whether scorers decide, at least for some models.
    pub fn has_scorers(&self) -> bool {
        self.strategy == Strategy::Auto || self.strategy.has_scorers()
    }

    /// Returns whether latencies are predicted.
    pub fn predicts(&self) -> bool {
        let scores_headroom = || self.scorer_specs().iter().any(|one| one.is("slo-headroom"));
        self.predict || self.has_scorers() && scores_headroom()
    }

    /// Returns the routing that `shadow` compares: another strategy, all else equal. The model is
    /// already resolved, so aliases and fallbacks do not apply.
    #[must_use]
    pub fn tried_out(&self, shadow: &ShadowConfig) -> Self {
        Self {
            strategy: shadow.strategy,
            strategy_reason: None,
            scorers: shadow.scorers.clone(),
            preset: shadow.preset,
            picker: shadow.picker,
            weights: shadow.weights.clone(),
            // The live decision has resolved the name.
            aliases: BTreeMap::new(),
            fallbacks: ModelTable::default(),
            shadow: None,
            ..self.clone()
        }
    }

    /// Returns the keys of `section` that are set for one strategy while another one is active.
    pub fn unused(&self, section: &'static str) -> impl Iterator<Item = (&'static str, Warning)> {
        let strategy = self.strategy.name();
        // A shadow decides by the preference of the section above.
        let shadow = self.shadow.as_ref().map(|shadow| shadow.strategy);
        let is_preferred = self.prefer != HeadroomPreference::Most
            && section == "routing"
            && shadow != Some(Strategy::Slo);
        let set = [
            ("scorers", !self.scorers.is_empty(), Strategy::Weighted),
            ("preset", self.preset.is_some(), Strategy::Weighted),
            (
                "picker",
                self.picker != Picker::default() && self.strategy != Strategy::Slo,
                Strategy::Weighted,
            ),
            ("weights", self.weights != Weights::default(), Strategy::Smart),
            ("prefer", is_preferred, Strategy::Slo),
        ];
        let chosen = self.strategy;
        // `auto` chooses one of the others for each model, but never slo.
        let is_used =
            move |needed| chosen == needed || chosen == Strategy::Auto && needed != Strategy::Slo;
        let unused =
            set.into_iter().filter(move |(_, is_set, needed)| *is_set && !is_used(*needed));
        unused.map(move |(key, _, needed)| {
            let needed = needed.name();
            (key, Warning::OtherStrategy { section, key, strategy, needed })
        })
    }
}

section! {
    /// The limit on the retries of all requests together.
    pub struct RetryBudget {
        /// Retries per request, on average.
        pub ratio: f64 ["ratio" as Share] = 0.2,
        /// Retries per second that are always allowed.
        pub per_second: u32 = 10,
    }
}

section! {
    /// The pause of a backend after its own 429 or 503.
    pub struct CooldownConfig {
        /// The cooldown without Retry-After.
        pub default: Duration ["default" as Positive] = Duration::from_secs(1),
        /// The lower bound of Retry-After.
        pub min: Duration = Duration::from_secs(1),
        /// The upper bound of Retry-After.
        pub max: Duration ["max" as Positive] = Duration::from_secs(60),
    }
}

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

section! {
    /// Recent traffic is kept, and a new configuration is simulated with it before a reload.
    pub struct ReloadGateConfig {
        /// The time for which traffic is kept: at most 20,000 requests.
        pub window: Duration ["window" as Positive] = Duration::from_secs(900),
        /// A reload is refused that makes the 99th percentile of the time to the first token longer
        /// by more than this share.
        pub max_regression: f64 ["max_regression" as Share] = 0.25,
        /// Simulates every reload; otherwise only POST /reload?simulate=TIME.
        pub always: bool = false,
    }
}
