//! The operations that a backend has turned out to lack, and those that it has served. The table of
//! engines only lists operations that an engine may serve in some version.
//!
//! A backend that has served nothing yet may have a gateway in front that knows no path at all, so
//! its missing operations are tried again soon. Another version of the engine clears everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_api::{Operation, Operations};
use smallvec::SmallVec;

/// The time for which an operation is assumed to be missing.
const LASTS: Duration = Duration::from_secs(24 * 60 * 60);
/// The same time for a backend that has not served any operation.
const LASTS_UNCONFIRMED: Duration = Duration::from_secs(60);

/// The lessons about the operations of one backend.
#[derive(Debug, Default)]
pub struct OperationLessons {
    /// One bit for each operation that has been served.
    served: AtomicU64,
    /// The missing operations, each with the end of that assumption.
    lacking: Mutex<SmallVec<[(Operation, Timestamp); 2]>>,
}

impl OperationLessons {
    /// Returns whether a request for the operation has been served.
    pub fn has_served(&self, operation: Operation) -> bool {
        self.served.load(Ordering::Relaxed) & bit(operation) != 0
    }

    /// Records that a request for the operation has been served.
    pub fn note_served(&self, operation: Operation) {
        // A load first: it is written once, and read by every response.
        if !self.has_served(operation) {
            self.served.fetch_or(bit(operation), Ordering::Relaxed);
        }
    }

    /// Records that the backend does not know the operation's path. Returns whether that is new.
    pub(super) fn learn_lacking(&self, operation: Operation, now: Timestamp) -> bool {
        // The path exists: this response is about what the request named.
        if self.has_served(operation) {
            return false;
        }
        let lasts = match self.served.load(Ordering::Relaxed) {
            0 => LASTS_UNCONFIRMED,
            _ => LASTS,
        };
        let mut lacking = self.lacking.lock();
        let until = now.after(lasts);
        match lacking.iter_mut().find(|(known, _)| *known == operation) {
            Some(known) => known.1 = until,
            None => lacking.push((operation, until)),
        }
        true
    }

    /// Drops expired lessons. Returns whether there were any.
    pub(super) fn expire(&self, now: Timestamp) -> bool {
        let mut lacking = self.lacking.lock();
        let before = lacking.len();
        lacking.retain(|(_, until)| *until > now);
        lacking.len() < before
    }

    /// Forgets everything, because the engine is another one. Returns whether any operation was
    /// missing.
    pub(super) fn forget(&self) -> bool {
        self.served.store(0, Ordering::Relaxed);
        !std::mem::take(&mut *self.lacking.lock()).is_empty()
    }

    /// The operations that the backend lacks.
    pub fn lacking(&self) -> Operations {
        self.lacking.lock().iter().fold(Operations::default(), |all, (one, _)| all.with(*one))
    }
}

fn bit(operation: Operation) -> u64 {
    1 << operation as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    #[test]
    fn operation_that_was_served_is_never_lacking() {
        let lessons = OperationLessons::default();
        lessons.note_served(Operation::Messages);
        assert!(!lessons.learn_lacking(Operation::Messages, NOW), "a client provoked the 404");
        assert!(lessons.learn_lacking(Operation::Responses, NOW));
        assert_eq!(lessons.lacking(), Operations::of(&[Operation::Responses]));
    }

    #[test]
    fn lessons_end_after_a_day_or_with_the_version() {
        let lessons = OperationLessons::default();
        lessons.learn_lacking(Operation::Messages, NOW);
        assert!(!lessons.expire(NOW.after(Duration::from_secs(59))));
        assert!(lessons.expire(NOW.after(Duration::from_secs(61))), "nothing was served before");
        lessons.note_served(Operation::Chat);
        lessons.learn_lacking(Operation::Messages, NOW);
        assert!(!lessons.expire(NOW.after(Duration::from_secs(86_000))));
        assert!(lessons.expire(NOW.after(Duration::from_secs(86_401))));
        lessons.learn_lacking(Operation::Messages, NOW);
        assert!(lessons.forget() && lessons.lacking().is_empty());
        assert!(!lessons.has_served(Operation::Chat));
    }
}
