//! The contents of a backend's memory at its last probe, and whether another model fits.
//!
//! Between two probes penstock's own requests change the contents. A request for an absent model
//! starts a load; assume it evicts the resident models unless both are known to fit. From then on
//! only the loading model counts as resident until a later probe shows more. Otherwise two models
//! that arrive at one backend at the same moment would evict each other with every request.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use penstock_api::units::{ByteSize, Timestamp};

/// A number of models that is not known.
const UNKNOWN: u32 = u32::MAX;

#[derive(Debug)]
pub struct BackendMemory {
    models: AtomicU32,
    /// The largest number of models that a probe ever showed at once.
    most_models: AtomicU32,
    /// The number of loads that started since the last probe.
    loads: AtomicU32,
    /// The start of the last load that may evict other models; 0 before the first.
    disputed_at: AtomicU64,
    /// The VRAM in use, in bytes.
    used: AtomicU64,
    /// The configured VRAM in bytes; 0 if unknown.
    capacity: AtomicU64,
}

impl Default for BackendMemory {
    fn default() -> Self {
        Self {
            models: AtomicU32::new(UNKNOWN),
            most_models: AtomicU32::new(0),
            loads: AtomicU32::new(0),
            disputed_at: AtomicU64::new(0),
            used: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
        }
    }
}

impl BackendMemory {
    /// Sets the configured VRAM.
    pub(super) fn set_capacity(&self, capacity: Option<ByteSize>) {
        self.capacity.store(capacity.unwrap_or_default().0, Ordering::Relaxed);
    }

    /// Records the number of models that a probe showed in memory, and the VRAM they occupy.
    pub(super) fn learn(&self, models: u32, used: ByteSize) {
        self.used.store(used.0, Ordering::Relaxed);
        self.models.store(models.min(UNKNOWN - 1), Ordering::Relaxed);
        self.most_models.fetch_max(models, Ordering::Relaxed);
        self.loads.store(0, Ordering::Relaxed);
    }

    /// Records that a request starts to load a model of `size` at `now`.
    pub(super) fn begin_load(&self, size: Option<ByteSize>, now: Timestamp) {
        let before = self.models().map(|models| models + self.loads.load(Ordering::Relaxed));
        let most = self.most_models.load(Ordering::Relaxed);
        // A probe once showed more models at a time than are there now: one more does fit.
        let are_known_to_fit = before.is_some_and(|models| models < most) || self.fits(size);
        if !are_known_to_fit {
            self.disputed_at.fetch_max(now.0, Ordering::Relaxed);
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// The start of the last load that may have evicted other models.
    #[inline(always)]
    pub(super) fn disputed_at(&self) -> Timestamp {
        Timestamp(self.disputed_at.load(Ordering::Relaxed))
    }

    /// Clears the dispute: all resident models stay, and none evicts another.
    pub(super) fn settle(&self) {
        self.disputed_at.store(0, Ordering::Relaxed);
    }

    pub(super) fn forget(&self) {
        self.models.store(UNKNOWN, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        self.most_models.store(0, Ordering::Relaxed);
        self.loads.store(0, Ordering::Relaxed);
        self.settle();
    }

    /// The number of models in memory; `None` before the first probe.
    pub fn models(&self) -> Option<u32> {
        Some(self.models.load(Ordering::Relaxed)).filter(|count| *count != UNKNOWN)
    }

    /// The VRAM they occupy; `None` before the first probe.
    pub fn used(&self) -> Option<ByteSize> {
        self.models().map(|_| ByteSize(self.used.load(Ordering::Relaxed)))
    }

    /// Returns whether it has nothing in memory and loads nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.models() == Some(0) && self.loads.load(Ordering::Relaxed) == 0
    }

    /// Returns whether `vram` is configured and holds a model of `size` beside those in memory.
    pub(super) fn fits(&self, size: Option<ByteSize>) -> bool {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let Some(size) = size.filter(|_| capacity > 0 && self.models().is_some()) else {
            return false;
        };
        self.used.load(Ordering::Relaxed).saturating_add(size.0) <= capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_configured_vram_leaves() {
        let memory = BackendMemory::default();
        let size = Some(ByteSize::mib(4));
        assert!(!memory.is_empty() && !memory.fits(size), "not probed yet");
        memory.learn(0, ByteSize(0));
        assert!(memory.is_empty(), "nothing is loaded");
        memory.learn(1, ByteSize::mib(6));
        assert!(!memory.is_empty() && !memory.fits(size), "its VRAM is not configured");
        memory.set_capacity(Some(ByteSize::mib(10)));
        assert!(memory.fits(size));
        assert!(!memory.fits(Some(ByteSize::mib(5))));
        assert!(!memory.fits(None), "the size is not known");
        memory.forget();
        assert_eq!((memory.models(), memory.used()), (None, None));
    }

    #[test]
    fn load_is_disputed_unless_all_are_known_to_fit() {
        let memory = BackendMemory::default();
        let disputed_by_load_at = |at| {
            memory.begin_load(Some(ByteSize::mib(4)), Timestamp(at));
            memory.disputed_at() == Timestamp(at)
        };
        memory.learn(0, ByteSize(0));
        assert!(disputed_by_load_at(1), "nothing is known to fit");
        assert!(!memory.is_empty(), "it is being loaded");
        memory.learn(2, ByteSize::mib(8));
        memory.learn(1, ByteSize::mib(4));
        assert!(!disputed_by_load_at(2), "two were in memory before");
        assert!(disputed_by_load_at(3), "two are there already, or on their way");
        memory.set_capacity(Some(ByteSize::mib(8)));
        assert!(!disputed_by_load_at(4), "the VRAM holds both");
        memory.settle();
        assert_eq!(memory.disputed_at(), Timestamp(0));
    }
}
