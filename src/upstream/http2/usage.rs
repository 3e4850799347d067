//! The use of a shared HTTP/2 connection: open streams, the end of the last one, and whether it is
//! closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_clock::now;

/// The use of one connection, shared by its streams and its driver task.
#[derive(Debug)]
pub(crate) struct ConnectionUsage {
    streams: AtomicUsize,
    is_closed: AtomicBool,
    last: Mutex<Timestamp>,
}

impl ConnectionUsage {
    pub(super) fn new() -> Self {
        Self {
            streams: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            last: Mutex::new(now()),
        }
    }

    /// Returns a permit for one more stream, unless `limit` are open.
    pub(super) fn try_open(self: &Arc<Self>, limit: usize) -> Option<StreamPermit> {
        let opened = self.streams.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |open| {
            (open < limit).then_some(open + 1)
        });
        opened.is_ok().then(|| StreamPermit(Arc::clone(self)))
    }

    /// Records that no stream can be opened on the connection any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Returns whether the connection is closed, or has been idle for `idle_timeout`.
    pub(super) fn is_over(&self, idle_timeout: Duration) -> bool {
        self.is_closed.load(Ordering::Acquire)
            || (self.streams.load(Ordering::Acquire) == 0
                && now().since(*self.last.lock()) >= idle_timeout)
    }
}

/// One open stream, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit(Arc<ConnectionUsage>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        // Stored before the count drops: otherwise a sweep could see no stream beside an old time,
        // and close a connection that was in use until now.
        *self.0.last.lock() = now();
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}
