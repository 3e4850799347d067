//! Counts objects that are alive: requests in flight, open connections, clients being drained.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One counted object, from its creation to its drop.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counter))
    }

    /// Counts one more object; `None` if there are `limit` already.
    pub(crate) fn try_new(counter: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        // In one step: two objects at the same time must not both take the last place.
        let taken = counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            (count < limit).then_some(count + 1)
        });
        taken.is_ok().then(|| Self(Arc::clone(counter)))
    }

    /// The number of objects alive, this one included.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
