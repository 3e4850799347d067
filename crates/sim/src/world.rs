//! A fleet in virtual time: clients send a workload, balancers decide with the proxy's code,
//! engines compute.
//!
//! **What is real:** configuration, names, filters, strategies, scorers, the prefix index, load,
//! cooldowns, circuit breakers, health verdicts, slow start, the retry rule, queues, budgets.
//! **What is simulated:** engines, the network, the schedule of scrapes and health checks, and
//! clients.
//!
//! **Why it is fast.** Only arrivals, first tokens, ends, checks and faults are events. A scrape is
//! not an event: its result is computed when a decision reads it ([`scrapes`]).
//!
//! **Order.** Events of the same microsecond are handled by class, then in the order in which they
//! were planned. The classes are faults, arrivals, periodic tasks of balancers, engines, and ends
//! of waits. No map is iterated, no clock is read.

mod attempts;
mod balancer;
mod budgets;
mod checks;
mod delivery;
mod engines;
mod events;
mod faults;
mod invariants;
mod lookahead;
mod oracle;
mod predictions;
mod probes;
mod result;
mod scrapes;
mod sharing;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::BTreeSet;
use std::time::Duration;

use ahash::HashMap;
use penstock_api::units::{Timestamp, to_micros};
use penstock_config::Config;
use penstock_core::admission::queue::EntryId;
use penstock_core::fleet::LoadReport;
use penstock_scoring::Objectives;

use crate::engine::{EngineSpec, SpecError};
use crate::workload::Workload;
use attempts::LiveRequest;
use balancer::Balancer;
use budgets::SimBudgets;
use engines::Engines;
use events::{EventQueue, Sent, WorldEvent};
pub use faults::{FaultError, FaultKind, PlannedFault};
pub use oracle::Oracle;
pub use result::{
    BackendResult, BudgetResult, FailReason, RefusalVerdict, RequestResult, RunResult, ShedReason,
    Status,
};
use waiting::EntryPlace;

/// The start of every run; not 0, because zero stands for "never" in the state of a fleet.
const START: u64 = 10_000_000;

/// The delays between balancers and engines. For an engine that was learned at penstock, its
/// `front_end` replaces the delays before its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// The network time from client to engine and back.
    pub network: Duration,
    /// The time that the engine's front end takes before a request is queued.
    pub front_end: Duration,
    /// The further front-end time per token of the prompt.
    pub per_token: Duration,
    /// The age of a telemetry sample at its arrival.
    pub scrape: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            network: Duration::from_micros(600),
            front_end: Duration::from_millis(4),
            per_token: Duration::from_micros(3),
            scrape: Duration::from_millis(2),
        }
    }
}

/// A fleet and the conditions of a run.
#[derive(Debug, Clone)]
pub struct WorldSpec {
    /// The configuration of every balancer. Its backends declare their models.
    pub config: Config,
    /// The engines, in the order of the configuration's backends.
    pub engines: Vec<EngineSpec>,
    /// The number of balancers that share the clients.
    pub balancers: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The delays between balancers and engines.
    pub delays: Delays,
    /// The faults of the engines.
    pub faults: Vec<PlannedFault>,
    /// The objectives of every client.
    pub objectives: Objectives,
    /// If set, engines report how many tokens of a prompt they had cached.
    pub reports_cached: bool,
    /// The decision to examine; the run stops when its request ends.
    pub examined: Option<Examined>,
    /// The oracle that decides instead of the strategy, from the true state of the engines.
    pub oracle: Option<Oracle>,
    /// If set, every refusal is compared with what the engines could have done.
    pub judges_sheds: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examined {
    /// The request, as an index into the workload.
    pub request: u32,
    /// The backend of the first attempt, as an index, whatever the strategy decides.
    pub backend: Option<usize>,
}

/// The reason why a run cannot start.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// An engine has an invalid specification.
    #[error("engine: {0}")]
    Engine(#[from] SpecError),
    /// A fault names a backend that does not exist.
    #[error("a fault names the backend '{name}', which does not exist (backends: {known})")]
    UnknownBackend {
        /// The name of the backend.
        name: String,
        /// The names of the backends.
        known: String,
    },
    /// An invariant does not hold: the simulator has a bug.
    #[error("a bug of the simulator: {what}")]
    Invariant { what: &'static str },
    /// The numbers of engines and backends differ.
    #[error("{engines} engines for {backends} backends")]
    Engines { engines: usize, backends: usize },
}

/// A run in progress.
struct World<'a> {
    spec: &'a WorldSpec,
    workload: &'a Workload,
    balancers: Vec<Balancer>,
    engines: Engines,
    queue: EventQueue,
    live: Vec<Option<Box<LiveRequest>>>,
    results: Vec<RequestResult>,
    /// The number of unfinished predecessors of each request.
    awaited: Vec<u16>,
    /// The requests on their way to each backend.
    sent: Vec<BTreeSet<Sent>>,
    /// The places of queued requests.
    places: Vec<Option<EntryPlace>>,
    /// The requests of queue entries, by balancer and model.
    entries: HashMap<(u32, usize, EntryId), u32>,
    /// The money that requests may spend; `None` without budgets.
    budgets: Option<Box<SimBudgets>>,
    /// The number of queued requests.
    waiting: usize,
    /// The number of requests that have not ended.
    open: usize,
    /// If set, balancers predict latencies.
    predicts: bool,
    /// The last load report of each balancer; empty if balancers do not share their load.
    reports: Vec<LoadReport>,
    /// The backend that each scorer alone would have chosen for the examined request.
    picks: Vec<(String, usize)>,
    /// The number of events handled.
    #[cfg(debug_assertions)]
    events: u64,
}

/// Runs a workload to its end.
///
/// # Errors
/// [`WorldError`] when the fleet cannot be built.
pub fn simulate(spec: &WorldSpec, workload: &Workload) -> Result<RunResult, WorldError> {
    let mut world = World::new(spec, workload)?;
    let roots = workload.roots();
    let mut roots = roots.iter().copied().peekable();
    while world.open > 0 && !world.has_examined() {
        let root = roots.peek().map(|id| (world.arrival_of(*id), *id));
        if !world.step(root) {
            break;
        }
        #[cfg(debug_assertions)]
        world.verify_sometimes()?;
        if root.is_some_and(|(at, id)| world.has_started(at, id)) {
            roots.next();
        }
    }
    world.verify()?;
    Ok(world.into_result())
}

impl<'a> World<'a> {
    fn new(spec: &'a WorldSpec, workload: &'a Workload) -> Result<Self, WorldError> {
        let backends = spec.config.backends.len();
        if spec.engines.len() != backends {
            return Err(WorldError::Engines { engines: spec.engines.len(), backends });
        }
        let balancers: Vec<Balancer> = (0..spec.balancers.max(1))
            .map(|number| Balancer::new(spec, workload, number))
            .collect();
        let engines = Engines::new(&spec.engines)?;
        let mut queue = EventQueue::default();
        for (index, fault) in (0_u32..).zip(&spec.faults) {
            fault.check(&spec.config)?;
            queue.push(START + to_micros(fault.at), WorldEvent::Fault(index));
        }
        let balancers_predict = balancers.iter().any(|one| one.generation.router.predicts());
        let mut world = Self {
            spec,
            workload,
            balancers,
            engines,
            queue,
            live: workload.requests.iter().map(|_| None).collect(),
            results: workload.requests.iter().map(|_| RequestResult::default()).collect(),
            awaited: workload.requests.iter().map(|request| request.follows).collect(),
            sent: vec![BTreeSet::new(); backends],
            places: workload.requests.iter().map(|_| None).collect(),
            entries: HashMap::default(),
            budgets: SimBudgets::new(spec, workload),
            waiting: 0,
            open: workload.requests.len(),
            predicts: balancers_predict,
            reports: Vec::new(),
            picks: Vec::new(),
            #[cfg(debug_assertions)]
            events: 0,
        };
        world.start_checks();
        world.start_probes();
        world.start_predictions();
        world.start_sharing();
        Ok(world)
    }

    /// Returns whether the examined request has ended.
    fn has_examined(&self) -> bool {
        let examined = self.spec.examined.map(|examined| examined.request as usize);
        let result = examined.and_then(|id| self.results.get(id));
        result.is_some_and(|result| result.status != Status::Open)
    }

    fn arrival_of(&self, id: u32) -> u64 {
        START + self.workload.requests.get(id as usize).map_or(0, |request| request.arrives_at)
    }

    /// Returns whether request `id` arrived with the last event.
    fn has_started(&self, at: u64, id: u32) -> bool {
        self.results.get(id as usize).is_some_and(|result| result.arrived == at)
    }

    /// Handles the next event: a planned one, one of an engine, or the arrival of `root`. Returns
    /// false if there is none.
    fn step(&mut self, root: Option<(u64, u32)>) -> bool {
        let planned = self.queue.next_at();
        let engine = self.engines.next_at();
        let root_key = root.map(|(at, _)| (at, events::ARRIVAL));
        let engine_key = engine.map(|(at, _)| (at, events::ENGINE));
        let next = [planned, root_key, engine_key].into_iter().flatten().min();
        let Some((at, class)) = next else {
            return false;
        };
        match (root, engine) {
            (Some((_, id)), _) if root_key == Some((at, class)) => self.arrive(id, at),
            (_, Some((_, index))) if engine_key == Some((at, class)) => self.run_engine(index, at),
            _ => {
                if let Some(event) = self.queue.pop() {
                    self.handle(event, at);
                }
            }
        }
        if self.waiting > 0 {
            self.signal_queues(at);
        }
        true
    }

    fn handle(&mut self, event: WorldEvent, at: u64) {
        match event {
            WorldEvent::Fault(index) => self.start_fault(index, at),
            WorldEvent::FaultEnd(index) => self.end_fault(index, at),
            WorldEvent::Arrive(id) => self.arrive(id, at),
            WorldEvent::Send(sent) => self.deliver(sent, at),
            WorldEvent::Check { balancer, backend } => self.check(balancer, backend, at),
            WorldEvent::CheckOnce { balancer, backend } => self.run_check(balancer, backend, at),
            WorldEvent::Probe { balancer, backend } => self.probe(balancer, backend, at),
            WorldEvent::ProbeOnce { balancer, backend } => self.read_models(balancer, backend, at),
            WorldEvent::Refresh => self.refresh_predictions(at),
            WorldEvent::Share { balancer } => self.share_load(balancer, at),
            WorldEvent::Leave(id) => self.leave(id, at),
            WorldEvent::QueueEnd(id) => self.end_wait(id, at),
        }
    }

    fn into_result(self) -> RunResult {
        let believes_caches = self.balancers.iter().any(Balancer::reads_prompts);
        let backends = self.spec.config.backends.iter().zip(self.engines.counters());
        let backends = backends.map(|(config, (counters, blocks))| BackendResult {
            name: config.name.clone(),
            counters,
            kv_blocks: blocks,
        });
        RunResult {
            start: START,
            backends: backends.collect(),
            budgets: self.budgets.map(|budgets| budgets.into_results()).unwrap_or_default(),
            requests: self.results,
            believes_caches,
            picks: self.picks,
        }
    }
}

/// Converts a simulated time to the type that decisions read.
fn timestamp(at: u64) -> Timestamp {
    Timestamp(at)
}
