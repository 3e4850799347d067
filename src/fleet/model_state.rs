//! What is known of one model on one backend at run time: requests in flight, and whether the backend has
//! it in memory. Shared by every topology that knows the pair; probes and attempts write it, decisions
//! read it without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use once_cell::sync::OnceCell;

use super::load::OthersInFlight;
use crate::predict::{Coefficients, EngineLimits, Predictor};
use crate::scoring::Residency;
use crate::units::{ByteSize, Timestamp, TokenCount};

/// What a probe reports of a model that a backend has in memory, or that sleeps there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedModel {
    /// The backend's own name for it.
    pub name: String,
    /// Where it stands.
    pub residency: Residency,
    /// What it occupies in VRAM.
    pub vram: Option<ByteSize>,
    /// When the engine unloads it, unless a request comes.
    pub expires_at: Option<Timestamp>,
    /// The context length it is loaded with.
    pub context_length: Option<TokenCount>,
}

/// One model on one backend.
#[derive(Debug)]
pub struct ModelState {
    in_flight: AtomicU32,
    /// Those of them that may be refused, where latencies are predicted.
    sheddable: AtomicU32,
    /// Those of other penstocks.
    others: OthersInFlight,
    /// How many requests the backend runs of it at a time; `u32::MAX` if unknown.
    slots: AtomicU32,
    residency: AtomicU8,
    /// 0 is unknown.
    context_length: AtomicU32,
    /// 0 is never, or unknown.
    expires_at: AtomicU64,
    /// When a response last proved it to be in memory; 0 before the first.
    last_used: AtomicU64,
    /// When it became known to be in memory.
    resident_since: AtomicU64,
    /// When a probe that showed it in memory was sent, or its last load began; 0 before both.
    proved_at: AtomicU64,
    /// In bytes; 0 is unknown.
    size: AtomicU64,
    vram: AtomicU64,
    /// What latencies are predicted by; made for the first prediction.
    predictor: OnceCell<Arc<Predictor>>,
    /// The step times that it starts with, where the configuration names them.
    step_times: OnceCell<Coefficients>,
}

impl Default for ModelState {
    fn default() -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            sheddable: AtomicU32::new(0),
            others: OthersInFlight::default(),
            slots: AtomicU32::new(u32::MAX),
            residency: AtomicU8::new(0),
            context_length: AtomicU32::new(0),
            expires_at: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
            resident_since: AtomicU64::new(0),
            proved_at: AtomicU64::new(0),
            size: AtomicU64::new(0),
            vram: AtomicU64::new(0),
            predictor: OnceCell::new(),
            step_times: OnceCell::new(),
        }
    }
}

impl ModelState {
    /// What latencies are predicted by.
    #[inline]
    pub fn predictor(&self) -> &Arc<Predictor> {
        self.predictor.get_or_init(|| {
            let known =
                self.step_times.get().map(|times| Predictor::new(times, EngineLimits::default()));
            Arc::new(known.unwrap_or_default())
        })
    }

    /// Has predictions start with these step times; the first ones count.
    pub(super) fn start_with(&self, step_times: &Coefficients) {
        let _first = self.step_times.get_or_init(|| *step_times);
    }

    /// The same, where anything was predicted.
    pub fn used_predictor(&self) -> Option<&Arc<Predictor>> {
        self.predictor.get()
    }

    /// Whether little is known of its latencies, neither learned nor configured.
    pub(super) fn is_unpredicted(&self) -> bool {
        self.step_times.get().is_none()
            && self.predictor.get().is_none_or(|one| one.is_little_known())
    }

    /// Requests for the model that this penstock dispatched to the backend and that have not ended.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests for the model of other penstocks in flight there, as they reported it last.
    pub fn others(&self) -> u32 {
        self.others.count()
    }

    /// Requests for the model in flight there, with those of other penstocks: what decisions read.
    #[inline(always)]
    pub fn of_all(&self) -> u32 {
        self.in_flight().saturating_add(self.others.count())
    }

    /// How many requests a penstock may have in flight itself where `limit` bounds those of all.
    pub(super) fn own_limit(&self, limit: u32) -> u32 {
        self.others.own_limit(limit)
    }

    /// Sets what so many other penstocks have in flight. Returns whether there may be more room than before.
    pub(super) fn set_others(&self, count: u32, penstocks: u8) -> bool {
        self.others.set(count, penstocks)
    }

    /// Sets a load: for `explain` on a saved fleet and for tests.
    pub fn set_in_flight(&self, count: u32) {
        self.in_flight.store(count, Ordering::Relaxed);
    }

    /// Counts one more request unless `limit` is reached, by all penstocks.
    pub(super) fn try_begin(&self, limit: u32) -> bool {
        let limit = self.own_limit(limit);
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            if now < limit { now.checked_add(1) } else { None }
        });
        taken.is_ok()
    }

    /// The requests in flight that may be refused, where latencies are predicted.
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

    pub(super) fn end(&self) {
        // In one order with the look at those who wait for capacity.
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many requests the backend runs of it at a time; `u32::MAX` if unknown.
    #[inline(always)]
    pub fn slots(&self) -> u32 {
        self.slots.load(Ordering::Relaxed)
    }

    pub(super) fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }
}

mod residency;
