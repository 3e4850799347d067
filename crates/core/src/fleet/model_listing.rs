//! The dropped entries of a backend's last model list.

use std::sync::atomic::{AtomicU32, Ordering};

/// The numbers of model ids of one list that were dropped, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DroppedModels {
    /// Ids longer than a name may be.
    pub too_long: u32,
    /// Ids with control characters, and empty ids.
    pub unprintable: u32,
    pub duplicate: u32,
    /// Ids beyond the largest number of models.
    pub over_limit: u32,
}

impl DroppedModels {
    pub fn by_reason(self) -> [(&'static str, u32); 4] {
        [
            ("too_long", self.too_long),
            ("unprintable", self.unprintable),
            ("duplicate", self.duplicate),
            ("over_limit", self.over_limit),
        ]
    }
}

/// The dropped entries of the last list, shared.
#[derive(Debug, Default)]
pub struct ModelListing {
    too_long: AtomicU32,
    unprintable: AtomicU32,
    duplicate: AtomicU32,
    over_limit: AtomicU32,
}

impl ModelListing {
    /// Records the entries that a list had dropped. Returns whether the list before it differed.
    pub fn record(&self, dropped: DroppedModels) -> bool {
        let before = DroppedModels {
            too_long: self.too_long.swap(dropped.too_long, Ordering::Relaxed),
            unprintable: self.unprintable.swap(dropped.unprintable, Ordering::Relaxed),
            duplicate: self.duplicate.swap(dropped.duplicate, Ordering::Relaxed),
            over_limit: self.over_limit.swap(dropped.over_limit, Ordering::Relaxed),
        };
        before != dropped
    }

    /// The entries that the last list had dropped.
    pub fn dropped(&self) -> DroppedModels {
        DroppedModels {
            too_long: self.too_long.load(Ordering::Relaxed),
            unprintable: self.unprintable.load(Ordering::Relaxed),
            duplicate: self.duplicate.load(Ordering::Relaxed),
            over_limit: self.over_limit.load(Ordering::Relaxed),
        }
    }
}
