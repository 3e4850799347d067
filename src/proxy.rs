//! The data plane: the state that all its requests share, and the order in which a request passes
//! its files.
//!
//! Life of a request: `data_port`, above this folder, receives it from Pingora once `downstream`
//! has a whole, checked head, and responds to what needs no backend. What is for one backend rather
//! than a model (`direct`), for all Ollama backends (`ollama`), or for an ensemble (`ensemble`)
//! stands beside this folder, and makes its attempts here; a command for all backends has none.
//! Every step gets one `flow::Flow`, which reports the end of the request. `request` reads and
//! scans the body, and `admission` checks what the client may do with the model. `retry` runs the
//! attempts: `decision` picks a backend and takes its in-flight permit, `forward` makes the
//! attempt: `exchange` connects, sends and reads the response's head, which `upstream::disposition`
//! judges, `response` relays it, and `attempt` reports the outcome to the backend's health, circuit
//! breaker and latency.
//!
//! A plain request passes only those, and the fields that every response carries (`own_response`).
//! The changes that few requests need are in `rewrite`, behind a condition on the way of a plain
//! one. A client with limits passes `rate_limits`, a request waits in `queue` while all backends
//! are full, and one that fails ends in `own_response`, with its status from `failure`.

pub(crate) mod admission;
pub(crate) mod allowed_models;
pub(crate) mod attempt;
pub(crate) mod backend_call;
pub(crate) mod budgets;
pub(crate) mod conversion;
pub(crate) mod decision;
pub(crate) mod ensemble_slots;
pub(crate) mod exchange;
pub(crate) mod failure;
pub(crate) mod flow;
pub(crate) mod forward;
pub(crate) mod limit_holds;
pub(crate) mod moves;
pub(crate) mod own_response;
pub(crate) mod policies;
pub(crate) mod queue;
pub(crate) mod rate_limits;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod response_fields;
pub(crate) mod response_ids;
pub(crate) mod retry;
pub(crate) mod return_time;
pub(crate) mod rewrite;
pub(crate) mod shift_state;
pub(crate) mod similar_model;
pub(crate) mod takeover;
pub(crate) mod usage_api;

pub use ensemble_slots::EnsembleFigures;
pub use flow::RequestContext;
pub use queue::{QueueFigures, Queues};
pub use takeover::{LaterIds, RememberedHomes, RememberedIds};
pub use usage_api::{EventSource, UsageApi, UsageRefusal, UsageRequest, UsageResponse};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_clock::{now, unix_seconds};
use penstock_config::Config;
use penstock_config::tls::TlsError;
use penstock_core::admission::budgets::Budgets;
use penstock_core::admission::rate_limits::{KeyUse, LimitTime, RateLimiter};
use penstock_core::admission::returns::ReturnTimes;
use penstock_core::routing::{Generation, Lease, RequestObserver, RetryCredit, SessionHomes};

use crate::auth::{ClientKeys, restore_used};
use crate::downstream::body::{BodyBudget, BodyClaim};
use crate::downstream::clients::Clients;
use crate::downstream::encoded_body::EncodedBodies;
use crate::downstream::port_tls::Look;
use crate::key_store::KeyStore;
use crate::seeds::Seeds;
use crate::shared_state::{SharedBudgets, SharedState};
use crate::upstream::connect::Connector;
use crate::upstream::pool::ConnectionPool;
use ensemble_slots::Ensembles;
use response_ids::ResponseIds;

/// The balancer's data plane, shared by all its connections.
pub struct Proxy {
    pub(crate) generation: ArcSwap<Generation>,
    pub(crate) started_with: Config,
    pub(crate) clients: Arc<Clients>,
    pub(crate) bodies: Arc<BodyBudget>,
    /// The memory for responses that are held rather than relayed.
    pub(crate) responses: Arc<BodyBudget>,
    pub(crate) encoded: EncodedBodies,
    pub(crate) pool: ConnectionPool,
    /// Makes the requests that penstock itself sends for a client, one connection each: its close
    /// shows the engine that the client has left.
    pub(crate) calls: Arc<Connector>,
    /// The number of commands and uploads of Ollama clients in flight.
    pub(crate) commands: Arc<AtomicUsize>,
    pub(crate) ensembles: Ensembles,
    pub(crate) rates: RateLimiter,
    /// The money that requests may spend.
    pub(crate) budgets: Arc<Budgets>,
    /// The budgets shared by several penstocks, if `shared_state` is set.
    pub(crate) shared_budgets: Option<Arc<SharedBudgets>>,
    pub(crate) keys: ClientKeys,
    pub(crate) queues: Queues,
    /// The number of requests that wait in the queues: zero if no request was ever let wait.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Shares limits with other replicas, if `shared_state` is set.
    pub(crate) shared: Option<Arc<SharedState>>,
    pub(crate) retries: RetryCredit,
    /// The times at which refused requests are to return.
    pub(crate) returns: ReturnTimes,
    /// The observers of requests, in the order of their reports.
    pub(crate) observers: Vec<Arc<dyn RequestObserver>>,
    pub(crate) captures: Lease,
    pub(crate) response_ids: ResponseIds,
    pub(crate) homes: SessionHomes,
    pub(crate) seeds: Seeds,
    pub(crate) stopping: Arc<AtomicBool>,
    /// Serves live usage, if `server.compat` enables it.
    pub(crate) usage: Option<Box<dyn UsageApi>>,
    /// The start in seconds since 1970: the `created` time of every model, since no engine reports
    /// it.
    pub(crate) started_at: u64,
}

/// The parts of a data plane that its process makes.
#[derive(Default)]
pub struct ProxyParts {
    /// The observers of requests, in the order of their reports.
    pub observers: Vec<Arc<dyn RequestObserver>>,
    /// The limits and loads that are shared with other replicas, if `shared_state` is set.
    pub shared: Option<Arc<SharedState>>,
    /// The money that requests may spend; the ledger writes down what was spent.
    pub budgets: Arc<Budgets>,
    /// The budgets shared by several penstocks, if `shared_state` is set.
    pub shared_budgets: Option<Arc<SharedBudgets>>,
    /// The keys that are made at run time, if `auth.store` is set.
    pub key_store: Option<Arc<KeyStore>>,
    /// Live usage, if `server.compat` enables it.
    pub usage: Option<Box<dyn UsageApi>>,
    /// True once the process stops.
    pub stopping: Arc<AtomicBool>,
    /// The seed of decisions and hashes.
    pub seed: u64,
}

impl Proxy {
    /// A data plane for a configuration.
    ///
    /// # Errors
    /// [`TlsError`] when a listener's certificate cannot be used.
    pub fn new(generation: Arc<Generation>, parts: ProxyParts) -> Result<Self, TlsError> {
        let ProxyParts { observers, shared, budgets, shared_budgets, .. } = parts;
        let ProxyParts { key_store, usage, stopping, seed, .. } = parts;
        let config = &generation.config;
        budgets.adopt(config);
        let waiting = Arc::default();
        Ok(Self {
            clients: Arc::new(Clients::new(&config.server.listen)?),
            bodies: Arc::default(),
            responses: Arc::default(),
            encoded: EncodedBodies::default(),
            pool: ConnectionPool::new(&config.limits),
            calls: Arc::new(Connector::new(Duration::ZERO)),
            commands: Arc::default(),
            ensembles: Ensembles::default(),
            rates: RateLimiter::new(config),
            budgets,
            shared_budgets,
            keys: ClientKeys::new(config, key_store),
            queues: Queues::new(&waiting),
            waiting,
            shared,
            retries: RetryCredit::new(&config.routing.retry_budget),
            returns: ReturnTimes::default(),
            observers,
            captures: Lease::default(),
            response_ids: ResponseIds::default(),
            homes: SessionHomes::default(),
            seeds: Seeds::new(seed),
            stopping,
            usage,
            started_at: unix_seconds(),
            started_with: config.clone(),
            generation: ArcSwap::new(generation),
        })
    }

    /// The state shared with other replicas, if there is any.
    pub fn shared_state(&self) -> Option<&SharedState> {
        self.shared.as_deref()
    }

    /// The configuration in force.
    pub fn generation(&self) -> Arc<Generation> {
        self.generation.load_full()
    }

    /// Uses this configuration for new requests; those in flight keep theirs.
    pub fn adopt(&self, generation: Arc<Generation>) {
        self.pool.set_limits(&generation.config.limits);
        let stored = self.keys.stored();
        self.rates.adopt(&generation.config, stored.iter().map(|client| &*client.id));
        self.keys.adopt(&generation.config);
        self.budgets.adopt(&generation.config);
        // Last of the parts: a request that sees the new configuration finds its limits, keys and
        // budgets.
        self.generation.store(generation);
        // The new configuration may have room for requests that wait.
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

    /// The number of requests in flight, local responses included.
    pub fn in_flight(&self) -> usize {
        self.clients.in_flight()
    }

    /// The used part of the limits of clients, for the next process.
    pub fn used_limits(&self, now: LimitTime) -> Vec<KeyUse> {
        let config = &self.generation.load().config;
        let stored = self.keys.stored();
        let of_file = config.auth.limited_keys().map(|(key, limits)| (&*key.name, limits));
        let stored = stored.iter().map(|client| (&*client.id, client.limits(&config.auth)));
        self.rates.used(of_file.chain(stored), now)
    }

    /// The ids of the clients whose tokens are limited per day, by their names in the ledger.
    pub fn day_limited(&self) -> HashMap<Arc<str>, Arc<str>> {
        let generation = self.generation.load();
        let stored = self.keys.stored();
        let of_file = generation.keys.iter().map(|key| &key.client);
        let limited = of_file
            .chain(&stored)
            .filter(|client| client.limits(&generation.config.auth).tokens_per_day.is_some());
        limited.map(|client| (Arc::clone(&client.account), Arc::clone(&client.id))).collect()
    }

    /// Continues with the limits that another process has counted. Returns the number of clients.
    pub fn restore_limits(&self, used: &[KeyUse], now: LimitTime) -> usize {
        restore_used(&self.rates, &self.keys, used, now)
    }

    /// Returns whether requests wait in a queue. Costs one load, while the queues take locks.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        // Relaxed: a newcomer may overtake a request that joins at this instant, as if it came
        // before.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A claim on the memory for responses, for one that is about to be read whole.
    pub(crate) fn claim_response(&self) -> BodyClaim {
        let limit = self.generation.load().config.limits.buffered_responses;
        BodyClaim::empty(&self.responses, limit.to_usize())
    }

    /// Does what is due about once a second: refreshes the predictions of all backends, wakes the
    /// queues, closes idle connections that timed out or whose backend is gone, and reloads changed
    /// certificates.
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
