//! Wakes the queues that wait for capacity on a backend: when a permit is released, when the
//! backend recovers, when a drain ends.
//!
//! A permit is released before the watchers are read, and a watcher is registered before it reads
//! the load, both in one total order (`SeqCst`). Whichever comes second sees the other: either the
//! watcher finds the free permit, or the permit finds the watcher.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use parking_lot::Mutex;

/// The queues that wait for capacity on a backend.
#[derive(Debug, Default)]
pub struct CapacityWatch {
    is_watched: AtomicBool,
    /// At most one per model that the backend serves.
    watchers: Mutex<Vec<Waker>>,
}

impl CapacityWatch {
    /// Registers `waker` to be woken.
    pub fn watch(&self, waker: &Waker) {
        let mut watchers = self.watchers.lock();
        if !watchers.iter().any(|known| known.will_wake(waker)) {
            watchers.push(waker.clone());
        }
        self.is_watched.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub fn unwatch(&self, waker: &Waker) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|known| !known.will_wake(waker));
        self.is_watched.store(!watchers.is_empty(), Ordering::SeqCst);
    }

    /// Wakes the watchers, because there may be capacity. Costs one load if none waits.
    #[inline]
    pub fn wake(&self) {
        if self.is_watched.load(Ordering::SeqCst) {
            self.wake_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_all(&self) {
        // Woken without the lock: a watcher may read its backends at once.
        let watchers = self.watchers.lock().clone();
        watchers.iter().for_each(Waker::wake_by_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::CountedWakes;

    #[test]
    fn watchers_are_woken_until_they_leave() {
        let (waker, wakes) = CountedWakes::waker();
        let watch = CapacityWatch::default();
        watch.wake();
        watch.watch(&waker);
        watch.watch(&waker);
        watch.wake();
        assert_eq!(wakes.count(), 1, "entered twice, woken once");
        watch.unwatch(&waker);
        watch.wake();
        assert_eq!(wakes.count(), 1);
    }
}
