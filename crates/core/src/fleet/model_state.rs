//! The state of one model on one backend at run time: requests in flight, and residency in memory.
//! Shared by every topology that knows the pair. Probes and attempts write it; decisions read it
//! without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use once_cell::sync::OnceCell;
use penstock_api::units::{ByteSize, Timestamp, TokenCount};
use penstock_predict::{Coefficients, EngineLimits, Predictor};
use penstock_scoring::Residency;

use super::capability_lessons::CapabilityLessons;
use super::drain_estimate::ModelTag;
use super::load::Load;

/// A model that a backend has in memory, or that sleeps there, as a probe reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedModel {
    /// The backend's own name for the model.
    pub name: String,
    pub residency: Residency,
    /// The VRAM that it occupies.
    pub vram: Option<ByteSize>,
    /// The time at which the engine unloads it, unless a request comes.
    pub expires_at: Option<Timestamp>,
    /// The context length it is loaded with.
    pub context_length: Option<TokenCount>,
}

/// One model on one backend.
#[derive(Debug)]
pub struct ModelState {
    /// The requests for the model in flight there.
    pub load: Load,
    /// The number of sheddable requests in flight, if latencies are predicted.
    sheddable: AtomicU32,
    /// The number of its requests that the backend runs at a time; `u32::MAX` if unknown.
    slots: AtomicU32,
    residency: AtomicU8,
    /// The context length it is loaded with; 0 if unknown.
    context_length: AtomicU32,
    /// The time at which the engine unloads it; 0 for never, or if unknown.
    expires_at: AtomicU64,
    /// The time of the last response that proved it to be in memory; 0 before the first.
    last_used: AtomicU64,
    /// The time at which it became known to be in memory.
    resident_since: AtomicU64,
    /// The start of the last probe that settled its state, or of its last load; 0 before both.
    proved_at: AtomicU64,
    /// Its size on disk in bytes; 0 if unknown.
    size: AtomicU64,
    vram: AtomicU64,
    pub lessons: CapabilityLessons,
    /// The latency predictor, created for the first prediction.
    predictor: OnceCell<Arc<Predictor>>,
    /// The configured step times that it starts with, if any.
    step_times: OnceCell<Coefficients>,
}

impl Default for ModelState {
    fn default() -> Self {
        Self {
            load: Load::default(),
            sheddable: AtomicU32::new(0),
            slots: AtomicU32::new(u32::MAX),
            residency: AtomicU8::new(0),
            context_length: AtomicU32::new(0),
            expires_at: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
            resident_since: AtomicU64::new(0),
            proved_at: AtomicU64::new(0),
            size: AtomicU64::new(0),
            vram: AtomicU64::new(0),
            lessons: CapabilityLessons::default(),
            predictor: OnceCell::new(),
            step_times: OnceCell::new(),
        }
    }
}

impl ModelState {
    /// The tag of its requests among those in flight on the backend.
    pub(super) fn tag(this: &Arc<Self>) -> ModelTag {
        Arc::as_ptr(this).addr()
    }

    /// The latency predictor, created on the first call.
    #[inline]
    pub fn predictor(&self) -> &Arc<Predictor> {
        self.predictor.get_or_init(|| {
            let known =
                self.step_times.get().map(|times| Predictor::new(times, EngineLimits::default()));
            Arc::new(known.unwrap_or_default())
        })
    }

    /// Sets the prior step times of predictions. The first call wins.
    pub(super) fn start_with(&self, step_times: &Coefficients) {
        let _first = self.step_times.get_or_init(|| *step_times);
    }

    /// The latency predictor, if it has been used.
    pub fn used_predictor(&self) -> Option<&Arc<Predictor>> {
        self.predictor.get()
    }

    /// Returns whether little is known of its latencies, neither learned nor configured.
    pub(super) fn is_unpredicted(&self) -> bool {
        self.step_times.get().is_none()
            && self.predictor.get().is_none_or(|one| one.is_little_known())
    }

    /// The number of sheddable requests in flight, if latencies are predicted.
    #[inline(always)]
    pub fn sheddable(&self) -> u32 {
        self.sheddable.load(Ordering::Relaxed)
    }

    pub(super) fn begin_sheddable(&self) {
        self.sheddable.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_sheddable(&self) {
        self.sheddable.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of its requests that the backend runs at a time; `u32::MAX` if unknown.
    #[inline(always)]
    pub fn slots(&self) -> u32 {
        self.slots.load(Ordering::Relaxed)
    }

    pub(super) fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }
}

mod residency;
