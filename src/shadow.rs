//! Another strategy, tried out on live traffic (`routing.shadow`): once a request is on its way, it is
//! asked where it would have sent it, and nothing is done about the answer. Off the hot path: a live
//! decision leaves what it saw in a bounded queue, and a thread of the shadow's own does the rest.

mod figures;
mod sides;
mod worker;

pub use figures::{ShadowFigures, ShadowReport};

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::config::{RoutingConfig, ShadowConfig};
use crate::fleet::{BackendId, ModelId, Taken, Topology};
use crate::prefix::MemoryBudget;
use crate::routing::{Router, SessionField, Weighted};
use crate::scan::RequestProfile;
use crate::units::{ByteSize, Timestamp};
use figures::{Counts, Setting};
use worker::Worker;

/// The most that waits for the shadow; what finds no room is dropped and counted.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Requests.
    queue: usize,
    /// Bytes of their bodies.
    bodies: ByteSize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { queue: 1024, bodies: ByteSize::mib(64) }
    }
}

/// What a live decision saw, and what came of it.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// When it was made.
    pub at: Timestamp,
    /// What the request needs.
    pub request: RequestProfile,
    /// Its body.
    pub body: Bytes,
    /// A hash of what names its session, as [`Shadow::session_field`] finds it.
    pub session: Option<u64>,
    /// Who served what.
    pub fleet: Arc<Topology>,
    /// The model it was sent for, and the row of that model it was sent to.
    pub place: (ModelId, u32),
    /// The backend.
    pub backend: BackendId,
    /// What it takes there.
    pub taken: Taken,
}

/// To be kept for as long as the request is in flight: until then it is no load to the shadow, as it
/// was none to the decision about it.
#[derive(Debug)]
pub struct InFlight {
    _alive: Arc<()>,
}

#[derive(Debug)]
struct Message {
    seen: Sighting,
    in_flight: Weak<()>,
    _claim: Claim,
}

/// Bytes of a body that waits.
#[derive(Debug)]
struct Claim {
    bodies: Arc<AtomicUsize>,
    bytes: usize,
}

impl Claim {
    fn take(bodies: &Arc<AtomicUsize>, bytes: usize, limit: usize) -> Option<Self> {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        let add = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = bodies.fetch_update(set, fetch, add);
        taken.ok().map(|_before| Self { bodies: Arc::clone(bodies), bytes })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.bodies.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A strategy that is tried out. Its thread ends with it.
#[derive(Debug)]
pub struct Shadow {
    sender: SyncSender<Message>,
    counts: Arc<Counts>,
    bodies: Arc<AtomicUsize>,
    max_bodies: usize,
    session: Option<SessionField>,
    pools: [Arc<MemoryBudget>; 2],
    setting: Setting,
}

impl Shadow {
    /// Starts the one a configuration asks for, at `now`; `None` where it asks for none.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(routing: &RoutingConfig, now: Timestamp) -> io::Result<Option<Self>> {
        let Some(config) = &routing.shadow else { return Ok(None) };
        let (shadow, worker, receiver) = Self::new(routing, config, Bounds::default(), now);
        let thread = std::thread::Builder::new().name("penstock shadow".to_owned());
        thread.spawn(move || worker.run(&receiver))?;
        tracing::info!(strategy = config.strategy.name(), "a strategy is tried out from now on");
        Ok(Some(shadow))
    }

    fn new(
        routing: &RoutingConfig,
        config: &ShadowConfig,
        bounds: Bounds,
        now: Timestamp,
    ) -> (Self, Worker, Receiver<Message>) {
        let (sender, receiver) = sync_channel(bounds.queue);
        let counts = Arc::<Counts>::default();
        let router = Router::new(&routing.tried_out(config));
        let session = router.weighted().and_then(Weighted::session_field).cloned();
        // Each side has its own half: neither may crowd the other out.
        let pools = [(); 2].map(|()| Arc::<MemoryBudget>::default());
        pools.iter().for_each(|memory| memory.set_limit(config.prefix_memory.to_usize() / 2));
        let shadow = Self {
            sender,
            counts: Arc::clone(&counts),
            bodies: Arc::default(),
            max_bodies: bounds.bodies.to_usize(),
            session,
            pools: pools.clone(),
            setting: Setting { begun_at: now, sample: config.sample, sides: sides_of(routing) },
        };
        let live = Router::new(routing);
        let worker = Worker::new((router, &live), config.sample, (pools, counts));
        (shadow, worker, receiver)
    }

    /// Where it looks for what names a session, where it asks for one.
    pub fn session_field(&self) -> Option<&SessionField> {
        self.session.as_ref()
    }

    /// Leaves a sighting for it, or drops and counts it when too many wait. Waits for nothing.
    pub fn show(&self, seen: Sighting) -> Option<InFlight> {
        let shown = self.put(seen);
        if shown.is_none() {
            self.counts.drop_one();
        }
        shown
    }

    fn put(&self, seen: Sighting) -> Option<InFlight> {
        let claim = Claim::take(&self.bodies, seen.body.len(), self.max_bodies)?;
        let alive = Arc::new(());
        let message = Message { seen, in_flight: Arc::downgrade(&alive), _claim: claim };
        match self.sender.try_send(message) {
            Ok(()) => Some(InFlight { _alive: alive }),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => None,
        }
    }

    /// What it has found so far.
    pub fn figures(&self) -> ShadowFigures {
        let budgets = || self.pools.iter();
        let used = budgets().map(|budget| budget.used()).sum();
        self.counts.figures((used, budgets().map(|budget| budget.limit()).sum()))
    }

    /// The same for people, at `now`.
    pub fn report(&self, now: Timestamp) -> ShadowReport {
        ShadowReport::of(self.figures(), &self.setting, now)
    }
}

/// The names of both strategies: the live one's first.
fn sides_of(routing: &RoutingConfig) -> [&'static str; 2] {
    let tried_out = routing.shadow.as_ref().map_or(routing.strategy, |shadow| shadow.strategy);
    [routing.strategy.name(), tried_out.name()]
}

#[cfg(test)]
mod tests;
