//! The backends of each model, and their capabilities there. Rebuilt whenever the configuration or
//! a discovery changes them, and immutable in between.

mod model;
mod rules;
mod serve;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ahash::{HashMap, HashSet};
use penstock_api::units::Timestamp;
use penstock_api::{CanonicalName, canonical_name, default_tag_forms};
use penstock_config::tls::ClientTls;
use penstock_config::{BackendConfig, ModelEntry, ModelTable};

use super::backend::{BackendState, SharedBackend};
use super::backend_id::BackendId;
use super::circuit_breaker::BreakerState;
use super::groups::Groups;
use super::latency::ModelLatency;
use super::model_evidence::ModelEvidence;
use super::model_names::ModelNames;
use super::model_state::ModelState;
use super::owner_shares::OwnerShares;
use super::quality::{Quality, QualityRules};
use super::serving::{Serving, apply_lessons};
use super::zones::Zones;
use crate::prefix::ModelIndex;

pub use model::Model;
pub use rules::TopologyRules;
use serve::serve;

/// The number of a model in one topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// A backend in one topology.
#[derive(Debug, Clone)]
pub struct Backend {
    pub config: Arc<BackendConfig>,
    pub state: SharedBackend,
    /// Its models, declared or discovered; `None` until they are known.
    pub models: Option<Arc<Vec<ModelEntry>>>,
    /// The models that discovery found, even if others are declared.
    pub discovered: Option<Arc<Vec<ModelEntry>>>,
    /// The number of requests its engine runs at a time, if reported.
    pub slots: Option<u32>,
    /// Host and port, as in the Host header.
    pub authority: Arc<str>,
    /// TLS of connections to it; `None` for plain HTTP.
    pub tls: Option<Arc<ClientTls>>,
}

impl Backend {
    /// Returns whether its engine, configured or detected, has Ollama's pages and commands.
    pub fn is_ollama(&self) -> bool {
        self.state.engine(self.config.engine).row().has_ollama_pages
    }

    /// Returns the ids that discovery found on it, if it knows some of its models by several names;
    /// an entry whose `upstream_id` is one of them is another name of that model. Declared models
    /// are different ones, even with one `upstream_id`.
    fn models_with_aliases(&self) -> HashSet<&str> {
        let models = self.models.iter().flat_map(|models| models.iter());
        let has_aliases =
            self.config.models.is_none() && models.clone().any(|one| one.upstream_id.is_some());
        models.filter(|_| has_aliases).map(|one| one.id.as_str()).collect()
    }

    /// Returns its present configuration if `config` equals it, else a copy of `config`:
    /// HTTP/2 connections are kept while the allocation is the same.
    pub(super) fn kept(&self, config: &BackendConfig) -> Arc<BackendConfig> {
        let tls = |config: &BackendConfig| config.client_tls.0.as_ref().map(Arc::as_ptr);
        let is_same = *self.config == *config && tls(&self.config) == tls(config);
        if is_same { Arc::clone(&self.config) } else { Arc::new(config.clone()) }
    }
}

/// A model on a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StateKey {
    backend: BackendId,
    model: Box<str>,
}

/// State that is carried from one topology to the next: rotation, latencies and evidence.
#[derive(Debug, Default)]
struct Carried {
    turns: HashMap<Box<str>, Arc<AtomicU64>>,
    prefixes: HashMap<Box<str>, Arc<ModelIndex>>,
    evidence: HashMap<Box<str>, Arc<ModelEvidence>>,
    owners: HashMap<Box<str>, Arc<OwnerShares>>,
    latencies: HashMap<StateKey, Arc<ModelLatency>>,
    qualities: HashMap<StateKey, Arc<Quality>>,
    /// By the backend's own name: several names for one model share its state.
    states: HashMap<StateKey, Arc<ModelState>>,
}

impl Carried {
    /// Returns the measurements of a model on a backend; new ones if the rules differ.
    fn quality(&self, key: &StateKey, rules: &QualityRules) -> Option<Arc<Quality>> {
        let kept = self.qualities.get(key).filter(|quality| quality.is_for(rules));
        kept.cloned().or_else(|| Quality::new(rules).map(Arc::new))
    }

    /// The state of a model on a backend, whatever name clients use for it there.
    fn state(&mut self, backend: BackendId, entry: &ModelEntry) -> Arc<ModelState> {
        let own_name = canonical_name(entry.upstream_id.as_deref().unwrap_or(&entry.id));
        Arc::clone(self.states.entry(StateKey { backend, model: own_name }).or_default())
    }
}

/// Every backend and model known at one moment.
#[derive(Debug, Default)]
pub struct Topology {
    /// The backends, in the order of the configuration.
    pub backends: Vec<Backend>,
    models: Vec<Model>,
    by_name: HashMap<Box<str>, ModelId>,
    /// By the common key of a model's names.
    by_key: HashMap<Box<str>, ModelId>,
    is_complete: bool,
    /// The value of `discovery.give_up`.
    give_up: Duration,
    /// The groups that some of the backends are members of.
    pub groups: Arc<Groups>,
    /// The names of the zones.
    pub zones: Zones,
    /// The fallbacks by the name of the model, as configured.
    fallbacks: Arc<ModelTable<Vec<String>>>,
    /// The version of the policies' patterns that [`Model::policies`] is about.
    pub policies: u64,
}

impl Topology {
    /// Builds the topology of `backends`, keeping the state of the same models in `previous`.
    pub fn build(backends: Vec<Backend>, rules: &TopologyRules, previous: &Self) -> Self {
        let mut carried = previous.carry();
        let names = ModelNames::of(
            backends.iter().filter_map(|one| one.models.as_deref().map(Vec::as_slice)),
        );
        let mut order: Vec<Box<str>> = Vec::new();
        let mut serving: HashMap<Box<str>, Vec<Serving>> = HashMap::default();
        let mut aliases: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (index, backend) in backends.iter().enumerate() {
            let ids = backend.models_with_aliases();
            for entry in backend.models.iter().flat_map(|models| models.iter()) {
                if let Some(model) = entry.upstream_id.as_deref().filter(|id| ids.contains(id)) {
                    aliases.push((entry.id.as_str().into(), model.into()));
                    continue;
                }
                let row = serve(index, backend, entry, rules, &mut carried);
                let key = names.key(&entry.id);
                let rows = serving.entry(key).or_insert_with_key(|key| {
                    order.push(key.clone());
                    Vec::new()
                });
                // A backend that lists a model twice serves it once; the first entry counts.
                if rows.last().is_none_or(|last| last.id != row.id) {
                    rows.push(row);
                }
            }
        }
        let groups = Arc::clone(&rules.groups);
        let is_complete = backends.iter().all(|backend| backend.models.is_some())
            && groups.iter().all(|group| !group.addresses.is_empty());
        let give_up = rules.give_up;
        let (zones, policies) = (rules.zones.clone(), rules.policies.version());
        let fallbacks = Arc::clone(&rules.fallbacks);
        let mut topology = Self {
            backends,
            is_complete,
            give_up,
            groups,
            zones,
            fallbacks,
            policies,
            ..Self::default()
        };
        let mut alike: HashMap<Box<str>, u32> = HashMap::default();
        for key in &order {
            *alike.entry(key.to_ascii_lowercase().into()).or_default() += 1;
        }
        for key in order {
            let rows = serving.remove(&key).unwrap_or_default();
            // A name that fits several models if case is ignored fits none.
            let fits = alike.get(&*key.to_ascii_lowercase()).copied();
            let folded = Some(key).filter(|_| fits == Some(1));
            topology.add(folded, rows, &carried, rules);
        }
        for (alias, model) in aliases {
            topology.add_alias(alias, &model);
        }
        topology
    }

    /// Adds another name that a backend knows a model by, unless a model has that name.
    fn add_alias(&mut self, alias: Box<str>, model: &str) {
        if let (None, Some(id)) = (self.model_id(&alias), self.model_id(model)) {
            self.by_name.insert(alias, id);
        }
    }

    /// Adds a model, named as its first backend lists it. `folded` is the common key of other
    /// spellings.
    fn add(
        &mut self,
        folded: Option<Box<str>>,
        mut serving: Vec<Serving>,
        carried: &Carried,
        rules: &TopologyRules,
    ) {
        let Ok(number) = u32::try_from(self.models.len()) else { return };
        let Some(name) = serving.first().map(|row| row.model.clone()) else { return };
        if let Some(folded) = folded {
            self.by_key.insert(folded, ModelId(number));
        }
        for row in serving.iter_mut().filter(|row| row.model != name) {
            self.by_name.insert(row.model.clone(), ModelId(number));
            // This backend knows the model by its own spelling.
            row.upstream_id.get_or_insert_with(|| row.model.clone());
        }
        let turn = carried.turns.get(&name).cloned().unwrap_or_default();
        let fresh = || Arc::new(ModelIndex::new(Arc::clone(&rules.prefix_memory)));
        let prefixes = carried.prefixes.get(&name).cloned().unwrap_or_else(fresh);
        let slots = prefixes.assign(serving.iter().map(|row| row.state.serial));
        let most = serving.iter().map(|row| row.weight).max().unwrap_or_default();
        let is_even = serving.iter().all(|row| row.weight == most);
        let evidence = carried.evidence.get(&name).cloned().unwrap_or_default();
        evidence.set_backends(serving.iter().map(|row| Arc::clone(&row.state)).collect());
        let owners = serving.iter().any(|row| row.reserve > 0.0);
        let owners = owners.then(|| carried.owners.get(&name).cloned().unwrap_or_default());
        for (row, slot) in serving.iter_mut().zip(slots) {
            row.slot = slot;
            row.owners.clone_from(&owners);
            // With 0 a decision does not read the weights at all.
            row.most_weight = if is_even { 0 } else { most };
            row.evidence = Arc::clone(&evidence);
        }
        apply_lessons(&mut serving);
        prefixes.share(serving.iter().map(|row| (row.slot, &row.state.cache)));
        self.by_name.insert(name.clone(), ModelId(number));
        let mut model = Model { name, serving: serving.into(), turn, prefixes, policies: 0 };
        model.policies = rules.policies.matching(model.listed_names());
        model.follow_blocks();
        self.models.push(model);
    }

    fn carry(&self) -> Carried {
        let mut carried = Carried::default();
        for model in &self.models {
            carried.turns.insert(model.name.clone(), Arc::clone(&model.turn));
            carried.prefixes.insert(model.name.clone(), Arc::clone(&model.prefixes));
            if let Some(row) = model.serving.first() {
                carried.evidence.insert(model.name.clone(), Arc::clone(&row.evidence));
                let owners = row.owners.clone().map(|owners| (model.name.clone(), owners));
                carried.owners.extend(owners);
            }
            for row in &model.serving {
                let key = StateKey { backend: row.id, model: row.model.clone() };
                carried.latencies.insert(key.clone(), Arc::clone(&row.latency));
                let quality = row.quality.clone().map(|one| (key, one));
                carried.qualities.extend(quality);
                let own_name = canonical_name(row.adapter_name());
                let key = StateKey { backend: row.id, model: own_name };
                carried.states.insert(key, Arc::clone(&row.model_state));
            }
        }
        carried
    }

    /// The breaker state that requests find at a backend: of its circuit breaker, or of its models
    /// if all of them are paused.
    pub fn breaker_state(&self, state: &BackendState, now: Timestamp) -> BreakerState {
        let own = state.breaker.state(now);
        if own != BreakerState::Closed || !state.has_recent_faults(now) {
            return own;
        }
        let of_models: Vec<BreakerState> =
            self.rows_of(state).map(|row| row.evidence.state_for_all(state.serial, now)).collect();
        let is = |wanted| of_models.contains(&wanted);
        match (is(BreakerState::Closed), is(BreakerState::HalfOpen)) {
            _ if of_models.is_empty() => own,
            (true, _) => BreakerState::Closed,
            (false, true) => BreakerState::HalfOpen,
            (false, false) => BreakerState::Open,
        }
    }

    /// The number of clients that avoid a model of a backend by their own faults.
    pub fn clients_avoiding(&self, state: &BackendState, now: Timestamp) -> usize {
        let mut clients = Vec::new();
        for row in self.rows_of(state) {
            row.evidence.add_avoiding(state.serial, now, &mut clients);
        }
        clients.sort_unstable();
        clients.dedup();
        clients.len()
    }

    /// Returns whether each model of a backend, or one of its fallbacks, has another backend that
    /// could serve it now.
    pub fn can_do_without(&self, state: &BackendState) -> bool {
        let mut models = self.models.iter().filter(|model| model.is_on(state.id));
        models.all(|model| {
            let chain = self.fallbacks.get(&model.name).into_iter().flatten();
            let mut fallbacks = chain.filter_map(|name| self.model(self.model_id(name)?));
            model.has_other_than(state.serial)
                || fallbacks.any(|other| other.has_other_than(state.serial))
        })
    }

    /// The models of a backend.
    pub(super) fn rows_of(&self, state: &BackendState) -> impl Iterator<Item = &Serving> {
        let id = state.id;
        self.models
            .iter()
            .flat_map(move |model| model.serving.iter().filter(move |row| row.id == id))
    }

    /// The model called `name`, or by an equivalent name: another case, with or without `:latest`.
    pub fn model_id(&self, name: &str) -> Option<ModelId> {
        // The exact name first: it may be one of two that differ in case alone.
        let exact = self.by_name.get(name).copied();
        let folded = || self.by_key.get(CanonicalName::new(name)?.as_str()).copied();
        let tagged = || default_tag_forms(name).find_map(|form| self.by_name.get(&*form).copied());
        exact.or_else(folded).or_else(tagged)
    }

    /// The model of a name, which may be an equivalent one.
    pub fn model_named(&self, name: &str) -> Option<&Model> {
        self.model(self.model_id(name)?)
    }

    /// Sets the block size of every model's prompts to that of its engines.
    pub fn follow_blocks(&self) {
        self.models.iter().for_each(Model::follow_blocks);
    }

    pub fn model(&self, id: ModelId) -> Option<&Model> {
        self.models.get(id.0 as usize)
    }

    pub fn serving(&self, id: ModelId, row: u32) -> Option<&Serving> {
        self.model(id)?.serving.get(row as usize)
    }

    /// Every model, in the order first seen.
    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// Returns whether every backend's list of models is known.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns whether a model that no backend lists may still be reported by a backend whose
    /// models are unknown.
    pub fn awaits_models(&self, now: Timestamp) -> bool {
        !self.is_complete
            && (self.unreported().any(|backend| backend.state.awaits_models(now, self.give_up))
                || self.groups.iter().any(|group| group.awaits_members(now, self.give_up)))
    }

    /// The backends that have never reported their models.
    pub fn unreported(&self) -> impl Iterator<Item = &Backend> {
        self.backends.iter().filter(|backend| backend.models.is_none())
    }

    pub fn backend(&self, name: &str) -> Option<&Backend> {
        self.backends.iter().find(|backend| backend.config.name == name)
    }
}
