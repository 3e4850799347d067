//! A request's place in the queue of its model. Dropping it frees it: a client that leaves takes
//! its request along.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_clock::now;
use penstock_core::admission::queue::{Charge, Cost, EntryId, Passed, QueueEnd, Turn};
use penstock_core::fleet::Topology;

use crate::proxy::queue::shared::SharedQueue;

pub(super) struct QueuePlace {
    queue: Arc<SharedQueue>,
    id: EntryId,
    /// The end that a drop counts as.
    end: QueueEnd,
    has_left: bool,
}

impl QueuePlace {
    pub(super) fn new(queue: Arc<SharedQueue>, id: EntryId) -> Self {
        Self { queue, id, end: QueueEnd::ClientLeft, has_left: false }
    }

    /// Returns ready once it is the request's turn, or another one took its place.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Turn> {
        self.queue.poll(self.id, cx)
    }

    /// Waits on after a turn without room. `passed` names the awaited backends, which are of
    /// `fleet`.
    pub(super) fn pass(&self, passed: Passed, fleet: &Topology) {
        self.queue.pass(self.id, passed, fleet, now());
    }

    /// The expected wait of a newcomer.
    pub(super) fn time_to_empty(&self) -> Option<Duration> {
        self.queue.time_to_empty(now())
    }

    /// Counts a client that got the head of a stream.
    pub(super) fn count_kept_alive(&self) {
        self.queue.count_kept_alive();
    }

    /// Leaves for a backend, at the expected `cost`.
    pub(super) fn serve(mut self, cost: Cost) -> Option<Charge> {
        self.has_left = true;
        self.queue.serve(self.id, cost, now())
    }

    /// Leaves the queue with `end`.
    pub(super) fn leave(mut self, end: QueueEnd) {
        self.end = end;
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if !self.has_left {
            self.queue.leave(self.id, self.end, now());
        }
    }
}
