//! The slot of the one request at a time that probes a backend.

use std::sync::atomic::{AtomicBool, Ordering};

/// A slot that one request at a time may hold. A slot that is not freed would end all probing:
/// [`super::InflightGuard`] frees it when it drops.
#[derive(Debug, Default)]
pub(super) struct ProbeSlot(AtomicBool);

impl ProbeSlot {
    pub(super) fn is_free(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    pub(super) fn try_take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(super) fn free(&self) {
        self.0.store(false, Ordering::Release);
    }
}
