//! Helpers of the tests of several folders.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// The number of times that a waker was woken.
#[derive(Default)]
pub(crate) struct CountedWakes(AtomicUsize);

impl Wake for CountedWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountedWakes {
    /// Returns a waker and its count.
    pub(crate) fn waker() -> (Waker, Arc<Self>) {
        let wakes = Arc::new(Self::default());
        (Waker::from(Arc::clone(&wakes)), wakes)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
