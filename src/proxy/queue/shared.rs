//! The queue of a model, shared by the requests that wait in it and by the backends that wake them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_core::admission::queue::{
    Charge, Cost, EntryId, ModelQueue, Newcomer, Passed, QueueEnd, QueueFull, QueueRules, Turn,
};
use penstock_core::fleet::{BackendSet, SharedBackend, Topology};

use crate::proxy::queue::QueueFigures;

/// The queue of a model.
pub(super) struct SharedQueue {
    state: Mutex<State>,
    /// The number of requests that wait, in the queues of all models.
    waiting: Arc<AtomicUsize>,
    kept_alive: AtomicU64,
}

#[derive(Default)]
struct State {
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

    pub(super) fn count_kept_alive(&self) {
        self.kept_alive.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }

    pub(super) fn signal(&self, now: Timestamp) {
        self.state.lock().queue.signal(now);
    }

    pub(super) fn time_to_empty(&self, now: Timestamp) -> Option<Duration> {
        self.state.lock().queue.time_to_empty(now)
    }

    /// Adds a request, which waits for backends of `fleet`.
    pub(super) fn join(
        self: &Arc<Self>,
        newcomer: &Newcomer,
        rules: QueueRules,
        fleet: &Topology,
        now: Timestamp,
    ) -> Result<EntryId, QueueFull> {
        let mut state = self.state.lock();
        // Before the request looks for room: capacity that is freed from now on wakes it.
        self.watch(&mut state, newcomer.backends, fleet);
        let joined = self.counting(&mut state, |queue| queue.join(newcomer, rules, now));
        self.unwatch_if_empty(&mut state);
        joined.map(|joined| joined.id)
    }

    pub(super) fn poll(&self, id: EntryId, cx: &Context<'_>) -> Poll<Turn> {
        self.state.lock().queue.poll(id, cx)
    }

    pub(super) fn pass(
        self: &Arc<Self>,
        id: EntryId,
        passed: Passed,
        fleet: &Topology,
        now: Timestamp,
    ) {
        let mut state = self.state.lock();
        self.watch(&mut state, passed.backends, fleet);
        state.queue.pass(id, passed, now);
    }

    pub(super) fn serve(
        self: &Arc<Self>,
        id: EntryId,
        cost: Cost,
        now: Timestamp,
    ) -> Option<Charge> {
        let mut state = self.state.lock();
        let charge = self.counting(&mut state, |queue| queue.serve(id, cost, now));
        self.unwatch_if_empty(&mut state);
        charge
    }

    pub(super) fn settle(&self, charge: &Charge, cost: Cost) {
        self.state.lock().queue.settle(charge, cost);
    }

    pub(super) fn leave(self: &Arc<Self>, id: EntryId, end: QueueEnd, now: Timestamp) {
        let mut state = self.state.lock();
        self.counting(&mut state, |queue| queue.leave(id, end, now));
        self.unwatch_if_empty(&mut state);
    }

    /// Keeps the count of all queues in step with a change of this one.
    fn counting<T>(&self, state: &mut State, change: impl FnOnce(&mut ModelQueue) -> T) -> T {
        let before = state.queue.len();
        let changed = change(&mut state.queue);
        let after = state.queue.len();
        if after >= before {
            self.waiting.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.waiting.fetch_sub(before - after, Ordering::Relaxed);
        }
        changed
    }

    fn watch(self: &Arc<Self>, state: &mut State, backends: BackendSet, fleet: &Topology) {
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

    fn unwatch_if_empty(self: &Arc<Self>, state: &mut State) {
        // A backend's permits then wake no queue in which none waits.
        if state.queue.is_empty() && !state.watched.is_empty() {
            let waker = Waker::from(Arc::clone(self));
            state.watched_ids = BackendSet::default();
            state.watched.drain(..).for_each(|backend| backend.capacity.unwatch(&waker));
        }
    }
}
