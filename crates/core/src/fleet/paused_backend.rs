//! A backend that is paused for one model, with its probe slot, and the paused models of one
//! backend. Decisions read both without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use penstock_api::units::Timestamp;

use super::circuit_breaker::BreakerState;
use super::probe_slot::ProbeSlot;

/// A backend that is paused for the requests of one client, or of all.
#[derive(Debug)]
pub(super) struct PausedBackend {
    pub(super) serial: u64,
    pub(super) name: Box<str>,
    /// The time from which a request may probe; 0 once the pause has ended.
    until: AtomicU64,
    /// The time at which the pause is forgotten, if no request probed.
    forgotten_at: AtomicU64,
    pub(super) probe: ProbeSlot,
}

impl PausedBackend {
    pub(super) fn new(serial: u64, name: &str, until: Timestamp, forgotten_at: Timestamp) -> Self {
        Self {
            serial,
            name: name.into(),
            until: AtomicU64::new(until.0),
            forgotten_at: AtomicU64::new(forgotten_at.0),
            probe: ProbeSlot::default(),
        }
    }

    pub(super) fn set(&self, until: Timestamp, forgotten_at: Timestamp) {
        self.forgotten_at.store(forgotten_at.0, Ordering::Relaxed);
        self.until.store(until.0, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// The breaker state that a request finds.
    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        let until = self.until.load(Ordering::Relaxed);
        match until {
            0 => BreakerState::Closed,
            _ if self.forgotten_at.load(Ordering::Relaxed) <= now.0 => BreakerState::Closed,
            _ if until <= now.0 && self.probe.is_free() => BreakerState::HalfOpen,
            _ => BreakerState::Open,
        }
    }

    /// Returns whether it is paused and not yet open to a probe.
    pub(super) fn is_waiting(&self, now: Timestamp) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }
}

/// The models that fail on one backend for all clients. With two of them, the backend is avoided.
#[derive(Debug, Default)]
pub struct FaultyModels(ArcSwap<Vec<(u64, Arc<PausedBackend>)>>);

impl FaultyModels {
    /// Returns whether at least two models are paused.
    pub fn are_several(&self, now: Timestamp) -> bool {
        self.0.load().iter().filter(|(_, one)| one.is_waiting(now)).nth(1).is_some()
    }

    /// Adds a paused model; `model` is a hash of its name.
    pub(super) fn add(&self, model: u64, paused: &Arc<PausedBackend>, now: Timestamp) {
        self.0.rcu(|list| {
            let others = list.iter().filter(|(other, one)| *other != model && one.is_waiting(now));
            let own = std::iter::once((model, Arc::clone(paused)));
            others.cloned().chain(own).collect::<Vec<(u64, Arc<PausedBackend>)>>()
        });
    }
}
