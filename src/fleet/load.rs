//! What is in flight on a backend: one atomic, one RAII guard that settles it exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::backend::BackendState;
use super::forecast::{Forecast, PlaceId};
use crate::units::Timestamp;

/// How many requests a backend has in flight.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    total: AtomicU64,
}

/// How many tokens the requests in flight on a backend are about.
#[derive(Debug, Default)]
pub struct Work {
    tokens: AtomicU64,
    prefill_tokens: AtomicU64,
}

/// What one request in flight takes of its backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    probe: Probe,
    tokens: u64,
    prefill_tokens: u64,
}

impl Work {
    /// Tokens of the requests in flight: their prompts, and what they are expected to yield.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Tokens of the prompts in flight that were not answered with a first byte.
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens.load(Ordering::Relaxed)
    }

    /// Takes over another's tokens, without those of `own`.
    pub(super) fn follow(&self, other: &Self, own: Option<Taken>) {
        let own = own.unwrap_or_default();
        let without = |all: u64, own| all.saturating_sub(own);
        self.tokens.store(without(other.tokens(), own.tokens), Ordering::Relaxed);
        let prefill = without(other.prefill_tokens(), own.prefill_tokens);
        self.prefill_tokens.store(prefill, Ordering::Relaxed);
    }
}

impl Load {
    /// Requests dispatched and not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Attempts dispatched since the backend was first seen.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Pretends a load: for `explain` on a saved fleet and for tests.
    pub fn set_in_flight(&self, count: u32) {
        self.in_flight.store(count, Ordering::Relaxed);
    }

    /// Takes over another's requests in flight, without those of `own`.
    pub(super) fn follow(&self, other: &Self, own: Option<Taken>) {
        let own = u32::from(own.is_some());
        self.set_in_flight(other.in_flight().saturating_sub(own));
    }

    fn try_add(&self, limit: u32) -> bool {
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            if now < limit { now.checked_add(1) } else { None }
        });
        if taken.is_ok() {
            self.total.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }
}

/// Which single-file slot an attempt takes along with its place in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probe {
    /// None: an ordinary attempt.
    #[default]
    None,
    /// The half-open breaker's.
    Breaker,
    /// The first-due resting backend's.
    Cooldown,
}

/// A place in flight on one backend; dropping it gives the place (and a probe slot) back.
#[derive(Debug)]
pub struct InflightGuard {
    state: Arc<BackendState>,
    probe: Probe,
    forecast: Option<PlaceId>,
    /// What the request adds to the tokens in flight, and to those not answered yet.
    tokens: u64,
    prefill_tokens: u64,
}

impl InflightGuard {
    /// Takes a place on `state`, or `None` when `limit` is reached or another attempt holds the
    /// probe slot.
    // Counted before connect: a slow handshake must already repel the next request.
    pub fn try_reserve(state: &Arc<BackendState>, limit: u32, probe: Probe) -> Option<Self> {
        let slot_taken = match probe {
            Probe::None => true,
            Probe::Breaker => state.breaker.try_take_probe(),
            Probe::Cooldown => state.cooldown.try_take_probe(),
        };
        if !slot_taken {
            return None;
        }
        if state.load.try_add(limit) {
            let state = Arc::clone(state);
            return Some(Self { state, probe, forecast: None, tokens: 0, prefill_tokens: 0 });
        }
        free_probe(state, probe);
        None
    }

    /// The backend the place is on.
    pub fn backend(&self) -> &Arc<BackendState> {
        &self.state
    }

    /// What the request takes of its backend.
    pub fn taken(&self) -> Taken {
        let Self { probe, tokens, prefill_tokens, .. } = *self;
        Taken { probe, tokens, prefill_tokens }
    }

    /// Counts the request's tokens for as long as it is in flight.
    pub fn weigh(&mut self, prompt: u32, expected: u32) {
        let work = &self.state.work;
        (self.prefill_tokens, self.tokens) =
            (prompt.into(), u64::from(prompt) + u64::from(expected));
        work.prefill_tokens.fetch_add(self.prefill_tokens, Ordering::Relaxed);
        work.tokens.fetch_add(self.tokens, Ordering::Relaxed);
    }

    /// The first byte of the answer has come: the prompt has been computed.
    pub fn answered(&mut self) {
        let tokens = std::mem::take(&mut self.prefill_tokens);
        if tokens > 0 {
            self.state.work.prefill_tokens.fetch_sub(tokens, Ordering::Relaxed);
        }
    }

    /// Lets the request be forecast for as long as it is in flight.
    pub fn forecast(&mut self, forecast: Forecast, now: Timestamp) {
        self.forecast = self.state.forecasts.take(forecast, now);
    }

    /// Where its tokens are counted for that.
    pub fn place(&self) -> Option<PlaceId> {
        self.forecast
    }

    /// The probe slot held with it.
    pub fn probe(&self) -> Probe {
        self.probe
    }
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        self.answered();
        if self.tokens > 0 {
            self.state.work.tokens.fetch_sub(self.tokens, Ordering::Relaxed);
        }
        self.state.load.in_flight.fetch_sub(1, Ordering::AcqRel);
        free_probe(&self.state, self.probe);
        if let Some(place) = self.forecast {
            self.state.forecasts.leave(place);
        }
    }
}

impl Taken {
    /// Gives the probe slot back that goes with it.
    pub(super) fn free_probe(self, state: &BackendState) {
        free_probe(state, self.probe);
    }
}

fn free_probe(state: &BackendState, probe: Probe) {
    match probe {
        Probe::None => {}
        Probe::Breaker => state.breaker.free_probe(),
        Probe::Cooldown => state.cooldown.free_probe(),
    }
}
