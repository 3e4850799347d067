//! The limits of a candidate, the permits within them, and the effect of a request on other models
//! in memory.

use penstock_api::units::Timestamp;
use penstock_scoring::{Eviction, Residency};

use super::inflight_guard::{InflightGuard, ModelPermit};
use super::owner_shares::Owner;
use super::owner_shares::kept;
use super::permit_request::{PermitLimits, PermitRequest};
use super::serving::Serving;

/// A reached limit of requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachedLimit {
    /// The limit of the backend.
    Backend(u32),
    /// The limit of the model on it.
    Model(u32),
}

impl Serving {
    /// Returns whether no limit of requests in flight is near, and no configuration requires a
    /// closer look at each backend. [`Serving::limit_reached`] is exact.
    #[inline(always)]
    pub fn is_unrestricted(&self) -> bool {
        self.state.load.of_all() < self.restricted_from
    }

    /// The limit of the backend, or of the model on it, that the requests of all replicas have
    /// reached.
    pub fn limit_reached(&self) -> Option<ReachedLimit> {
        self.reached(0.0)
    }

    /// Returns whether all remaining capacity is kept for owners below their share. If `spills` is
    /// set, the limit of the model does not count.
    pub fn has_only_kept_room(&self, spills: bool) -> bool {
        match self.reached(self.reserve) {
            Some(ReachedLimit::Backend(_)) => true,
            Some(ReachedLimit::Model(_)) => !spills,
            None => false,
        }
    }

    /// Returns whether `owner` is above its share, so that it may not take the kept capacity.
    pub fn keeps_room_from(&self, owner: Owner, now: Timestamp) -> bool {
        self.owners.as_ref().is_some_and(|owners| owners.is_above_share(owner, self.reserve, now))
    }

    /// Returns whether `owner` is far above its share.
    pub fn is_far_above_share(&self, owner: Owner, now: Timestamp) -> bool {
        self.owners.as_ref().is_some_and(|owners| owners.is_far_above_share(owner, now))
    }

    /// The limit that is reached if the part `reserve` of each limit is already taken.
    fn reached(&self, reserve: f64) -> Option<ReachedLimit> {
        let is_reached = |in_flight, limit| in_flight >= limit - kept(limit, reserve);
        let (load, model) = (&self.state.load, &self.model_state);
        if is_reached(load.in_flight(), load.own_limit(self.max_in_flight)) {
            return Some(ReachedLimit::Backend(self.max_in_flight));
        }
        is_reached(model.load.in_flight(), model.load.own_limit(self.max_in_flight_of_model))
            .then_some(ReachedLimit::Model(self.max_in_flight_of_model))
    }

    /// Takes a permit for a request of the model; `None` if a limit is reached or another attempt
    /// holds the probe slot.
    pub fn try_reserve(&self, request: &PermitRequest) -> Option<InflightGuard> {
        let limit = match request.limits {
            PermitLimits::All => self.max_in_flight_of_model,
            PermitLimits::Backend => u32::MAX,
            PermitLimits::Alone => self.max_in_flight_of_model.min(1),
        };
        let model = ModelPermit { state: &self.model_state, limit, evidence: &self.evidence };
        // Before the permit: a request in flight makes a model with too short a context count as
        // loaded.
        let is_loaded = is_loaded(self.residency(request.now));
        let most = self.max_in_flight;
        let mut guard = InflightGuard::try_reserve_model(&self.state, most, &model, request)?;
        if !is_loaded {
            self.begin_load(request.now);
            guard.note_load();
        }
        if let Some((owners, owner)) = self.owners.as_ref().zip(request.owner) {
            guard.count_for(owners.hold(owner, request.is_sheddable, request.now));
        }
        Some(guard)
    }

    /// Records that the engine loads the model at `now`, which may evict others.
    fn begin_load(&self, now: Timestamp) {
        // At least 1, because 0 stands for never.
        let now = Timestamp(now.0.max(1));
        self.model_state.prove(now);
        self.state.memory.begin_load(self.model_state.size(), now);
    }

    /// Learns about the backend's models from a response: that this one is in memory or not, or
    /// that the known lists are outdated.
    pub fn learn_models(&self, is_not_found: bool, is_ok: bool, unloads: bool, now: Timestamp) {
        if is_not_found {
            self.state.invalidate_models();
        // A model that was loaded may have evicted others.
        } else if is_ok && (unloads || self.learn_response(now)) {
            self.state.invalidate_loaded();
        }
    }

    /// Records that a response of the model was complete at `now`, so that it is in memory. Returns
    /// whether that is new, so that the known list of models in memory is outdated.
    pub fn learn_response(&self, now: Timestamp) -> bool {
        // A request from before the eviction made the engine load the model again. Counting both
        // as resident would let them evict each other for as long as such requests are in flight.
        if self.model_state.is_evicted() && !self.is_disputed() {
            self.begin_load(now);
        }
        self.model_state.learn_response(now)
    }

    /// Returns whether a later load of another model may have evicted the model.
    #[inline(always)]
    fn is_disputed(&self) -> bool {
        self.model_state.proved_at() < self.state.memory.disputed_at()
    }

    /// The residency of the model on the backend at `now`. It counts as loadable if a later load of
    /// another model may evict it, or has. It also counts as loadable if its context is shorter
    /// than requests will require.
    #[inline(always)]
    pub fn residency(&self, now: Timestamp) -> Residency {
        let residency = self.model_state.residency(now);
        if residency == Residency::Resident && (self.is_disputed() || self.is_loaded_too_short()) {
            return Residency::Loadable;
        }
        residency
    }

    /// Returns whether the engine would load the model again for its context. A request in flight
    /// has already loaded it.
    fn is_loaded_too_short(&self) -> bool {
        self.num_ctx.is_some_and(|needed| {
            let loaded = self.model_state.context_length();
            loaded.is_some_and(|loaded| loaded < needed) && self.model_state.load.in_flight() == 0
        })
    }

    /// The effect that loading the model would have on the backend's memory.
    pub fn eviction(&self, residency: Residency) -> Eviction {
        let memory = &self.state.memory;
        if is_loaded(residency) || memory.fits(self.model_state.size()) {
            return Eviction::Nothing;
        }
        // Requests for other models are in flight, and one of these models may have to go.
        match self.state.load.of_all() > self.model_state.load.of_all() {
            true => Eviction::InUse,
            false if memory.is_empty() => Eviction::Nothing,
            false => Eviction::Idle,
        }
    }
}

/// Returns whether a request for the model loads nothing.
fn is_loaded(residency: Residency) -> bool {
    matches!(residency, Residency::Resident | Residency::Sleeping)
}
