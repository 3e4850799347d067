//! The queues of requests that wait for a backend with room, one per model. `penstock_core` has
//! the order and the turns (`admission::queue`); this is its edge: the clock, the locks, and the
//! tasks that wait (`wait`).

mod keep_alive;
mod shared;
mod wait;

pub(crate) use crate::proxy::queue::wait::{
    AdmissionFailure, decide_after_cooldown, decide_from_queue, has_others_waiting, has_queue,
    keep_to_cooling, may_wait_after,
};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::HashMap;
use parking_lot::RwLock;
use penstock_clock::now;
use penstock_core::admission::queue::{Charge, Cost, QueueEnd};
use penstock_scan::Usage;

use crate::proxy::Proxy;
use crate::proxy::flow::{ModelCharge, RequestContext};
use crate::proxy::queue::shared::SharedQueue;

/// The maximum number of queues that are remembered for their figures. Queues in which requests
/// wait come on top.
const MAX_QUEUES: usize = 1024;

/// The queues of all models.
pub struct Queues {
    by_model: RwLock<HashMap<Arc<str>, Arc<SharedQueue>>>,
    /// The number of requests that wait, in all queues.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug, Clone)]
pub struct QueueFigures {
    pub model: Arc<str>,
    /// The number of requests that wait.
    pub waiting: usize,
    /// The number of requests that no longer wait, in the order of [`QueueEnd::ALL`].
    pub ended: [u64; QueueEnd::ALL.len()],
    /// The number of streams whose clients got bytes while they waited (`queue.keep_alive`).
    pub kept_alive: u64,
    /// The number of requests that waited although there was room, because that was kept for others
    /// (`queue.reserve`).
    pub held_back: u64,
}

impl Queues {
    /// No queues yet. `waiting` is kept in step with the number of requests that wait.
    pub(crate) fn new(waiting: &Arc<AtomicUsize>) -> Self {
        Self { by_model: RwLock::default(), waiting: Arc::clone(waiting) }
    }

    /// The figures of every queue that was used, by model.
    pub fn figures(&self) -> Vec<QueueFigures> {
        let queues = self.by_model.read();
        let figures = queues.iter().map(|(model, queue)| queue.figures(Arc::clone(model)));
        let mut figures: Vec<QueueFigures> = figures.collect();
        figures.sort_by(|one, other| one.model.cmp(&other.model));
        figures
    }

    /// The number of requests that wait for a model.
    pub fn waiting(&self, model: &str) -> usize {
        self.by_model.read().get(model).map_or(0, |queue| queue.waiting())
    }

    /// Signals a change that may let requests through: of the configuration, or by elapsed time.
    pub(crate) fn signal(&self) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        // The map is not locked while the queues wake their requests.
        let queues: Vec<Arc<SharedQueue>> = self.by_model.read().values().cloned().collect();
        let now = now();
        queues.iter().for_each(|queue| queue.signal(now));
    }

    /// The queue of a model, if there was one.
    fn find(&self, model: &str) -> Option<Arc<SharedQueue>> {
        self.by_model.read().get(model).cloned()
    }

    /// The queue of a model, made if there is none.
    fn of_model(&self, model: &str) -> Arc<SharedQueue> {
        if let Some(queue) = self.find(model) {
            return queue;
        }
        let mut queues = self.by_model.write();
        if queues.len() >= MAX_QUEUES {
            queues.retain(|_, queue| queue.waiting() > 0);
        }
        // Another request may have made it between the two locks.
        let queue = queues.entry(model.into());
        Arc::clone(queue.or_insert_with(|| Arc::new(SharedQueue::new(&self.waiting))))
    }
}

/// Records that the owner of a request was charged for it in the queue of `model`.
fn charge_owner(proxy: &Proxy, ctx: &mut RequestContext, model: Box<str>, charge: Option<Charge>) {
    let charge = charge.map(|charge| Box::new(ModelCharge::new(model, charge)));
    // No engine has started on a request that waits again: its earlier charge is settled at no
    // cost.
    if let Some(before) = std::mem::replace(&mut ctx.charge, charge) {
        proxy.queues.of_model(&before.model).settle(&before.charge, Cost::default());
    }
}

/// Charges the owner of a request for the output of its response, as far as that is known. Only the
/// first call counts. `usage`, `token_events`: those of the response.
pub(crate) fn settle_charge(
    proxy: &Proxy,
    ctx: &RequestContext,
    usage: Option<Usage>,
    token_events: u32,
) {
    let Some(charged) = &ctx.charge else { return };
    if !charged.mark_settled() {
        return;
    }
    let counted = usage.and_then(|usage| usage.completion_tokens);
    // For a whole response without usage nothing better is known than the expected cost.
    if ctx.record.request.is_streaming || counted.is_some() || ctx.record.response.status >= 400 {
        let cost = Cost { output: counted.unwrap_or(token_events), ..charged.charge.cost };
        proxy.queues.of_model(&charged.model).settle(&charged.charge, cost);
    }
}
