//! Service discovery in the background: health checks, model discovery, DNS, engine metrics.
//! Results go into the fleet; the hot path never waits for any of it.

mod catalogue_watch;
mod check_page;
mod check_schedule;
mod client;
mod dns;
mod engines;
mod examination;
mod health_check;
mod idle_connection;
mod listed_models;
mod loaded;
mod metrics;
mod models;
mod ollama_models;
mod openai_models;
mod queries;

pub use client::{DiscoveryClient, DiscoveryError};
pub use dns::look_up_groups;
pub use examination::{Examination, MetricsPage};
pub use idle_connection::IdleHandling;
pub use listed_models::ListedModels;
pub(crate) use metrics::samples;
pub use metrics::{EnginePage, PageReader, ScrapeBudget, Scraper};
#[doc(hidden)]
pub use metrics::{read_props, read_slots};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use penstock_clock::now;
use penstock_config::{Config, DiscoveryConfig};
use penstock_core::fleet::{Backend, Fleet, Health};
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use catalogue_watch::{CatalogueWatch, Reachable};
use check_schedule::CheckSchedule;
use health_check::HealthChecks;

/// Runs every backend's checks and discovery, in one background service.
#[derive(Clone)]
pub struct DiscoveryService(Arc<DiscoveryState>);

struct DiscoveryState {
    client: Arc<DiscoveryClient>,
    rng: Mutex<SmallRng>,
    waiting: Arc<AtomicUsize>,
    fleets: mpsc::UnboundedSender<WatchedFleet>,
    scraper: Scraper,
    /// The queue, until the service runs.
    queue: Mutex<Option<mpsc::UnboundedReceiver<WatchedFleet>>>,
}

/// The backends of one configuration.
struct WatchedFleet {
    fleet: Arc<Fleet>,
    discovery: DiscoveryConfig,
    round: FirstRound,
}

/// The first checks of the backends of a fleet that are new.
#[derive(Clone)]
struct FirstRound {
    left: Arc<AtomicUsize>,
    /// The count that readiness waits for; no later fleet makes a process unready again.
    waiting: Arc<AtomicUsize>,
    ended: Arc<Notify>,
}

impl FirstRound {
    fn end_one(&self) {
        // Release: a reader that sees 0 also sees the verdicts of these checks.
        let left = self.left.fetch_sub(1, Ordering::AcqRel).saturating_sub(1);
        self.waiting.fetch_min(left, Ordering::AcqRel);
        if left == 0 {
            self.ended.notify_one();
        }
    }
}

impl DiscoveryService {
    /// Creates a service for the backends of a fleet. `seed` starts its jitter.
    pub fn new(fleet: &Arc<Fleet>, config: &Config, seed: u64) -> Self {
        let (fleets, queue) = mpsc::unbounded_channel();
        let backends = fleet.topology().backends.len();
        let service = Self(Arc::new(DiscoveryState {
            client: Arc::default(),
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            waiting: Arc::new(AtomicUsize::new(backends)),
            fleets,
            // Another seed, so that scrapes do not repeat the jitter of the checks.
            scraper: Scraper::new(seed.wrapping_add(1)),
            queue: Mutex::new(Some(queue)),
        }));
        let _first_checks = service.watch(fleet, config);
        service
    }

    /// Returns the number of backends whose first check has neither passed nor failed yet;
    /// readiness waits for it to reach zero.
    pub fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0.waiting)
    }

    /// Returns the scraper of the same backends, run as a separate service.
    pub fn scraper(&self) -> Scraper {
        self.0.scraper.clone()
    }

    /// Watches the backends of this fleet from now on, and no others. The future completes once
    /// every new backend has been checked and its models have been queried.
    pub fn watch(
        &self,
        fleet: &Arc<Fleet>,
        config: &Config,
    ) -> impl Future<Output = ()> + Send + use<> {
        let fresh = fleet.topology().backends.iter().filter(|one| is_fresh(one)).count();
        let ended = Arc::new(Notify::new());
        let round = FirstRound {
            left: Arc::new(AtomicUsize::new(fresh)),
            waiting: Arc::clone(&self.0.waiting),
            ended: Arc::clone(&ended),
        };
        self.0.scraper.watch(fleet, config);
        let discovery = config.discovery.clone();
        let watched = WatchedFleet { fleet: Arc::clone(fleet), discovery, round };
        let is_watched = self.0.fleets.send(watched).is_ok();
        async move {
            if is_watched && fresh > 0 {
                ended.notified().await;
            }
        }
    }

    fn spawn(&self, watched: &WatchedFleet) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for backend in &watched.fleet.topology().backends {
            let watcher = Watcher {
                fleet: Arc::clone(&watched.fleet),
                discovery: watched.discovery.clone(),
                client: Arc::clone(&self.0.client),
                schedule: CheckSchedule::new(
                    backend.clone(),
                    SmallRng::from_rng(&mut *self.0.rng.lock()),
                ),
                first: is_fresh(backend).then(|| watched.round.clone()),
                backend: backend.clone(),
            };
            tasks.spawn(watcher.run());
        }
        tasks
    }
}

/// Returns whether requests must wait for the first check and discovery.
fn is_fresh(backend: &Backend) -> bool {
    backend.state.checked_at().is_none() || backend.models.is_none()
}

#[async_trait]
impl BackgroundService for DiscoveryService {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Some(mut queue) = self.0.queue.lock().take() else { return };
        // Replacing the set ends the tasks of the previous fleet.
        let mut watchers = JoinSet::new();
        loop {
            tokio::select! {
                watched = queue.recv() => match watched {
                    Some(watched) => watchers = self.spawn(&watched),
                    None => return,
                },
                changed = shutdown.changed() => {
                    if changed.is_err() || *shutdown.borrow() {
                        break;
                    }
                }
            }
        }
        tracing::debug!(watchers = watchers.len(), "health checks stopped");
    }
}

struct Watcher {
    backend: Backend,
    fleet: Arc<Fleet>,
    discovery: DiscoveryConfig,
    client: Arc<DiscoveryClient>,
    schedule: CheckSchedule,
    /// Notified after the first check of a new backend.
    first: Option<FirstRound>,
}

impl Watcher {
    async fn run(self) {
        self.backend.state.await_models(now());
        let resolver = dns::Resolver::new(&self.discovery);
        // Resolved before the first check, which fails without an address.
        let is_resolved = dns::resolve(&self.backend, &resolver).await;
        let (backend, interval) = (self.backend.clone(), self.discovery.dns_interval);
        let catalogue = CatalogueWatch::new(
            self.backend.clone(),
            Arc::clone(&self.fleet),
            self.discovery.clone(),
            Arc::clone(&self.client),
        );
        let (reachable, changes) = watch::channel(Reachable::default());
        let (first, listed) = oneshot::channel();
        // All run until the task is aborted.
        tokio::select! {
            () = dns::follow(&backend, &resolver, interval, is_resolved) => {}
            () = self.check(reachable, listed) => {}
            () = catalogue.follow(changes, first) => {}
        }
    }

    /// Runs the health checks. `listed` ends once the models of a healthy backend have been
    /// queried.
    async fn check(mut self, reachable: watch::Sender<Reachable>, listed: oneshot::Receiver<()>) {
        let (client, fleet) = (Arc::clone(&self.client), Arc::clone(&self.fleet));
        let mut checks = HealthChecks::new(&self.backend, client, fleet);
        let mut listed = Some(listed);
        if self.first.is_none() {
            self.schedule.wait_at_start().await;
        }
        loop {
            let change = checks.run().await;
            if change == Some(Health::Unhealthy) {
                // It may return as another process: nothing is known of its caches and models then.
                self.fleet.record_outage(self.backend.state.id);
                self.fleet.forget_loaded(self.backend.state.id);
            }
            self.fleet.limit_caches(self.backend.state.id);
            self.schedule.judge_progress();
            let is_up = checks.is_passing();
            reachable.send_if_modified(|it| it.update(is_up, change.is_some()));
            if let Some(round) = self.first.take() {
                if let Some(listed) = listed.take().filter(|_| is_up) {
                    // Its sender is dropped after the first query, successful or not.
                    _ = listed.await;
                }
                round.end_one();
            }
            self.schedule.wait().await;
        }
    }
}
