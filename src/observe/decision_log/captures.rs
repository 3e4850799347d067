//! The latest captured decisions, with all their inputs, in bounded memory.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use penstock_core::routing::Capture;

/// The number of captured decisions kept.
pub const MAX_CAPTURES: usize = 1024;
/// The maximum number of backend rows of all captures together: some 20 MiB.
const MAX_ROWS: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Captures(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    kept: VecDeque<Arc<Capture>>,
    rows: usize,
    total: u64,
}

impl Captures {
    /// Adds a capture; evicts the oldest ones.
    pub(super) fn push(&self, capture: Capture) {
        let mut ring = self.0.lock();
        ring.rows += capture.rows();
        ring.total += 1;
        ring.kept.push_back(Arc::new(capture));
        // One capture always stays, however many rows it has.
        while ring.kept.len() > MAX_CAPTURES || (ring.rows > MAX_ROWS && ring.kept.len() > 1) {
            let Some(oldest) = ring.kept.pop_front() else { break };
            ring.rows -= oldest.rows();
        }
    }

    /// Returns the number of captures since the last clear, and the latest `count` of them, newest
    /// first.
    pub(super) fn latest(&self, count: usize) -> (u64, Vec<Arc<Capture>>) {
        let ring = self.0.lock();
        (ring.total, ring.kept.iter().rev().take(count).cloned().collect())
    }

    pub(super) fn clear(&self) {
        // Not cleared in place: that would keep the memory of the largest capture so far.
        *self.0.lock() = Ring::default();
    }
}
