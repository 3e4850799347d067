//! The weighted strategy: readings of every candidate, scored and picked by a profile.

use super::card::{Legend, ScoreCard, Told};
use super::filters::{Terms, fitting};
use super::readings::{
    adapter, add_latency, count_tokens, fill_in_median, find_prefixes, read, told,
};
use super::strategy::Picked;
use super::{Chance, RouteInput, RoutingDecision};
use crate::config::RoutingConfig;
use crate::fleet::{Model, ModelId, Standing, Topology};
use crate::prefix::{Chain, Predicted};
use crate::scoring::{Ask, Candidate, PrefixParams, Profile, ScorerSpec, Sheet, Value};

/// Where a request says which session it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionField {
    /// A header.
    Header(String),
    /// A cookie.
    Cookie(String),
}

impl SessionField {
    /// A hash of what names the session, given the values of any header.
    pub fn read<'a, V: Iterator<Item = &'a [u8]>>(
        &self,
        values: impl FnOnce(&str) -> V,
    ) -> Option<u64> {
        let named = match self {
            Self::Header(name) => values(name).next()?,
            Self::Cookie(name) => {
                let mut cookies = values("cookie").flat_map(|all| all.split(|byte| *byte == b';'));
                cookies.find_map(|cookie| {
                    cookie.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
                })?
            }
        };
        (!named.is_empty()).then(|| xxhash_rust::xxh3::xxh3_64(named))
    }
}

/// Decides by weighted scores.
#[derive(Debug)]
pub struct Weighted {
    specs: Vec<ScorerSpec>,
    profile: Profile,
    legend: Legend,
    terms: PrefixParams,
    reads_prefixes: bool,
    reads_adapters: bool,
    session: Option<SessionField>,
}

/// What the scorers make of one candidate, for explanations.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    pub(super) row: u32,
    pub(super) scores: Vec<(&'static str, f64)>,
    pub(super) total: f64,
    pub(super) matched_blocks: u32,
    pub(super) prompt_blocks: u32,
}

/// Space the weighted strategy works in.
#[derive(Debug, Default)]
pub(super) struct WeightedScratch {
    pub(super) rows: Vec<u32>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) told: Vec<Told>,
    pub(super) sheet: Sheet,
}

impl WeightedScratch {
    /// Leaves out the rows whose engines have not answered for long, while another's has. Whether
    /// there were any.
    fn leave_failing_out(&mut self) -> bool {
        let any = |standing| self.told.iter().any(|told| told.standing == standing);
        let leaves_out = any(Standing::Failing) && any(Standing::Fresh);
        if leaves_out {
            let mut told = self.told.iter();
            self.rows.retain(|_| told.next().is_some_and(|one| one.standing != Standing::Failing));
        }
        leaves_out
    }
}

fn predicted(card: &ScoreCard) -> Predicted {
    Predicted {
        first_block: card.first_block,
        prompt_blocks: card.prompt_blocks,
        matched_blocks: card.matched_blocks,
        block_tokens: card.block_tokens,
    }
}

impl Weighted {
    /// The one a configuration asks for; its scorers have been checked.
    pub(super) fn new(config: &RoutingConfig) -> Option<Self> {
        let specs = config.scorer_specs();
        let profile = Profile::new(&specs, config.picker).ok()?;
        let session = specs.iter().find(|spec| spec.is("session-affinity"));
        let session = session.map(|spec| {
            let text = |wanted: &str| {
                let found = spec.params.iter().find(|(name, _)| *name == wanted);
                found.and_then(|(_, value)| match value {
                    Value::Text(text) => Some(text.clone()),
                    Value::Number(_) => None,
                })
            };
            match (text("header"), text("cookie")) {
                (None, Some(cookie)) => SessionField::Cookie(cookie),
                (header, _) => {
                    SessionField::Header(header.unwrap_or_else(|| "x-session-id".to_owned()))
                }
            }
        });
        Some(Self {
            legend: Legend::of(&profile),
            reads_prefixes: profile.reads_prefixes(),
            reads_adapters: specs.iter().any(|one| one.is("lora-affinity")),
            terms: PrefixParams::of(&specs).unwrap_or_default(),
            profile,
            session,
            specs,
        })
    }

    /// What a [`ScoreCard`] does not say of its scores.
    pub fn legend(&self) -> Legend {
        self.legend
    }

    /// What a header says of a card: `;total=0.830;blocks=12/20;telemetry-age-ms=31`, then each scorer's
    /// score and weight, as in `;prefix-affinity=0.600;prefix-affinity-weight=0.429`. An engine that
    /// never told anything has no age.
    pub fn to_text(&self, card: &ScoreCard) -> String {
        let ScoreCard { total, matched_blocks, prompt_blocks, .. } = card;
        let mut text = format!(";total={total:.3};blocks={matched_blocks}/{prompt_blocks}");
        if let Some(age) = card.told.age_ms() {
            text += &format!(";telemetry-age-ms={age:.0}");
        }
        for ((name, weight), score) in self.legend.iter().zip(card.scores()) {
            text += &format!(";{name}={score:.3};{name}-weight={weight:.3}");
        }
        text
    }

    /// Its scorers as they were configured.
    pub(super) fn specs(&self) -> &[ScorerSpec] {
        &self.specs
    }

    /// Its scorers and picker.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// How prompts for a model are cut into blocks, where it is asked what is cached, or which prompt
    /// it is.
    pub fn prefix_params(&self, topology: &Topology, model: &str) -> PrefixParams {
        let model = topology.model_id(model).and_then(|id| topology.model(id));
        self.terms.following(model.and_then(|model| model.prefixes.block_tokens()))
    }

    /// Whether it asks what is cached where, so that decisions must be recorded.
    pub fn reads_prefixes(&self) -> bool {
        self.reads_prefixes
    }

    /// Where requests name their session, if that counts.
    pub fn session_field(&self) -> Option<&SessionField> {
        self.session.as_ref()
    }

    /// Records where a prompt is sent, so that the next one like it is sent there too.
    pub fn record(&self, topology: &Topology, decision: &RoutingDecision, chain: &Chain) {
        let model = topology.model(decision.model);
        if let Some((model, serving)) = model.zip(decision.serving(topology))
            && self.reads_prefixes
        {
            let state = serving.cache_state(&self.terms, chain.block_tokens());
            model.prefixes.routed(serving.slot, chain, state);
        }
    }

    /// The backend did not serve the prompt, so it has not cached it.
    pub fn take_back(&self, topology: &Topology, decision: &RoutingDecision) {
        let model = topology.model(decision.model);
        if let Some((model, serving)) = model.zip(decision.serving(topology))
            && let Some(card) = decision.card.filter(|_| self.reads_prefixes)
        {
            model.prefixes.not_served(serving.slot, &predicted(&card));
        }
    }

    /// The engine reports how many tokens of the prompt it had cached.
    pub fn learn(&self, topology: &Topology, decision: &RoutingDecision, cached: u32) {
        let model = topology.model(decision.model);
        if let Some((model, serving)) = model.zip(decision.serving(topology))
            && let Some(card) = decision.card.filter(|_| self.reads_prefixes)
        {
            model.prefixes.served(serving.slot, &predicted(&card), cached);
        }
    }

    pub(super) fn pick(
        &self,
        (input, model, id): (&RouteInput<'_>, &Model, ModelId),
        terms: Terms,
        (chance, scratch): (&mut impl Chance, &mut WeightedScratch),
    ) -> Option<Picked> {
        scratch.rows.clear();
        let noted = chance.notes().map(|notes| notes.sift((input, model, id), terms));
        match &noted {
            Some(rows) => scratch.rows.extend_from_slice(rows),
            None => scratch.rows.extend(fitting(input, model, terms).map(|(row, _)| row)),
        }
        if scratch.rows.is_empty() {
            return None;
        }
        let mut ask = self.gather((input, model), scratch);
        if scratch.leave_failing_out() {
            ask = self.gather((input, model), scratch);
        }
        ask.in_turn = !self.profile.reads_prompts() || input.prompt.is_none_or(Chain::is_empty);
        if ask.in_turn {
            ask.turn = chance.turn(id);
        }
        let WeightedScratch { rows, candidates, told, sheet } = scratch;
        let chosen = self.profile.pick(&ask, candidates, (sheet, chance.rng()))?;
        let row = rows.get(chosen).copied()?;
        if let (Some(fitting), Some(notes)) = (noted, chance.notes()) {
            notes.take_scored((input, model, id), &fitting, (candidates, told));
            notes.ask = Some(ask);
            notes.total = sheet.totals().get(chosen).copied();
        }
        let one = (chosen, candidates.get(chosen)?, told.as_slice());
        let card = ScoreCard::of(&self.profile, one, (&ask, sheet));
        Some(Picked { row, candidates: u32::try_from(rows.len()).ok()?, card: Some(card) })
    }

    /// What the scorers make of each of the rows, were these all the candidates.
    pub(super) fn marks(&self, place: (&RouteInput<'_>, &Model), rows: Vec<u32>) -> Vec<Marks> {
        let mut scratch = WeightedScratch { rows, ..WeightedScratch::default() };
        let mut ask = self.gather(place, &mut scratch);
        if scratch.leave_failing_out() {
            ask = self.gather(place, &mut scratch);
        }
        let WeightedScratch { rows, candidates, mut sheet, .. } = scratch;
        self.profile.score(&ask, &candidates, &mut sheet);
        let of = |(index, (row, candidate)): (usize, (&u32, &Candidate))| {
            let given = |(number, (name, _)): (usize, (&'static str, f64))| {
                (name, sheet.scores(number).get(index).copied().unwrap_or_default())
            };
            Marks {
                row: *row,
                scores: self.profile.weights().enumerate().map(given).collect(),
                total: sheet.totals().get(index).copied().unwrap_or_default(),
                matched_blocks: candidate.matched_blocks,
                prompt_blocks: candidate.prompt_blocks,
            }
        };
        rows.iter().zip(&candidates).enumerate().map(of).collect()
    }

    /// Reads everything the scorers want to know of the rows in `scratch`.
    pub(super) fn gather(
        &self,
        (input, model): (&RouteInput<'_>, &Model),
        scratch: &mut WeightedScratch,
    ) -> Ask {
        let WeightedScratch { rows, candidates, told: all_told, .. } = scratch;
        let blocks = input.prompt.map_or(0, Chain::blocks);
        // Filled in where they lie, over those of the decision before: a candidate is large, and moving
        // it costs more than reading it.
        candidates.resize(rows.len(), Candidate::default());
        all_told.resize(rows.len(), Told::default());
        for ((row, one), slot) in rows.iter().zip(&mut *candidates).zip(all_told) {
            let serving = model.serving.get(*row as usize);
            let told = serving.map(|serving| told(serving, input.now)).unwrap_or_default();
            *slot = Told::of(&told);
            *one = Candidate { place: *row, prompt_blocks: blocks, ..Candidate::default() };
            let Some(serving) = serving else { continue };
            read(serving, &told, one);
            if self.reads_adapters {
                one.adapter = adapter(serving, &told);
            }
            if self.profile.reads_tokens() {
                count_tokens(serving, one);
            }
            if self.profile.reads_latencies() {
                add_latency(serving, input.now, one);
            }
        }
        fill_in_median(candidates);
        if self.reads_prefixes && blocks > 0 {
            find_prefixes((input, model), rows, candidates);
        }
        Ask {
            first_block: input.prompt.map_or(0, Chain::first),
            last_block: input.prompt.map_or(0, Chain::last),
            in_turn: false,
            turn: 0,
            block_tokens: input.prompt.map_or(self.terms.block_tokens, Chain::block_tokens),
            prompt_tokens: input.request.estimated_tokens.0,
            session: input.session,
        }
    }
}
