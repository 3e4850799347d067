//! The settings that topologies are built with.

use std::sync::Arc;
use std::time::Duration;

use penstock_api::{Engine, Operation, Operations};
use penstock_config::{
    BackendConfig, Config, ModelConfig, ModelEntry, ModelTable, Price, Strategy, TimeoutsConfig,
    UnknownCapability,
};

use crate::fleet::groups::Groups;
use crate::fleet::model_policies::ModelPolicies;
use crate::fleet::owner_shares::kept;
use crate::fleet::quality::{QualityRules, quality_rules};
use crate::fleet::zones::Zones;
use crate::prefix::MemoryBudget;

/// The settings that every topology of one configuration is built with.
#[derive(Debug, Clone)]
pub struct TopologyRules {
    pub(super) unknown_capability: UnknownCapability,
    pub(super) timeouts: TimeoutsConfig,
    pub(super) models: ModelTable<ModelConfig>,
    pub(super) give_up: Duration,
    pub(in crate::fleet) groups: Arc<Groups>,
    pub(super) zones: Zones,
    pub(super) fallbacks: Arc<ModelTable<Vec<String>>>,
    pub(super) quality: Arc<QualityRules>,
    pub(super) policies: Arc<ModelPolicies>,
    /// True if a budget may limit requests to backends that cost nothing.
    pub(super) has_free_zones: bool,
    /// If set, a request waits in penstock for a free slot instead of in its engine.
    pub(super) limits_to_slots: bool,
    /// The most prefill work ahead of a request, in microseconds.
    pub(super) max_backlog: f64,
    /// The part of each limit that is kept for owners below their share; 0 without a queue.
    pub(super) reserve: f64,
    pub(in crate::fleet) prefix_memory: Arc<MemoryBudget>,
}

/// Operations of other APIs that Ollama serves, each with its replacement in the native Ollama API.
const FOREIGN: &[(Operation, Operation)] = &[
    (Operation::Chat, Operation::OllamaChat),
    (Operation::Responses, Operation::OllamaChat),
    (Operation::Messages, Operation::OllamaChat),
    (Operation::Completions, Operation::OllamaGenerate),
];

/// Returns the operations of an Ollama that generates text only through its own API: no other API
/// takes a context length.
pub(super) fn with_own_api(operations: Operations) -> Operations {
    let served = FOREIGN.iter().filter(|(foreign, _)| operations.contains(*foreign));
    served.fold(operations, |all, (foreign, own)| {
        all.without(Operations::of(&[*foreign])).union(Operations::of(&[*own]))
    })
}

impl TopologyRules {
    /// Returns the rules of a configuration with its groups of backends; its prefix indexes share
    /// `prefix_memory`.
    pub fn new(config: &Config, groups: Groups, prefix_memory: Arc<MemoryBudget>) -> Self {
        prefix_memory.set_limit(config.limits.prefix_memory.to_usize());
        Self {
            prefix_memory,
            unknown_capability: config.routing.unknown_capability,
            timeouts: config.timeouts.clone(),
            models: config.models.clone(),
            give_up: config.discovery.give_up,
            groups: Arc::new(groups),
            zones: Zones::of(config),
            fallbacks: Arc::new(config.routing.fallbacks.clone()),
            quality: Arc::new(quality_rules(config)),
            policies: Arc::new(ModelPolicies::of(config)),
            has_free_zones: config.budgets.iter().any(|budget| !budget.zones.is_empty()),
            limits_to_slots: config.routing.strategy == Strategy::Deployment,
            max_backlog: config
                .queue
                .max_backlog
                .map_or(f64::INFINITY, |most| most.as_secs_f64() * 1e6),
            reserve: if config.queue.size > 0 { config.queue.reserve } else { 0.0 },
        }
    }

    /// The price of a model on a backend whose configuration lists it as `declared`.
    pub(super) fn price(&self, model: &str, declared: Option<&ModelEntry>) -> Option<Arc<Price>> {
        let own = declared.and_then(|model| model.price.as_ref());
        let price = own.or_else(|| self.models.get(model)?.price.as_ref())?;
        Some(Arc::new(price.clone()))
    }

    /// The context length with which an engine must load a model.
    pub(super) fn num_ctx(&self, engine: Engine, model: &str) -> Option<u32> {
        self.models.get(model)?.num_ctx.filter(|_| engine.row().takes_num_ctx)
    }

    /// The number of requests below which neither a limit of a model nor its kept part is reached.
    /// `most` is the limit of the model and its backend. Zero with a filter that examines a backend
    /// at any load: the limit of work, or a policy's bounds for quality.
    pub(super) fn restricted_from(&self, most: u32) -> u32 {
        let examines_all =
            self.max_backlog.is_finite() || !self.quality.is_empty() || self.has_free_zones;
        if examines_all { 0 } else { most - kept(most, self.reserve) }
    }

    // Precedence: backend, model, global.
    pub(super) fn timeouts(&self, backend: &BackendConfig, model: &str) -> TimeoutsConfig {
        let own = self.models.get(model).map(|model| self.timeouts.with(&model.timeouts));
        own.as_ref().unwrap_or(&self.timeouts).with(&backend.timeouts)
    }
}
