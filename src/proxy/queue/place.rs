//! A request's place in the queue of its model. Dropped, it is free: a client that leaves takes its request along.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::shared::SharedQueue;
use crate::admission::queue::{Charge, Cost, EntryId, Passed, QueueEnd, Turn};
use crate::clock::now;
use crate::fleet::Topology;

/// A request's place in a queue.
pub(super) struct Place {
    queue: Arc<SharedQueue>,
    id: EntryId,
    /// What its drop counts as.
    end: QueueEnd,
    has_left: bool,
}

impl Place {
    pub(super) fn new(queue: Arc<SharedQueue>, id: EntryId) -> Self {
        Self { queue, id, end: QueueEnd::ClientLeft, has_left: false }
    }

    /// Ready once the request is to do something.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Turn> {
        self.queue.poll(self.id, cx)
    }

    /// It found no room with its turn, as `passed` says, whose backends are of `fleet`. It waits on.
    pub(super) fn pass(&self, passed: Passed, fleet: &Topology) {
        self.queue.pass(self.id, passed, fleet, now());
    }

    /// How long a newcomer would wait.
    pub(super) fn time_to_empty(&self) -> Option<Duration> {
        self.queue.time_to_empty(now())
    }

    /// Its client got the head of a stream.
    pub(super) fn count_kept_alive(&self) {
        self.queue.count_kept_alive();
    }

    /// It goes to a backend, where it is expected to cost so much.
    pub(super) fn serve(mut self, cost: Cost) -> Option<Charge> {
        self.has_left = true;
        self.queue.serve(self.id, cost, now())
    }

    /// It no longer waits.
    pub(super) fn leave(mut self, end: QueueEnd) {
        self.end = end;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.has_left {
            self.queue.leave(self.id, self.end, now());
        }
    }
}
