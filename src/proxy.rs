//! The data plane: the state that all its requests share, and the order in which a request passes
//! its files.
//!
//! Life of a request: `phases` receives it from Pingora once `downstream` has a whole, checked
//! head. `request_head` identifies it and rejects what the head alone decides (401, 404, 405, 413,
//! 415); `local_response` serves what needs no backend, `direct` what is for one backend rather
//! than a model, `broadcast` what is for all Ollama backends. `request_body` reads and scans the
//! body. `rate_limits` refuses a request that exceeds the client's limits. `ensemble` makes the
//! calls that an ensemble's final request is made of; that one goes on as any other. `retry` runs
//! the attempts: `queue` makes it wait while all backends are full, `decision` picks a backend and
//! takes its in-flight permit, `forward` makes the attempt. In it, `conversion` converts the
//! request if the backend does not serve its API, `exchange` connects, sends and reads the
//! response's head, `response` relays it, and `outcome` reports to the backend's health, circuit
//! breaker and latency. `context_shift` shortens a conversation that no backend has room for. A
//! request that fails ends in `own_response`, with its status from `failure`. `observers` reports
//! all of it.

mod allowed_models;
mod attempt;
mod auth;
mod broadcast;
mod context;
mod context_shift;
mod conversion;
mod decision;
mod direct;
mod disposition;
mod ensemble;
mod exchange;
mod failure;
mod flow;
mod forward;
mod kept_alive;
mod local_response;
mod long_work;
mod moves;
mod named_resource;
mod observers;
mod outcome;
mod own_response;
mod passed_homes;
mod path_model;
mod phases;
mod queue;
mod rate_hold;
mod rate_limits;
mod replay;
mod request_body;
mod request_head;
mod reserved;
mod residency;
mod response;
mod retry;
mod seeds;
mod shift_plan;
mod shift_state;
mod similar_model;
mod stream_error;
mod target;
mod token_count;
mod twins;
mod unknown_path;
mod unsupported;

pub use context::RequestContext;
pub use ensemble::EnsembleFigures;
pub use local_response::usage::{EventSource, UsageApi, UsageRefusal, UsageResponse};
pub use phases::DataPlane;
pub use queue::{QueueFigures, Queues};
pub use shift_plan::explain_with_shift;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use once_cell::sync::OnceCell;

use crate::downstream::body::{BodyBudget, BodyClaim};
use crate::downstream::clients::Clients;
use crate::downstream::encoded_body::EncodedBodies;
use crate::shared_state::SharedState;
use crate::upstream::pool::ConnectionPool;
use broadcast::Broadcasts;
pub use direct::passed_ids::{LaterIds, RememberedIds};
use direct::response_ids::ResponseIds;
use ensemble::Ensembles;
use observers::Observers;
pub use passed_homes::RememberedHomes;
use penstock_clock::{now, unix_seconds};
use penstock_config::Config;
use penstock_config::tls::{Look, TlsError};
use penstock_core::admission::rate_limits::RateLimiter;
use penstock_core::admission::returns::ReturnTimes;
use penstock_core::fleet::BackendId;
use penstock_core::routing::{Generation, Lease, RequestObserver, RetryCredit, SessionHomes};
use seeds::Seeds;

/// The balancer's data plane, shared by all its connections.
pub struct Proxy {
    generation: ArcSwap<Generation>,
    started_with: Config,
    clients: Arc<Clients>,
    bodies: Arc<BodyBudget>,
    /// The memory for responses that are held rather than relayed.
    responses: Arc<BodyBudget>,
    encoded: EncodedBodies,
    pool: ConnectionPool,
    broadcasts: Broadcasts,
    ensembles: Ensembles,
    rates: RateLimiter,
    queues: Queues,
    /// Shares limits with other replicas, if `shared_state` is set.
    shared: OnceCell<Arc<SharedState>>,
    retries: RetryCredit,
    /// The times at which refused requests are to return.
    returns: ReturnTimes,
    observers: Observers,
    captures: Lease,
    response_ids: ResponseIds,
    homes: SessionHomes,
    seeds: Seeds,
    stopping: Arc<AtomicBool>,
    /// Serves live usage, if `server.compat` enables it.
    usage: OnceCell<Box<dyn UsageApi>>,
    /// The start in seconds since 1970: the `created` time of every model, since no engine reports
    /// it.
    started_at: u64,
}

impl Proxy {
    /// A data plane for a configuration. `seed` starts everything random in it.
    ///
    /// # Errors
    /// [`TlsError`] when a listener's certificate cannot be used.
    pub fn new(
        generation: Arc<Generation>,
        observers: Vec<Box<dyn RequestObserver>>,
        seed: u64,
    ) -> Result<Self, TlsError> {
        let config = &generation.config;
        Ok(Self {
            clients: Arc::new(Clients::new(&config.server.listen)?),
            bodies: Arc::default(),
            responses: Arc::default(),
            encoded: EncodedBodies::default(),
            pool: ConnectionPool::new(&config.limits),
            broadcasts: Broadcasts::default(),
            ensembles: Ensembles::default(),
            rates: RateLimiter::new(config),
            queues: Queues::default(),
            shared: OnceCell::new(),
            retries: RetryCredit::new(&config.routing.retry_budget),
            returns: ReturnTimes::default(),
            observers: Observers::new(observers),
            captures: Lease::default(),
            response_ids: ResponseIds::default(),
            homes: SessionHomes::default(),
            seeds: Seeds::new(seed),
            stopping: Arc::default(),
            usage: OnceCell::new(),
            started_at: unix_seconds(),
            started_with: config.clone(),
            generation: ArcSwap::new(generation),
        })
    }

    /// Serves live usage from now on; the first call counts.
    pub fn set_usage_api(&self, usage: Box<dyn UsageApi>) {
        let is_first = self.usage.set(usage).is_ok();
        debug_assert!(is_first, "a process has one of it");
    }

    /// Shares limits from now on; the first call counts.
    pub fn set_shared_state(&self, shared: Arc<SharedState>) {
        let is_first = self.shared.set(shared).is_ok();
        debug_assert!(is_first, "a process has one of it");
    }

    /// The state shared with other replicas, if there is any.
    pub fn shared_state(&self) -> Option<&SharedState> {
        self.shared.get().map(|shared| &**shared)
    }

    /// The configuration in force.
    pub fn generation(&self) -> Arc<Generation> {
        self.generation.load_full()
    }

    /// Uses this configuration for new requests; those in flight keep theirs.
    pub fn adopt(&self, generation: Arc<Generation>) {
        self.pool.set_limits(&generation.config.limits);
        self.rates.adopt(&generation.config);
        self.generation.store(generation);
        self.queues.signal();
    }

    /// The configuration that this process started with: addresses, threads and other things no
    /// reload changes.
    pub fn config(&self) -> &Config {
        &self.started_with
    }

    /// Sends `Connection: close` with every response from now on. Pingora closes the listeners.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Returns whether the process is shutting down.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The flag of [`Self::is_stopping`], shared.
    pub fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }

    /// The time during which decisions are captured.
    pub fn captures(&self) -> &Lease {
        &self.captures
    }

    /// The number of requests in flight, local responses included.
    pub fn in_flight(&self) -> usize {
        self.clients.in_flight()
    }

    /// Client connections and their listeners.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The number of ids of stored responses whose backend is known.
    pub fn response_ids(&self) -> usize {
        self.response_ids.len()
    }

    /// The number of ids of stored responses that were evicted.
    pub fn evicted_response_ids(&self) -> u64 {
        self.response_ids.evicted()
    }

    /// The backends at which sessions are at home.
    pub fn session_homes(&self) -> &SessionHomes {
        &self.homes
    }

    /// The counts of ensembles.
    pub fn ensembles(&self) -> &EnsembleFigures {
        &self.ensembles.figures
    }

    /// The clients' use of their limits.
    pub fn rates(&self) -> &RateLimiter {
        &self.rates
    }

    /// The queues of requests that wait for a backend.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The number of commands and uploads of Ollama clients in flight.
    pub fn commands(&self) -> usize {
        self.broadcasts.in_flight()
    }

    /// The number of bytes of request bodies held now.
    pub fn held_bytes(&self) -> usize {
        self.bodies.held()
    }

    /// The number of bytes of responses held now.
    pub fn held_response_bytes(&self) -> usize {
        self.responses.held()
    }

    /// A claim on the memory for responses, for one that is about to be read whole.
    fn claim_response(&self) -> BodyClaim {
        let limit = self.generation.load().config.limits.buffered_responses;
        BodyClaim::empty(&self.responses, limit.to_usize())
    }

    /// Encoded bodies by coding and result.
    pub fn encoded_bodies(&self) -> &EncodedBodies {
        &self.encoded
    }

    /// The number of idle connections kept to a backend.
    pub fn idle_connections(&self, id: BackendId) -> usize {
        self.pool.idle_count(id)
    }

    /// Closes idle connections that timed out or whose backend is gone, and reloads certificates
    /// whose files have changed. To be called about once a second.
    pub fn sweep(&self) {
        let generation = self.generation.load();
        generation.fleet.refresh_predictions(now());
        // Cooldowns and circuit breakers change by time alone.
        self.queues.signal();
        let fleet = generation.fleet.topology();
        self.pool.sweep(&fleet.backends);
        self.clients.refresh_certificates(Look::Regular);
    }
}
