//! The state of all backends as decisions see it: an immutable topology (which backend serves which
//! model) over atomics (load, health, latency, engine telemetry). Nothing here does I/O: health
//! checks, scrapes and attempts report their results.

mod addresses;
mod attempt_end;
mod backend;
mod backend_id;
mod backend_memory;
mod cache_sharing;
mod capability_lessons;
mod capacity;
mod catalogue;
mod catalogue_request;
mod check_request;
mod circuit_breaker;
mod cooldown;
mod drain_estimate;
pub mod dump;
mod durations;
mod engine_pages;
mod event_tokens;
mod evidence;
mod fault_shares;
mod groups;
mod health;
mod held_probe;
mod inflight_guard;
mod latency;
mod learned_context;
mod load;
mod longest_response;
mod manual_drain;
mod model_evidence;
mod model_listing;
mod model_names;
mod model_policies;
mod model_state;
mod openings;
mod operation_lessons;
mod outcome;
mod owner_shares;
mod paused_backend;
mod peer_load;
mod permit_request;
mod permits;
mod predictions;
mod probe_slot;
mod progress;
mod quality;
mod room;
mod serving;
mod slots;
mod slow_start;
mod telemetry;
mod topology;
mod zones;

pub use addresses::Addresses;
pub use attempt_end::{LatencySample, cooldown_time};
pub use backend::{BackendState, CheckVerdict, SharedBackend};
pub use backend_id::{BackendId, BackendSet};
pub use backend_memory::BackendMemory;
pub use capacity::CapacityWatch;
pub use catalogue_request::OutdatedCatalogue;
pub use circuit_breaker::{
    BreakerState, BreakerTransition, CircuitBreaker, ModelTransition, OpenReason,
};
pub use cooldown::{Cooldown, CooldownCause, CooldownScope, Cooldowns};
pub use drain_estimate::{DrainEstimate, ExpectedResponse, SlotId};
pub use durations::{Durations, UNKNOWN_DURATION, time_left};
pub use engine_pages::{EnginePages, ModelPages};
pub use event_tokens::TokenCounter;
pub use groups::{Group, GroupAddress, GroupLookups, Groups};
pub use health::{CheckOutcome, CheckResult, Health, HealthTracker};
pub use inflight_guard::InflightGuard;
pub use latency::ModelLatency;
pub use learned_context::{ContextLimit, LearnedContext};
pub(crate) use load::RequestTokens;
pub use load::{Load, Probe, TokensInFlight};
pub use manual_drain::ManualDrain;
pub use model_evidence::ModelEvidence;
pub use model_listing::{DroppedModels, ModelListing};
pub use model_policies::ModelPolicies;
pub use model_state::{LoadedModel, ModelState};
pub use openings::{MAX_WAIT_S, Openings};
pub use operation_lessons::OperationLessons;
pub use outcome::{Outcome, OutcomeSource, RefusedPart, Requester};
pub use owner_shares::{Owner, OwnerShares};
pub use paused_backend::FaultyModels;
pub use peer_load::{BackendLoad, LoadReport, ModelLoad, SHARE_INTERVAL};
pub use permit_request::{PermitLimits, PermitRequest};
pub use permits::ReachedLimit;
pub use predictions::LearnedPrediction;
pub use progress::{ExpectedWait, ResponseProgress};
pub use quality::{Quality, QualityRuleId, QualitySample};
pub use serving::Serving;
pub use telemetry::{Adapters, EngineDetails, EngineSample, Readings, Standing, Telemetry};
pub use topology::{Backend, Model, ModelId, Topology, TopologyRules};
pub use zones::Zones;

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_api::{Capabilities, Engine, Operation, is_same_model};
use penstock_config::{BackendConfig, Config, ModelEntry};

use crate::prefix::MemoryBudget;

/// The identity of a backend across reloads. A backend with another identity is a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    name: String,
    url: String,
    engine: Engine,
}

impl Identity {
    fn of(config: &BackendConfig) -> Self {
        Self { name: config.name.clone(), url: config.url.to_string(), engine: config.engine }
    }

    /// Returns whether a name, a URL and an engine from another process are this backend's.
    fn is_of(&self, name: &str, url: &str, engine: &str) -> bool {
        name == self.name && url == self.url && engine == self.engine.name()
    }
}

/// Every backend that is still referenced, by identity.
type KnownBackends = Arc<Mutex<Vec<(Identity, Weak<BackendState>)>>>;

/// The backends of one configuration. Publishes an immutable topology whenever the configuration or
/// a discovery changes it.
#[derive(Debug)]
pub struct Fleet {
    current: ArcSwap<Topology>,
    /// Held by writers only: one topology is built at a time. Shared with the fleets of the
    /// previous and next configurations.
    known: KnownBackends,
    rules: TopologyRules,
}

impl Fleet {
    /// The fleet of a configuration. Models that are not declared stay unknown until
    /// [`Fleet::learn_models`].
    pub fn new(config: &Config) -> Self {
        Self::with_groups(config, Groups::default())
    }

    /// Returns the fleet of a configuration whose groups are already resolved.
    pub fn with_groups(config: &Config, groups: Groups) -> Self {
        Self::build(config, groups, Arc::default(), Arc::default(), Arc::default())
    }

    /// The fleet of the configuration that replaces this one. A backend with the same name, URL and
    /// engine keeps everything learned about it: health, breaker, load, latencies, discovered
    /// models.
    #[must_use]
    pub fn succeeded_by(&self, config: &Config, groups: Groups) -> Self {
        let memory = Arc::clone(&self.rules.prefix_memory);
        Self::build(config, groups, Arc::clone(&self.known), self.topology(), memory)
    }

    /// The groups of the configuration with their resolved addresses.
    pub fn groups(&self) -> &Groups {
        &self.rules.groups
    }

    fn build(
        config: &Config,
        groups: Groups,
        known: KnownBackends,
        previous: Arc<Topology>,
        memory: Arc<MemoryBudget>,
    ) -> Self {
        let groups = Groups::of(config, &groups);
        let members = groups.expand(config);
        let fleet = Self {
            current: ArcSwap::new(Arc::clone(&previous)),
            known,
            rules: TopologyRules::new(config, groups, memory),
        };
        let backends = members
            .into_iter()
            .map(|config| {
                let state = fleet.adopt(&config);
                let mut before = previous.backends.iter();
                let before = before.find(|backend| Arc::ptr_eq(&backend.state, &state));
                // Not when the process starts: a slow start needs others that take the rest of the
                // requests.
                if before.is_none() && !previous.backends.is_empty() {
                    state.expect_slow_start();
                }
                let discovered = before.and_then(|backend| backend.discovered.clone());
                // Unless the file changes `drain`, the operator's last command stays in force.
                if before.is_none_or(|backend| {
                    backend.config.starts_drained() != config.starts_drained()
                }) {
                    state.set_draining(config.starts_drained());
                }
                state.memory.set_capacity(config.vram);
                let declared = config.models.as_deref();
                Backend {
                    models: match &discovered {
                        Some(discovered) => Some(Arc::new(merge(declared, discovered))),
                        None => config.models.clone().map(Arc::new),
                    },
                    discovered,
                    authority: config.url.host_field().into(),
                    tls: config.client_tls.0.clone(),
                    config: before
                        .map_or_else(|| Arc::new(config.clone()), |one| one.kept(&config)),
                    slots: state.slots(),
                    state,
                }
            })
            .collect();
        fleet.publish(backends);
        fleet
    }

    /// The memory that the prefix indexes of all models share.
    pub fn prefix_memory(&self) -> &MemoryBudget {
        &self.rules.prefix_memory
    }

    /// Records the engine details that change rarely. Returns whether they show a restart.
    pub fn learn_details(&self, state: &BackendState, details: &EngineDetails) -> bool {
        let block_size = || state.telemetry.details().and_then(|details| details.block_size);
        let before = block_size();
        let has_restarted = state.telemetry.learn_details(details);
        // Prompts are cut into the engine's blocks: with other blocks no hash would match.
        if block_size() != before {
            let topology = self.topology();
            let serves = |model: &&Model| model.serving.iter().any(|row| row.id == state.id);
            topology.models().iter().filter(serves).for_each(Model::follow_blocks);
        }
        has_restarted
    }

    /// The topology published last. Cheap and lock-free; hold it for one request, not longer.
    pub fn topology(&self) -> Arc<Topology> {
        self.current.load_full()
    }

    /// Records the models that discovery found on a backend. Returns whether they differ from the
    /// last ones. Declared entries win over discovered facts, field by field.
    pub fn learn_models(&self, id: BackendId, models: &[ModelEntry]) -> bool {
        let _one_writer = self.known.lock();
        let topology = self.topology();
        let mut changed = false;
        let backends = topology
            .backends
            .iter()
            .map(|backend| {
                let mut backend = backend.clone();
                if backend.state.id == id {
                    let merged = merge(backend.config.models.as_deref(), models);
                    let slots = backend.state.slots();
                    changed = backend.models.as_deref() != Some(&merged) || backend.slots != slots;
                    backend.slots = slots;
                    backend.models = Some(Arc::new(merged));
                    backend.discovered = Some(Arc::new(models.to_vec()));
                }
                backend
            })
            .collect();
        // Most lists show nothing new, and a topology is costly to build.
        if changed {
            self.publish(backends);
        }
        changed
    }

    /// Records that a backend does not know the path of an operation. Its requests are then
    /// converted or sent elsewhere. Returns whether that is new.
    pub fn learn_lacking(
        &self,
        state: &BackendState,
        operation: Operation,
        now: Timestamp,
    ) -> bool {
        let is_new = state.lessons.learn_lacking(operation, now);
        if is_new {
            self.republish();
        }
        is_new
    }

    /// Records that a model on a backend lacks capabilities, by the words of its engine. Requests
    /// that need them are then sent elsewhere. Returns whether that is new.
    pub fn learn_missing(&self, serving: &Serving, missing: Capabilities, now: Timestamp) -> bool {
        let is_new = serving.model_state.lessons.learn(missing, now);
        if is_new {
            self.republish();
        }
        is_new
    }

    /// Expires lessons about missing operations and capabilities that are old enough to try again.
    pub fn expire_lessons(&self, state: &BackendState, now: Timestamp) {
        let topology = self.topology();
        let rows = topology.rows_of(state);
        let expired = rows.filter(|row| row.model_state.lessons.expire(now)).count();
        if state.lessons.expire(now) || expired > 0 {
            self.republish();
        }
    }

    /// Rebuilds the topology from the same backends and everything learned about them.
    fn republish(&self) {
        let _one_writer = self.known.lock();
        self.publish(self.topology().backends.clone());
    }

    fn publish(&self, backends: Vec<Backend>) {
        let previous = self.current.load();
        let topology = Topology::build(backends, &self.rules, &previous);
        self.current.store(Arc::new(topology));
    }

    fn adopt(&self, config: &BackendConfig) -> SharedBackend {
        let identity = Identity::of(config);
        let mut known = self.known.lock();
        known.retain(|(_, state)| state.strong_count() > 0);
        let alive: Vec<(Identity, SharedBackend)> = known
            .iter()
            .filter_map(|(identity, state)| Some((identity.clone(), state.upgrade()?)))
            .collect();
        if let Some((_, state)) = alive.iter().find(|(other, _)| *other == identity) {
            return Arc::clone(state);
        }
        // The lowest free number, because a set of backends has a bit for each.
        let is_free = |number: &u16| alive.iter().all(|(_, state)| state.id.0 != *number);
        let number = (0..u16::MAX).find(is_free).unwrap_or(u16::MAX);
        let state = Arc::new(BackendState::new(BackendId(number), config));
        known.push((identity, Arc::downgrade(&state)));
        state
    }
}

/// Completes declared models with discovered facts; without a declaration the discovered models
/// count.
fn merge(declared: Option<&[ModelEntry]>, discovered: &[ModelEntry]) -> Vec<ModelEntry> {
    let Some(declared) = declared else { return discovered.to_vec() };
    declared
        .iter()
        .map(|entry| {
            let upstream = entry.upstream_id.as_deref().unwrap_or(&entry.id);
            // The exact name first: the list may have another spelling as another entry.
            let exact = discovered.iter().find(|fact| fact.id == upstream);
            let same = || discovered.iter().find(|fact| is_same_model(&fact.id, upstream));
            let Some(fact) = exact.or_else(same) else {
                return entry.clone();
            };
            ModelEntry {
                id: entry.id.clone(),
                upstream_id: entry.upstream_id.clone(),
                context_length: entry.context_length.or(fact.context_length),
                capabilities: entry.capabilities.or(fact.capabilities),
                operations: entry.operations.or(fact.operations),
                // No engine reports these three.
                max_in_flight: entry.max_in_flight,
                tier: entry.tier,
                price: entry.price.clone(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
