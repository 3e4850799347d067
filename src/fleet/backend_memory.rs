//! What a backend has in memory, as its last probe showed it: whether another model fits beside it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::units::ByteSize;

/// Stands for a number of models that is not known.
const UNKNOWN: u32 = u32::MAX;

/// The memory of one backend.
#[derive(Debug)]
pub struct BackendMemory {
    models: AtomicU32,
    /// In bytes.
    used: AtomicU64,
    /// In bytes; 0 is unknown.
    capacity: AtomicU64,
}

impl Default for BackendMemory {
    fn default() -> Self {
        Self {
            models: AtomicU32::new(UNKNOWN),
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
    }

    pub(super) fn forget(&self) {
        self.models.store(UNKNOWN, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
    }

    /// How many models it has in memory; `None` before the first probe.
    pub fn models(&self) -> Option<u32> {
        Some(self.models.load(Ordering::Relaxed)).filter(|count| *count != UNKNOWN)
    }

    /// The VRAM they occupy; `None` before the first probe.
    pub fn used(&self) -> Option<ByteSize> {
        self.models().map(|_| ByteSize(self.used.load(Ordering::Relaxed)))
    }

    /// Whether a model of that size can be loaded beside those in memory: there are none, or `vram` is
    /// configured and holds it, too.
    pub(super) fn has_room_for(&self, size: Option<ByteSize>) -> bool {
        let Some(models) = self.models() else { return false };
        let capacity = self.capacity.load(Ordering::Relaxed);
        let fits =
            |size: ByteSize| self.used.load(Ordering::Relaxed).saturating_add(size.0) <= capacity;
        models == 0 || (capacity > 0 && size.is_some_and(fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_configured_vram_leaves() {
        let memory = BackendMemory::default();
        let size = Some(ByteSize::mib(4));
        assert!(!memory.has_room_for(size), "not probed yet");
        memory.learn(0, ByteSize(0));
        assert!(memory.has_room_for(None), "nothing is loaded");
        memory.learn(1, ByteSize::mib(6));
        assert!(!memory.has_room_for(size), "its VRAM is not configured");
        memory.set_capacity(Some(ByteSize::mib(10)));
        assert!(memory.has_room_for(size));
        assert!(!memory.has_room_for(Some(ByteSize::mib(5))));
        assert!(!memory.has_room_for(None), "the size is not known");
        memory.forget();
        assert_eq!((memory.models(), memory.used()), (None, None));
    }
}
