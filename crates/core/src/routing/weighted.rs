//! The weighted strategy as configured: scorers, picker, and how prompts are cut into blocks.

use penstock_config::RoutingConfig;
use penstock_scoring::{PrefixParams, Profile, ScorerSpec};

use super::RoutingDecision;
use super::record::{ScoreRecord, ScorerNames};
use super::session::SessionField;
use crate::fleet::Topology;
use crate::prefix::{Chain, Predicted};

/// Decides by weighted scores.
#[derive(Debug)]
pub struct Weighted {
    specs: Vec<ScorerSpec>,
    preset: Option<&'static str>,
    profile: Profile,
    scorer_names: ScorerNames,
    terms: PrefixParams,
    session: Option<SessionField>,
}

fn predicted(scores: &ScoreRecord) -> Predicted {
    Predicted {
        first_block: scores.first_block,
        prompt_blocks: scores.prompt_blocks,
        matched_blocks: scores.matched_blocks,
        new_block: scores.new_block,
        last_block: scores.last_block,
        block_tokens: scores.block_tokens,
    }
}

impl Weighted {
    /// Builds the configured one; `None` for scorers that the checks of the configuration refuse.
    pub(super) fn new(config: &RoutingConfig) -> Option<Self> {
        let specs = config.scorer_specs();
        let profile = Profile::new(&specs, config.picker).ok()?;
        let session = specs.iter().find(|spec| spec.is("session-affinity"));
        Some(Self {
            scorer_names: ScorerNames::of(&profile),
            terms: PrefixParams::of(&specs).unwrap_or_default(),
            session: session.map(SessionField::of),
            preset: config.preset_name(),
            profile,
            specs,
        })
    }

    /// Returns the names and weights of the scores in a [`ScoreRecord`].
    pub fn scorer_names(&self) -> ScorerNames {
        self.scorer_names
    }

    /// Formats the scores for the response header `x-penstock-decision`:
    /// `;total=0.830;blocks=12/20;telemetry-age-ms=31`, then each scorer's score and weight, as in
    /// `;prefix-affinity=0.600;prefix-affinity-weight=0.429`. Without a sample there is no age.
    pub fn to_text(&self, scores: &ScoreRecord) -> String {
        let ScoreRecord { total, matched_blocks, prompt_blocks, .. } = scores;
        let mut text = format!(";total={total:.3};blocks={matched_blocks}/{prompt_blocks}");
        if let Some(age) = scores.telemetry_age_ms() {
            text += &format!(";telemetry-age-ms={age:.0}");
        }
        for ((name, weight), score) in self.scorer_names.iter().zip(scores.scores()) {
            text += &format!(";{name}={score:.3};{name}-weight={weight:.3}");
        }
        text
    }

    /// Returns its scorers as configured.
    pub(super) fn specs(&self) -> &[ScorerSpec] {
        &self.specs
    }

    /// Returns the name of the preset that its scorers are; `None` for others.
    pub(super) fn preset(&self) -> Option<&'static str> {
        self.preset
    }

    /// Returns its scorers and picker.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the tokens per block, unless the engines report their own.
    pub(super) fn block_tokens(&self) -> u32 {
        self.terms.block_tokens
    }

    /// Returns how prompts for a model are cut into blocks.
    pub fn prefix_params(&self, topology: &Topology, model: &str) -> PrefixParams {
        let model = topology.model_named(model);
        self.terms.following(model.and_then(|model| model.prefixes.block_tokens()))
    }

    /// Returns whether it reads the prefix index, so that decisions must be recorded.
    pub fn reads_prefixes(&self) -> bool {
        self.profile.reads_prefixes()
    }

    /// Returns the field that names sessions, if they count.
    pub fn session_field(&self) -> Option<&SessionField> {
        self.session.as_ref()
    }

    /// Records where a prompt is sent, so that the next one like it is sent there too.
    pub fn record(&self, topology: &Topology, decision: &RoutingDecision, chain: &Chain) {
        let model = topology.model(decision.model);
        if let Some((model, serving)) = model.zip(decision.serving(topology))
            && self.reads_prefixes()
        {
            let state = serving.cache_state(&self.terms, chain.block_tokens());
            model.prefixes.routed(serving.slot, chain, state);
        }
    }

    /// Removes what a prompt added to the index: the backend did not compute it.
    pub fn take_back(&self, topology: &Topology, decision: &RoutingDecision) {
        let model = topology.model(decision.model);
        if let Some((model, serving)) = model.zip(decision.serving(topology))
            && let Some(scores) = decision.scores.filter(|_| self.reads_prefixes())
        {
            model.prefixes.not_computed(serving.slot, &predicted(&scores));
        }
    }

    /// Learns the number of cached tokens of the prompt that the engine reports.
    pub fn learn(&self, topology: &Topology, decision: &RoutingDecision, cached: u32) {
        let model = topology.model(decision.model);
        if let Some((model, serving)) = model.zip(decision.serving(topology))
            && let Some(scores) = decision.scores.filter(|_| self.reads_prefixes())
        {
            model.prefixes.served(serving.slot, &predicted(&scores), cached);
        }
    }
}
