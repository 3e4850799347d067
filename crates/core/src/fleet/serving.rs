//! A model on a backend, as decisions read it, with the capabilities that its engine says it lacks.

use std::sync::Arc;

use penstock_api::units::TokenCount;
use penstock_api::{Capabilities, Engine, Offer, Operation, Operations, Tier, ZoneId};
use penstock_config::{Price, TimeoutsConfig};
use penstock_scoring::PrefixParams;

use super::backend::SharedBackend;
use super::backend_id::BackendId;
use super::cooldown::CooldownScope;
use super::latency::ModelLatency;
use super::model_evidence::ModelEvidence;
use super::model_state::ModelState;
use super::outcome::Requester;
use super::owner_shares::OwnerShares;
use super::quality::Quality;
use super::telemetry::EngineDetails;
use crate::prefix::{CacheState, Slot};

/// One model on one backend: a candidate of routing.
// Fields that each decision reads of each row come first and share one cache line. With 100
// backends the second line of each row no longer fits the first-level cache.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Serving {
    /// The known offer of the model here, without assumptions.
    pub known_offer: Offer,
    /// The offer of `usable_operations` and `usable`.
    pub usable_offer: Offer,
    pub state: SharedBackend,
    /// The learned latencies of the model on this backend.
    pub latency: Arc<ModelLatency>,
    /// The state of the model on this backend: its requests in flight and its residency.
    pub model_state: Arc<ModelState>,
    /// The longest context; the largest number if unknown.
    pub window: TokenCount,
    /// The number of requests in flight on the backend below which neither its limit nor the
    /// model's is reached; 0 if a configured filter must examine it at any load. Spares decisions a
    /// look at all of them.
    pub(super) restricted_from: u32,
    pub priority: u32,
    /// Its share of the requests; at least 1, because a backend of weight 0 is drained.
    pub weight: u32,
    /// The largest weight among the backends of the model; 0 if all weights are equal.
    pub most_weight: u32,
    pub id: BackendId,
    /// Index of the backend in [`Topology::backends`](super::Topology::backends).
    pub backend: u16,
    /// The configured engine; `auto` if it is to be detected.
    pub(super) configured_engine: Engine,
    /// The most requests in flight on the backend; `u32::MAX` without a limit.
    pub max_in_flight: u32,
    /// The most requests in flight for the model on it; `u32::MAX` without a limit.
    pub max_in_flight_of_model: u32,
    /// The zone of the backend.
    pub zone: ZoneId,
    /// The tier of the model there.
    pub tier: Tier,
    /// The price of the model there; `None` without one, as if it cost nothing.
    pub price: Option<Arc<Price>>,
    /// The measurements of the model there; `None` if no policy has bounds for it.
    pub quality: Option<Arc<Quality>>,
    /// The most prefill work before a request there, in microseconds; infinite without a limit.
    pub max_backlog: f64,
    /// The fraction of its capacity that is kept for owners below their share; 0 for none.
    pub reserve: f64,
    /// The owners of the requests in flight of the model on all backends; `None` without a reserve.
    pub owners: Option<Arc<OwnerShares>>,
    /// The capabilities that the model is known to have here.
    pub known: Capabilities,
    /// The capabilities that it is known or assumed to have here.
    pub usable: Capabilities,
    /// The operations that it is declared to serve here.
    pub known_operations: Operations,
    /// The operations that the backend is known or assumed to serve itself.
    pub native_operations: Operations,
    /// The native operations, and those whose requests can be converted to one of them.
    pub usable_operations: Operations,
    /// The longest context; `None` if unknown.
    pub context_length: Option<TokenCount>,
    /// The context length with which the engine loads the model for penstock (`models.*.num_ctx`).
    pub num_ctx: Option<TokenCount>,
    /// The longest context with which it can load the model; `None` if unknown.
    pub(super) loadable_context: Option<TokenCount>,
    /// The backend's own name for the model, if different.
    pub upstream_id: Option<Box<str>>,
    pub model: Box<str>,
    /// A hash of the backend's name, the same in every process.
    pub key: u64,
    /// The backend's slot in the model's prefix index.
    pub slot: Slot,
    /// The scope of a cooldown of this model on the backend.
    pub(super) cooldown: CooldownScope,
    /// True if the backend receives the clients' own credentials, so that it may limit each of
    /// them.
    pub(super) passes_credentials: bool,
    /// The evidence against the backends of the model.
    pub evidence: Arc<ModelEvidence>,
    /// The timeouts of an attempt.
    // Boxed, because a decision passes over every row and reads none of them.
    pub timeouts: Box<TimeoutsConfig>,
}

const _: () = assert!(std::mem::offset_of!(Serving, backend) + size_of::<u16>() <= 64);

impl Serving {
    /// Takes a capability off those that the model has here.
    pub(super) fn lack(&mut self, capability: Capabilities) {
        (self.known, self.usable) =
            (self.known.without(capability), self.usable.without(capability));
        let offer = |capabilities| {
            Offer::new(self.usable_operations, capabilities).placed(self.zone, self.tier)
        };
        (self.known_offer, self.usable_offer) = (offer(self.known), offer(self.usable));
    }

    /// Returns its engine, configured or detected.
    pub fn engine(&self) -> Engine {
        self.state.engine(self.configured_engine)
    }

    /// The longest context for a request that names `requested`; `None` if unknown. A request may
    /// have its model loaded with more than `models.*.num_ctx`. If it names less, its engine cuts
    /// the prompt as its client asks for: that is no reason against the backend.
    pub fn context_for(&self, requested: Option<TokenCount>) -> Option<TokenCount> {
        let requested = requested.filter(|_| self.num_ctx.is_some());
        let loaded = requested.map(|length| self.loadable_context.unwrap_or(length).min(length));
        self.context_length.map(|length| length.max(loaded.unwrap_or_default()))
    }

    /// The scope of a cooldown of the model on the backend, for every client.
    pub fn model_scope(&self) -> CooldownScope {
        self.cooldown
    }

    /// The scope of a cooldown that the backend requests in response to a request of `requester`.
    pub fn cooldown_scope(&self, requester: Requester) -> CooldownScope {
        let credential = if self.passes_credentials { requester.credential } else { 0 };
        CooldownScope { credential, ..self.cooldown }
    }

    /// The operation to which a request for `operation` is converted; `None` if the backend serves
    /// it itself.
    pub fn conversion(&self, operation: Operation) -> Option<Operation> {
        let target = self.native_operations.target_of(operation)?;
        (target != operation).then_some(target)
    }

    /// Scales a count by the backend's weight: the count of a backend with half the largest weight
    /// doubles.
    #[inline(always)]
    pub fn by_weight(&self, count: u32) -> u32 {
        if self.most_weight == 0 {
            return count;
        }
        let scaled = u64::from(count) * u64::from(self.most_weight) / u64::from(self.weight.max(1));
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }

    /// Returns whether requests for the model cost nothing there.
    pub fn is_free(&self) -> bool {
        self.price.as_ref().is_none_or(|price| price.is_free())
    }

    /// The name by which an engine's adapters know the model.
    pub fn adapter_name(&self) -> &str {
        self.upstream_id.as_deref().unwrap_or(&self.model)
    }

    /// The state of the engine's prefix cache, in blocks of `block_tokens`.
    pub fn cache_state(&self, params: &PrefixParams, block_tokens: u32) -> CacheState {
        let telemetry = &self.state.telemetry;
        let details = telemetry.details();
        let capacity = details.as_deref().and_then(EngineDetails::capacity_tokens);
        let state = CacheState::new(params, block_tokens, capacity, telemetry.epoch());
        // An engine that keeps no prefixes has none that a prompt could match.
        let is_off = details.is_some_and(|details| details.prefix_caching == Some(false));
        if is_off { CacheState { capacity: 0, ..state } } else { state }
    }

    /// The backend's slot in the model's prefix index, and the epoch of its engine. Cache state
    /// learned in another epoch no longer holds.
    pub fn slot_and_epoch(&self) -> (Slot, u32) {
        (self.slot, self.state.telemetry.epoch())
    }
}

/// Takes the capabilities that a model lacks, by the words of the engines, off its backends: they
/// count more than a list of models, or what an operator declares. One that no backend is left to
/// have stays: such requests are refused by their engines, and not all by the one that was tried
/// last.
pub(super) fn apply_lessons(serving: &mut [Serving]) {
    let missing = |row: &Serving| row.model_state.lessons.missing();
    if serving.iter().all(|row| missing(row).is_empty()) {
        return;
    }
    for (capability, _) in Capabilities::NAMED {
        let has = |row: &&mut Serving| {
            row.usable.contains(capability) && !missing(row).contains(capability)
        };
        if !serving.iter_mut().any(|row| has(&row)) {
            continue;
        }
        for row in serving.iter_mut().filter(|row| missing(row).contains(capability)) {
            row.lack(capability);
        }
    }
}
