//! Shadow routing (`routing.shadow`): another strategy decides about live requests, and its
//! decisions are only compared. A live decision puts its trace into a bounded queue; a separate
//! thread scores the recorded readings with the shadow's profile, off the hot path.
//!
//! The shadow decides by the readings of the live decision, so both see the same fleet at the same
//! moment. It cannot know how its own decisions would have changed the load. Only prefix indexes
//! and turns are the shadow's: one set for the actual destinations, one for the destinations it
//! would have chosen.

mod counts;
mod sides;
mod worker;

pub use counts::{ShadowCounts, ShadowReport};

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use penstock_api::units::{ByteSize, Timestamp};
use penstock_config::{RoutingConfig, ShadowConfig};
use penstock_scan::RequestProfile;

use super::trace::Trace;
use crate::fleet::{ModelId, Topology};
use crate::prefix::MemoryBudget;
use crate::routing::{Router, SessionField, Weighted};
use counts::{Counters, ShadowSetting};
use worker::Worker;

/// A live decision for the shadow to compare with.
#[derive(Debug, Clone)]
pub struct ObservedDecision {
    /// The time of the decision.
    pub at: Timestamp,
    pub request: RequestProfile,
    pub body: Bytes,
    /// A hash of the session it names, by [`Shadow::session_field`].
    pub session: Option<u64>,
    /// The fleet it was made over.
    pub topology: Arc<Topology>,
    /// The model that it was sent for.
    pub model: ModelId,
    /// The row of that model that it was sent to.
    pub row: u32,
    /// True if all backends were in cooldown, so that no strategy decided.
    pub is_next_probe: bool,
    pub trace: Trace,
}

/// Runs a job on a new thread with this name.
pub type SpawnThread = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// The clock and threads that the shadow uses.
#[derive(Debug, Clone, Copy)]
pub struct ShadowHost {
    pub now: fn() -> Timestamp,
    pub spawn: SpawnThread,
}

impl ShadowHost {
    /// A host without threads, which compares nothing.
    pub const IDLE: Self = Self { now: || Timestamp(0), spawn: |_, _| Ok(()) };
}

/// The limits of the queue; decisions beyond them are dropped and counted.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// The number of requests.
    queue: usize,
    bodies: ByteSize,
}

impl Default for Bounds {
    fn default() -> Self {
        // Both bound memory: a few requests with large bodies count as much as many small ones.
        Self { queue: 1024, bodies: ByteSize::mib(64) }
    }
}

#[derive(Debug)]
struct QueuedDecision {
    decision: ObservedDecision,
    _claim: Claim,
}

/// The bytes of a body in the queue, released when it leaves.
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

/// A shadow strategy. Its thread ends when the last holder drops it.
#[derive(Debug)]
pub struct Shadow {
    sender: SyncSender<QueuedDecision>,
    counters: Arc<Counters>,
    bodies: Arc<AtomicUsize>,
    max_bodies: usize,
    session: Option<SessionField>,
    pools: [Arc<MemoryBudget>; 2],
    setting: ShadowSetting,
}

impl Shadow {
    /// Starts the configured shadow; `None` if none is configured.
    ///
    /// # Errors
    /// When the host cannot start a thread.
    pub fn start(routing: &RoutingConfig, host: ShadowHost) -> io::Result<Option<Self>> {
        let Some(config) = &routing.shadow else { return Ok(None) };
        let (shadow, worker, receiver) =
            Self::new(routing, config, Bounds::default(), (host.now)());
        (host.spawn)("penstock shadow", Box::new(move || worker.run(&receiver, host.now)))?;
        tracing::info!(strategy = config.strategy.name(), "shadow strategy started");
        Ok(Some(shadow))
    }

    fn new(
        routing: &RoutingConfig,
        config: &ShadowConfig,
        bounds: Bounds,
        now: Timestamp,
    ) -> (Self, Worker, Receiver<QueuedDecision>) {
        let (sender, receiver) = sync_channel(bounds.queue);
        let counters = Arc::<Counters>::default();
        let router = Router::new(&routing.tried_out(config));
        let session = router.weighted().and_then(Weighted::session_field).cloned();
        // Half each, so that neither side evicts blocks of the other.
        let pools = [(); 2].map(|()| Arc::<MemoryBudget>::default());
        pools.iter().for_each(|memory| memory.set_limit(config.prefix_memory.to_usize() / 2));
        let shadow = Self {
            sender,
            counters: Arc::clone(&counters),
            bodies: Arc::default(),
            max_bodies: bounds.bodies.to_usize(),
            session,
            pools: pools.clone(),
            setting: ShadowSetting {
                started_at: now,
                sample: config.sample,
                sides: sides_of(routing),
            },
        };
        let live = Router::new(routing);
        let worker = Worker::new(router, &live, config.sample, pools, counters);
        (shadow, worker, receiver)
    }

    /// Returns the field that names sessions, if the shadow's strategy reads them.
    pub fn session_field(&self) -> Option<&SessionField> {
        self.session.as_ref()
    }

    /// Queues a decision, or drops and counts it if the queue is full. Never waits.
    pub(in crate::routing) fn observe(&self, decision: ObservedDecision) {
        let claim = Claim::take(&self.bodies, decision.body.len(), self.max_bodies);
        // Dropped and counted where there is no room: a live request never waits for the shadow.
        let is_queued = claim.is_some_and(|claim| {
            let queued = QueuedDecision { decision, _claim: claim };
            self.sender.try_send(queued).is_ok()
        });
        if !is_queued {
            self.counters.count_dropped();
        }
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> ShadowCounts {
        let budgets = || self.pools.iter();
        let used = budgets().map(|budget| budget.used()).sum();
        self.counters.read(used, budgets().map(|budget| budget.limit()).sum())
    }

    /// Returns the counts for people, at `now`.
    pub fn report(&self, now: Timestamp) -> ShadowReport {
        ShadowReport::of(self.counts(), &self.setting, now)
    }
}

/// Returns the names of both strategies, the live one first.
fn sides_of(routing: &RoutingConfig) -> [&'static str; 2] {
    let shadow = routing.shadow.as_ref().map_or(routing.strategy, |shadow| shadow.strategy);
    [routing.strategy.name(), shadow.name()]
}

#[cfg(test)]
mod tests;
