//! The queue of a model, shared by the requests that wait in it and by the backends that wake them;
//! and the place of one request in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_core::admission::queue::{
    Charge, Cost, EntryId, ModelQueue, Newcomer, PassedTurn, QueueEnd, QueueFull, QueueRules, Turn,
};
use penstock_core::fleet::{BackendSet, SharedBackend, Topology};

use crate::proxy::queue::QueueFigures;

/// The queue of a model.
pub(super) struct SharedQueue {
    state: Mutex<QueueState>,
    /// The number of requests that wait, in the queues of all models.
    waiting: Arc<AtomicUsize>,
    kept_alive: AtomicU64,
}

#[derive(Default)]
struct QueueState {
    queue: ModelQueue,
    /// The backends whose capacity the queue watches; none while it is empty.
    watched: Vec<SharedBackend>,
    watched_ids: BackendSet,
}

// Called when a backend has capacity again.
impl Wake for SharedQueue {
    fn wake(self: Arc<Self>) {
        self.signal(now());
    }
}

impl SharedQueue {
    pub(super) fn new(waiting: &Arc<AtomicUsize>) -> Self {
        let waiting = Arc::clone(waiting);
        Self { state: Mutex::default(), waiting, kept_alive: AtomicU64::new(0) }
    }

    pub(super) fn figures(&self, model: Arc<str>) -> QueueFigures {
        let state = self.state.lock();
        let kept_alive = self.kept_alive.load(Ordering::Relaxed);
        let (waiting, ended) = (state.queue.len(), state.queue.ended());
        QueueFigures { model, waiting, ended, kept_alive, held_back: state.queue.held_back() }
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }

    pub(super) fn signal(&self, now: Timestamp) {
        self.state.lock().queue.signal(now);
    }

    /// Adds a request, which waits for backends of `fleet`.
    pub(super) fn join(
        self: &Arc<Self>,
        newcomer: &Newcomer,
        rules: QueueRules,
        fleet: &Topology,
        now: Timestamp,
    ) -> Result<QueuePlace, QueueFull> {
        let mut state = self.state.lock();
        // Before the request looks for room: capacity that is freed from now on wakes it.
        self.watch(&mut state, newcomer.backends, fleet);
        let joined = self.change(&mut state, |queue| queue.join(newcomer, rules, now))?;
        let (queue, end) = (Arc::clone(self), Some(QueueEnd::ClientLeft));
        Ok(QueuePlace { queue, id: joined.id, end })
    }

    pub(super) fn settle(&self, charge: &Charge, cost: Cost) {
        self.state.lock().queue.settle(charge, cost);
    }

    /// Changes the queue, and keeps the count of all queues and the watched backends in step.
    fn change<T>(
        self: &Arc<Self>,
        state: &mut QueueState,
        change: impl FnOnce(&mut ModelQueue) -> T,
    ) -> T {
        let before = state.queue.len();
        let changed = change(&mut state.queue);
        let after = state.queue.len();
        if after >= before {
            self.waiting.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.waiting.fetch_sub(before - after, Ordering::Relaxed);
        }
        // A backend's permits then wake no queue in which none waits.
        if after == 0 && !state.watched.is_empty() {
            let waker = Waker::from(Arc::clone(self));
            state.watched_ids = BackendSet::default();
            state.watched.drain(..).for_each(|backend| backend.capacity.unwatch(&waker));
        }
        changed
    }

    fn watch(self: &Arc<Self>, state: &mut QueueState, backends: BackendSet, fleet: &Topology) {
        let mut waker = None;
        for backend in fleet.backends.iter().filter(|one| backends.contains(one.state.id)) {
            // No other backend has the id of a watched one.
            if state.watched_ids.contains(backend.state.id) {
                continue;
            }
            state.watched_ids.insert(backend.state.id);
            let waker = waker.get_or_insert_with(|| Waker::from(Arc::clone(self)));
            backend.state.capacity.watch(waker);
            state.watched.push(Arc::clone(&backend.state));
        }
    }
}

/// A request's place in the queue of its model. Dropping it frees it: a client that leaves takes
/// its request along.
pub(super) struct QueuePlace {
    queue: Arc<SharedQueue>,
    id: EntryId,
    /// The end that a drop counts as; `None` once it has left.
    end: Option<QueueEnd>,
}

impl QueuePlace {
    /// Returns ready once it is the request's turn, or another one took its place.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Turn> {
        self.queue.state.lock().queue.poll(self.id, cx)
    }

    /// Waits on after a turn without room. `passed` names the awaited backends, which are of
    /// `fleet`.
    pub(super) fn pass(&self, passed: PassedTurn, fleet: &Topology) {
        let now = now();
        let mut state = self.queue.state.lock();
        self.queue.watch(&mut state, passed.backends, fleet);
        state.queue.pass(self.id, passed, now);
    }

    /// Counts a client that got the head of a stream.
    pub(super) fn count_kept_alive(&self) {
        self.queue.kept_alive.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves for a backend, at the expected `cost`.
    pub(super) fn serve(mut self, cost: Cost) -> Option<Charge> {
        self.end = None;
        let now = now();
        let mut state = self.queue.state.lock();
        self.queue.change(&mut state, |queue| queue.serve(self.id, cost, now))
    }

    /// Leaves the queue with `end`.
    pub(super) fn leave(mut self, end: QueueEnd) {
        self.end = Some(end);
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let Some(end) = self.end else { return };
        let now = now();
        self.queue.change(&mut self.queue.state.lock(), |queue| queue.leave(self.id, end, now));
    }
}
