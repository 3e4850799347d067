//! A request for a health check ahead of its schedule. An attempt with a suspicious failure makes
//! it; the backend's health checks wait for it.
//!
//! Requests before the next check are merged into one. The flag is set before the waker is woken,
//! and the waker is registered before the flag is read: a request between the two is seen either
//! way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

/// A flag and its waker: a health check is due at once.
#[derive(Debug, Default)]
pub(super) struct CheckRequest {
    is_pending: AtomicBool,
    waker: AtomicWaker,
}

impl CheckRequest {
    pub(super) fn set(&self) {
        // A load before the swap: under a burst of failures the cache line stays shared.
        if !self.is_pending.load(Ordering::Relaxed) && !self.is_pending.swap(true, Ordering::AcqRel)
        {
            self.waker.wake();
        }
    }

    /// Returns ready once a check has been requested, and consumes the request.
    pub(super) fn poll_take(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        match self.is_pending.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::CountedWakes;

    #[test]
    fn check_requests_before_a_check_are_one_and_wake_its_task_once() {
        let (waker, wakes) = CountedWakes::waker();
        let cx = Context::from_waker(&waker);
        let request = CheckRequest::default();
        assert!(request.poll_take(&cx).is_pending());
        request.set();
        request.set();
        assert_eq!(wakes.count(), 1);
        assert!(request.poll_take(&cx).is_ready());
        assert!(request.poll_take(&cx).is_pending(), "the request is taken");
        request.set();
        assert_eq!(wakes.count(), 2, "the next request wakes again");
    }
}
