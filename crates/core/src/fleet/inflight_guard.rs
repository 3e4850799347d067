//! The permit of one request in flight: an RAII guard.
//!
//! It is the only place that releases a request's share of a backend: success, error, retry,
//! disconnected client and panic all end in the same drop, exactly once. Requests are counted
//! against `max_in_flight` by one compare-and-swap, so that the limit holds under any number of
//! threads.

use std::sync::Arc;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_predict::PredictionTicket;

use super::backend::BackendState;
use super::drain_estimate::{ExpectedResponse, SlotId};
use super::held_probe::HeldProbe;
use super::load::{Probe, RequestTokens};
use super::model_evidence::ModelEvidence;
use super::model_state::ModelState;
use super::owner_shares::OwnerHold;
use super::permit_request::PermitRequest;
use super::progress::{AwaitedRequest, ExpectedWait, ResponseProgress, StallWatch};

/// A model on a backend, with its limit of requests in flight there.
#[derive(Debug)]
pub(super) struct ModelPermit<'a> {
    pub(super) state: &'a Arc<ModelState>,
    pub(super) limit: u32,
    pub(super) evidence: &'a ModelEvidence,
}

/// The permit of one request in flight on one backend; dropping it releases all it holds.
#[derive(Debug)]
pub struct InflightGuard {
    state: Arc<BackendState>,
    /// The model it counts for, if any.
    model: Option<Arc<ModelState>>,
    /// The owner it counts for, if any.
    owner: Option<OwnerHold>,
    probe: HeldProbe,
    /// True if the next probe has to wait for this one.
    excludes_probes: bool,
    /// True if the backend loads the model for this request.
    is_loading: bool,
    /// The request before its first byte, if its progress is watched.
    awaited: Option<AwaitedRequest>,
    /// The silence of its stream.
    stall: StallWatch,
    /// True for a stream after its first token, except while it waits for its client.
    is_stream: bool,
    /// True for such a stream while it waits for its client to read.
    waits_for_client: bool,
    drain_slot: Option<SlotId>,
    /// The tokens that the request adds to those in flight.
    tokens: u64,
    /// The tokens that it adds to the waiting prefill; 0 once the prefill is done.
    prefill_tokens: u64,
    /// True if it counts among the sheddable requests.
    is_sheddable: bool,
    /// The prediction for it.
    // Boxed: most permits have none, and a permit is moved several times.
    prediction: Option<Box<PredictionTicket>>,
}

impl InflightGuard {
    /// Takes a permit on `state`; `None` if `limit` is reached or another attempt holds the probe
    /// slot.
    // Counted before connect: a slow handshake must already repel the next request.
    pub fn try_reserve(
        state: &Arc<BackendState>,
        limit: u32,
        request: &PermitRequest,
    ) -> Option<Self> {
        Self::try_reserve_with(state, limit, None, request)
    }

    fn try_reserve_with(
        state: &Arc<BackendState>,
        limit: u32,
        evidence: Option<&ModelEvidence>,
        request: &PermitRequest,
    ) -> Option<Self> {
        let probe = HeldProbe::try_take(state, evidence, request)?;
        if state.load.try_begin(limit) {
            state.count_dispatched();
            let state = Arc::clone(state);
            return Some(Self {
                state,
                model: None,
                owner: None,
                probe,
                excludes_probes: true,
                is_loading: false,
                awaited: None,
                stall: StallWatch::default(),
                is_stream: false,
                waits_for_client: false,
                drain_slot: None,
                tokens: 0,
                prefill_tokens: 0,
                is_sheddable: false,
                prediction: None,
            });
        }
        // Otherwise a request that is never sent would keep all others from probing.
        probe.free(state);
        None
    }

    /// Takes permits on the backend and on a model there: both or none.
    pub(super) fn try_reserve_model(
        state: &Arc<BackendState>,
        limit: u32,
        model: &ModelPermit<'_>,
        request: &PermitRequest,
    ) -> Option<Self> {
        // The model first: if the backend is full, one counter is undone and no waiting request is
        // woken.
        if !model.state.load.try_begin(model.limit) {
            return None;
        }
        let guard = Self::try_reserve_with(state, limit, Some(model.evidence), request);
        let Some(mut guard) = guard else {
            model.state.load.end();
            return None;
        };
        guard.model = Some(Arc::clone(model.state));
        Some(guard)
    }

    /// Records that the backend loads the model for the request. The loaded models are read again
    /// when the permit is dropped.
    pub(super) fn note_load(&mut self) {
        self.is_loading = true;
        self.state.progress.begin_load();
    }

    /// Counts the request for its owner for as long as it is in flight.
    pub(super) fn count_for(&mut self, owner: OwnerHold) {
        self.owner = Some(owner);
    }

    /// Watches the progress of the request. Must be called before its own tokens are counted.
    pub(crate) fn watch_progress(&mut self, wait: ExpectedWait, now: Timestamp) {
        let ahead = self.state.work.prefill_tokens();
        let request = self.state.progress.note_sent(wait, ahead, now);
        self.stall = ResponseProgress::watch_stall(&request);
        self.awaited = Some(request);
    }

    /// Counts the request's tokens for as long as it is in flight.
    pub(crate) fn count_tokens(&mut self, request: RequestTokens) {
        self.prefill_tokens = request.uncached.into();
        self.tokens = u64::from(request.prompt) + u64::from(request.output);
        self.state.work.add(self.tokens, self.prefill_tokens);
    }

    /// Ends the prefill, at the first byte of the response.
    pub fn end_prefill(&mut self) {
        let tokens = std::mem::take(&mut self.prefill_tokens);
        if tokens > 0 {
            self.state.work.end_prefill(tokens);
        }
    }

    /// Records the first token of a stream. The next request may then probe, too, because a long
    /// generation must not keep others away from a working backend. A cooldown keeps its probe
    /// slot: an overloaded backend may refuse a second request beside the first. So does a pause by
    /// evidence until its tokens flow: an engine may start every stream and end none.
    pub fn first_token(&mut self) {
        self.end_prefill();
        let progress = &self.state.progress;
        if let Some(request) = self.awaited.take() {
            progress.note_first_byte(&request);
        }
        if !std::mem::replace(&mut self.is_stream, true) {
            progress.begin_stream();
        }
        if !matches!(self.probe, HeldProbe::Cooldown(_) | HeldProbe::Evidence(_)) {
            self.free_probe();
        }
        // Its prompt no longer delays others.
        self.state.capacity.wake();
    }

    /// Records whether the response waits for its client to read. Such a stream is silent without
    /// the backend's doing.
    pub fn wait_for_client(&mut self, waits: bool, now: Timestamp) {
        if waits {
            self.stall.end();
        }
        let progress = &self.state.progress;
        match waits {
            true if self.is_stream => progress.end_stream(),
            false if self.waits_for_client => {
                progress.begin_stream();
                self.state.note_bytes(now);
            }
            _ => return,
        }
        (self.is_stream, self.waits_for_client) = (!waits, waits);
    }

    /// Records `count` tokens of its stream, received at `now`.
    pub fn note_tokens(&mut self, count: u32, now: Timestamp) {
        self.stall.note_token(now);
        let is_evidence = matches!(self.probe, HeldProbe::Evidence(_));
        if self.excludes_probes && is_evidence && self.stall.is_flowing(now) {
            self.free_probe();
        }
        if let Some(ticket) = &mut self.prediction {
            ticket.tokens(count, now.0 as f64);
        }
    }

    /// Returns whether its stream has been silent for much longer than streams of its model are.
    pub fn has_stalled(&self, now: Timestamp) -> bool {
        self.stall.has_stalled(now)
    }

    /// Counts the request in predictions for as long as it is in flight, and among the sheddable
    /// ones if `is_sheddable`.
    pub fn predict(&mut self, ticket: PredictionTicket, is_sheddable: bool) {
        self.prediction = Some(Box::new(ticket));
        if let Some(model) = self.model.as_ref().filter(|_| is_sheddable && !self.is_sheddable) {
            model.begin_sheddable();
            self.is_sheddable = true;
        }
    }

    /// The prediction for the request.
    pub fn prediction(&mut self) -> Option<&mut PredictionTicket> {
        self.prediction.as_deref_mut()
    }

    /// Records the complete response at `now`. `output` is its number of tokens, if the engine
    /// reports it.
    pub fn complete(&mut self, output: Option<TokenCount>, now: Timestamp) {
        if let Some(mut ticket) = self.prediction.take() {
            ticket.complete(output.map(|tokens| tokens.0), now.0 as f64);
        }
    }

    /// Records that the client left at `now`, or that its request moved elsewhere. A permit dropped
    /// without this call counts as ended at its last token: the failures of a backend are no
    /// silence.
    pub fn cut(&mut self, now: Timestamp) {
        if let Some(mut ticket) = self.prediction.take() {
            ticket.cut(now.0 as f64);
        }
        let progress = &self.state.progress;
        let is_early = self.awaited.as_ref().is_some_and(|one| progress.note_left(one, now));
        match self.probe {
            HeldProbe::Frozen(pause) if is_early => progress.set_probe_pause(pause),
            _ => {}
        }
    }

    fn free_probe(&mut self) {
        // Once only: from then on the slot may be another request's.
        if std::mem::take(&mut self.excludes_probes) {
            self.probe.free(&self.state);
        }
    }

    /// Adds the request to the drain estimate for as long as it is in flight.
    pub(crate) fn estimate_drain(&mut self, expected: ExpectedResponse, now: Timestamp) {
        let model = self.model.as_ref().map_or(0, ModelState::tag);
        self.drain_slot = self.state.drain_estimate.take(expected, model, now);
    }

    /// The slot of the drain estimate that counts the response's tokens.
    pub fn drain_slot(&self) -> Option<SlotId> {
        self.drain_slot
    }

    /// The probe slot it holds, or has held.
    pub fn probe(&self) -> Probe {
        self.probe.kind()
    }
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        // First, so that the tasks woken below no longer find it.
        drop((self.prediction.take(), self.owner.take()));
        self.end_prefill();
        if self.tokens > 0 {
            self.state.work.end(self.tokens);
        }
        self.state.load.end();
        if let Some(model) = &self.model {
            if self.is_sheddable {
                model.end_sheddable();
            }
            model.load.end();
        }
        self.free_probe();
        if let Some(request) = &self.awaited {
            self.state.progress.end_wait(request);
        }
        if self.is_stream {
            self.state.progress.end_stream();
        }
        if self.is_loading {
            self.state.progress.end_load();
            self.state.invalidate_loaded();
        }
        if let Some(slot) = self.drain_slot {
            self.state.drain_estimate.free(slot);
        }
        // Last: a request that is woken finds everything released.
        self.state.capacity.wake();
    }
}
