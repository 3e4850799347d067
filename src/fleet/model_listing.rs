//! What the last model list of a backend contained that is not used.

use std::sync::atomic::{AtomicU32, Ordering};

/// Model ids of one list that were dropped, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DroppedModels {
    /// Longer than a name may be.
    pub too_long: u32,
    /// With control characters, or empty.
    pub unprintable: u32,
    /// Listed before.
    pub duplicate: u32,
    /// After the most models that are taken.
    pub over_limit: u32,
}

impl DroppedModels {
    /// Each reason and its count.
    pub fn by_reason(self) -> [(&'static str, u32); 4] {
        [
            ("too_long", self.too_long),
            ("unprintable", self.unprintable),
            ("duplicate", self.duplicate),
            ("over_limit", self.over_limit),
        ]
    }
}

/// The same, shared.
#[derive(Debug, Default)]
pub struct ModelListing {
    too_long: AtomicU32,
    unprintable: AtomicU32,
    duplicate: AtomicU32,
    over_limit: AtomicU32,
}

impl ModelListing {
    /// Records what a list had dropped; returns whether the list before it differed.
    pub fn record(&self, dropped: DroppedModels) -> bool {
        let before = DroppedModels {
            too_long: self.too_long.swap(dropped.too_long, Ordering::Relaxed),
            unprintable: self.unprintable.swap(dropped.unprintable, Ordering::Relaxed),
            duplicate: self.duplicate.swap(dropped.duplicate, Ordering::Relaxed),
            over_limit: self.over_limit.swap(dropped.over_limit, Ordering::Relaxed),
        };
        before != dropped
    }

    /// What the last list had dropped.
    pub fn dropped(&self) -> DroppedModels {
        DroppedModels {
            too_long: self.too_long.load(Ordering::Relaxed),
            unprintable: self.unprintable.load(Ordering::Relaxed),
            duplicate: self.duplicate.load(Ordering::Relaxed),
            over_limit: self.over_limit.load(Ordering::Relaxed),
        }
    }
}
