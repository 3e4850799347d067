//! A model on a backend, as decisions read it.

use std::sync::Arc;

use super::backend::SharedBackend;
use super::backend_id::BackendId;
use super::cooldown::CooldownScope;
use super::latency::ModelLatency;
use super::model_evidence::ModelEvidence;
use super::model_state::ModelState;
use super::owner_shares::OwnerShares;
use super::requester::Requester;
use super::telemetry::EngineDetails;
use crate::api::{Capabilities, Offer, Operation, Operations};
use crate::config::{Engine, TimeoutsConfig};
use crate::prefix::{CacheState, Slot};
use crate::scoring::PrefixParams;
use crate::units::TokenCount;

/// One model on one backend: a candidate of routing.
// What each decision reads of each row comes first and shares one cache line: with 100 backends the second
// line of each row no longer fits the first-level cache.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Serving {
    /// What the model is known to offer here, nothing that is only assumed.
    pub known_offer: Offer,
    /// All of `usable_operations` and `usable`.
    pub usable_offer: Offer,
    /// What is learned about the backend.
    pub state: SharedBackend,
    /// What is learned about the model on this backend.
    pub latency: Arc<ModelLatency>,
    /// The model on this backend: its requests in flight, and whether it is in memory.
    pub model_state: Arc<ModelState>,
    /// The longest context; the largest number when it is unknown.
    pub window: TokenCount,
    /// Below so many requests in flight on the backend neither its limit nor that of the model is reached;
    /// spares decisions a look at both.
    pub(super) least_limit: u32,
    /// Lower is better.
    pub priority: u32,
    /// Its share of the requests; at least 1, because a backend of weight 0 is drained.
    pub weight: u32,
    /// The largest weight among the backends of the model; 0 where all have the same.
    pub most_weight: u32,
    /// The backend's number.
    pub id: BackendId,
    /// Index of the backend in [`Topology::backends`](super::Topology::backends).
    pub backend: u16,
    /// The configured engine; `auto` where it is detected.
    pub(super) configured_engine: Engine,
    /// The most requests in flight on the backend; `u32::MAX` without a limit.
    pub max_in_flight: u32,
    /// The same for the model on it.
    pub max_in_flight_of_model: u32,
    /// The most prefill work before a request there, in microseconds; infinite without a limit.
    pub max_backlog: f64,
    /// The part of its room that is kept for owners below their share; 0 where none is.
    pub reserve: f64,
    /// Who holds the requests in flight of the model on all backends; `None` without a reserve.
    pub owners: Option<Arc<OwnerShares>>,
    /// What the model is known to do here.
    pub known: Capabilities,
    /// What it is known or assumed to do here.
    pub usable: Capabilities,
    /// Operations that it is declared to serve here.
    pub known_operations: Operations,
    /// Operations the backend is known or assumed to serve itself.
    pub native_operations: Operations,
    /// The same, and those whose requests can be converted to one of them.
    pub usable_operations: Operations,
    /// The longest context; `None` when unknown.
    pub context_length: Option<TokenCount>,
    /// The context that the engine loads the model with at our request (`models.*.num_ctx`).
    pub num_ctx: Option<TokenCount>,
    /// The backend's own name for the model, where it differs.
    pub upstream_id: Option<Box<str>>,
    /// The model's name.
    pub model: Box<str>,
    /// A hash of the backend's name, the same in every process.
    pub key: u64,
    /// The backend's slot in the model's prefix index.
    pub slot: Slot,
    /// What a cooldown of this model covers on the backend.
    pub(super) cooldown: CooldownScope,
    /// Whether the backend receives the clients' own credentials, so that it may limit each of them.
    pub(super) passes_credentials: bool,
    /// The evidence against the backends of the model.
    pub evidence: Arc<ModelEvidence>,
    /// The timeouts of an attempt.
    // Boxed: a decision passes over every row, and needs none of them.
    pub timeouts: Box<TimeoutsConfig>,
}

const _: () = assert!(std::mem::offset_of!(Serving, backend) + size_of::<u16>() <= 64);

impl Serving {
    /// Returns its engine, configured or detected.
    pub fn engine(&self) -> Engine {
        self.state.engine(self.configured_engine)
    }

    /// What a cooldown of the model covers on the backend, for every client.
    pub fn model_scope(&self) -> CooldownScope {
        self.cooldown
    }

    /// What a cooldown covers that the backend requests in response to a request of that sender.
    pub fn cooldown_scope(&self, requester: Requester) -> CooldownScope {
        let credential = if self.passes_credentials { requester.credential } else { 0 };
        CooldownScope { credential, ..self.cooldown }
    }

    /// What a request for `operation` is converted to; `None` where the backend serves it itself.
    pub fn conversion(&self, operation: Operation) -> Option<Operation> {
        let target = self.native_operations.target_of(operation)?;
        (target != operation).then_some(target)
    }

    /// A count in relation to the backend's weight: that of a backend with half the largest weight counts
    /// double.
    #[inline(always)]
    pub fn by_weight(&self, count: u32) -> u32 {
        if self.most_weight == 0 {
            return count;
        }
        let scaled = u64::from(count) * u64::from(self.most_weight) / u64::from(self.weight.max(1));
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }

    /// The name an engine's adapters know the model by.
    pub fn adapter_name(&self) -> &str {
        self.upstream_id.as_deref().unwrap_or(&self.model)
    }

    /// The state of the engine's prefix cache, in blocks of `block_tokens`.
    pub fn cache_state(&self, params: &PrefixParams, block_tokens: u32) -> CacheState {
        let telemetry = &self.state.telemetry;
        let details = telemetry.details();
        let capacity = details.as_deref().and_then(EngineDetails::capacity_tokens);
        let state = CacheState::new(params, block_tokens, capacity, telemetry.epoch());
        let is_off = details.is_some_and(|details| details.prefix_caching == Some(false));
        if is_off { CacheState { capacity: 0, ..state } } else { state }
    }

    /// The backend's slot in the model's prefix index, and the epoch of its engine: what was learned
    /// about its cache in another epoch no longer holds.
    pub fn slot_and_epoch(&self) -> (Slot, u32) {
        (self.slot, self.state.telemetry.epoch())
    }
}
