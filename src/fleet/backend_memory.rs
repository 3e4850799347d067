//! What a backend has in memory, as its last probe showed it: whether another model fits beside it.
//!
//! Between two probes penstock's own requests change it: each one for a model that is not there begins a load,
//! which pushes out what is there, unless it is known that both fit. From then on only that model is taken to
//! be there, until a later probe shows more: else two models that came to one backend in the same moment would
//! push each other out with every request.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::units::{ByteSize, Timestamp};

/// Stands for a number of models that is not known.
const UNKNOWN: u32 = u32::MAX;

/// The memory of one backend.
#[derive(Debug)]
pub struct BackendMemory {
    models: AtomicU32,
    /// The most that a probe ever showed at once.
    most_models: AtomicU32,
    /// Loads that began since the last probe.
    loads: AtomicU32,
    /// When a load last began that may push out what was there; 0 before the first.
    disputed_at: AtomicU64,
    /// In bytes.
    used: AtomicU64,
    /// In bytes; 0 is unknown.
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

    /// Records how many models a probe showed in memory, and the VRAM they occupy.
    pub(super) fn learn(&self, models: u32, used: ByteSize) {
        self.used.store(used.0, Ordering::Relaxed);
        self.models.store(models.min(UNKNOWN - 1), Ordering::Relaxed);
        self.most_models.fetch_max(models, Ordering::Relaxed);
        self.loads.store(0, Ordering::Relaxed);
    }

    /// A request begins to load a model of that size at `now`.
    pub(super) fn begin_load(&self, size: Option<ByteSize>, now: Timestamp) {
        let before = self.models().map(|models| models + self.loads.load(Ordering::Relaxed));
        let most = self.most_models.load(Ordering::Relaxed);
        let are_known_to_fit = before.is_some_and(|models| models < most) || self.fits(size);
        if !are_known_to_fit {
            self.disputed_at.fetch_max(now.0, Ordering::Relaxed);
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// When a load last began that may have pushed out what was there.
    #[inline(always)]
    pub(super) fn disputed_at(&self) -> Timestamp {
        Timestamp(self.disputed_at.load(Ordering::Relaxed))
    }

    /// All its models stand alike: none pushes out another.
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

    /// How many models it has in memory; `None` before the first probe.
    pub fn models(&self) -> Option<u32> {
        Some(self.models.load(Ordering::Relaxed)).filter(|count| *count != UNKNOWN)
    }

    /// The VRAM they occupy; `None` before the first probe.
    pub fn used(&self) -> Option<ByteSize> {
        self.models().map(|_| ByteSize(self.used.load(Ordering::Relaxed)))
    }

    /// Whether it has nothing in memory, and loads nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.models() == Some(0) && self.loads.load(Ordering::Relaxed) == 0
    }

    /// Whether `vram` is configured, and holds a model of that size beside those in memory.
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
