//! The capabilities that a model on a backend has turned out to lack, by the words of its engine.
//! Lists of models rarely say what a model can do, and never with which options its engine runs.
//!
//! A lesson ends by itself, because an engine may be started with other options unseen, and is
//! forgotten with the engine's process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::Capabilities;
use penstock_api::units::Timestamp;

/// The time for which a capability is assumed to be missing.
const LASTS: Duration = Duration::from_secs(10 * 60);

/// The missing capabilities of one model on one backend.
#[derive(Debug, Default)]
pub struct CapabilityLessons {
    /// The end of the assumption for each capability, in the order of [`Capabilities::NAMED`]; 0
    /// for none.
    until: [AtomicU64; Capabilities::NAMED.len()],
}

impl CapabilityLessons {
    fn rows(&self) -> impl Iterator<Item = (Capabilities, &AtomicU64)> {
        Capabilities::NAMED.iter().map(|(one, _)| *one).zip(&self.until)
    }

    /// Records that the model lacks capabilities. Returns whether that is new.
    pub(super) fn learn(&self, missing: Capabilities, now: Timestamp) -> bool {
        let until = now.after(LASTS).0;
        let learned = self.rows().filter(|(one, _)| missing.contains(*one));
        learned.fold(false, |is_new, (_, row)| {
            // Requests that were on their way do not prolong it.
            let is_first = row.compare_exchange(0, until, Ordering::Relaxed, Ordering::Relaxed);
            is_new | is_first.is_ok()
        })
    }

    /// The capabilities that the model lacks.
    pub fn missing(&self) -> Capabilities {
        let missing = self.rows().filter(|(_, row)| row.load(Ordering::Relaxed) != 0);
        missing.fold(Capabilities::NONE, |all, (one, _)| all.union(one))
    }

    /// Drops expired lessons. Returns whether there were any.
    pub(super) fn expire(&self, now: Timestamp) -> bool {
        self.drop_until(now.0)
    }

    /// Forgets everything, because the engine is another process. Returns whether any capability
    /// was missing.
    pub(super) fn forget(&self) -> bool {
        self.drop_until(u64::MAX)
    }

    fn drop_until(&self, end: u64) -> bool {
        self.rows().fold(false, |dropped, (_, row)| {
            let is_over = (1..=end).contains(&row.load(Ordering::Relaxed));
            if is_over {
                row.store(0, Ordering::Relaxed);
            }
            dropped | is_over
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lessons_end_by_themselves_or_with_the_process() {
        let lessons = CapabilityLessons::default();
        let start = Timestamp(1_000_000);
        assert!(lessons.learn(Capabilities::TOOLS, start));
        assert!(!lessons.learn(Capabilities::TOOLS, start.after(LASTS / 2)), "known already");
        assert!(lessons.learn(Capabilities::VISION, start.after(LASTS / 2)));
        assert_eq!(lessons.missing(), Capabilities::TOOLS.union(Capabilities::VISION));
        assert!(!lessons.expire(start.after(LASTS / 2)));
        assert!(lessons.expire(start.after(LASTS)), "a request on its way prolonged nothing");
        assert_eq!(lessons.missing(), Capabilities::VISION);
        assert!(lessons.forget() && !lessons.forget());
        assert_eq!(lessons.missing(), Capabilities::NONE);
    }
}
