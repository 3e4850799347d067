//! Service discovery in the background: health checks, model discovery, DNS, engine metrics. Results go
//! into the fleet; the hot path never waits for any of it.

mod check_schedule;
mod client;
mod dns;
mod engines;
mod examination;
mod health_check;
mod idle_connection;
mod listed_models;
mod metrics;
mod models;

pub use client::{DiscoveryClient, DiscoveryError};
pub use examination::{Examination, MetricsPage};
pub use idle_connection::KeepAlive;
pub use listed_models::ListedModels;
pub(crate) use metrics::samples;
pub use metrics::{EnginePage, PageReader, ScrapeBudget, Scraper};
#[doc(hidden)]
pub use metrics::{read_props, read_slots};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::api::show_names;
use crate::clock::now;
use crate::config::{Config, DiscoveryConfig, ModelEntry};
use crate::fleet::{Backend, DroppedModels, Fleet, Health};
use crate::units::Timestamp;
use check_schedule::CheckSchedule;
use health_check::HealthChecks;

/// The most models in one log line.
const SHOWN_MODELS: usize = 20;

/// Runs every backend's checks and discovery, in one background service.
#[derive(Clone)]
pub struct DiscoveryService(Arc<Shared>);

struct Shared {
    client: Arc<DiscoveryClient>,
    rng: Mutex<SmallRng>,
    waiting: Arc<AtomicUsize>,
    batches: mpsc::UnboundedSender<Batch>,
    scraper: Scraper,
    /// Until the service runs.
    queue: Mutex<Option<mpsc::UnboundedReceiver<Batch>>>,
}

/// The backends of one configuration.
struct Batch {
    fleet: Arc<Fleet>,
    discovery: DiscoveryConfig,
    round: FirstRound,
}

/// The first checks of the backends in a batch that are new.
#[derive(Clone)]
struct FirstRound {
    left: Arc<AtomicUsize>,
    /// What readiness waits for: no later batch makes a process unready again.
    waiting: Arc<AtomicUsize>,
    ended: Arc<Notify>,
}

impl FirstRound {
    fn end_one(&self) {
        let left = self.left.fetch_sub(1, Ordering::AcqRel).saturating_sub(1);
        self.waiting.fetch_min(left, Ordering::AcqRel);
        if left == 0 {
            self.ended.notify_one();
        }
    }
}

impl DiscoveryService {
    /// A service for the backends of a fleet. `seed` starts its jitter.
    pub fn new(fleet: &Arc<Fleet>, config: &Config, seed: u64) -> Self {
        let (batches, queue) = mpsc::unbounded_channel();
        let backends = fleet.topology().backends.len();
        let service = Self(Arc::new(Shared {
            client: Arc::default(),
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            waiting: Arc::new(AtomicUsize::new(backends)),
            batches,
            scraper: Scraper::new(seed.wrapping_add(1)),
            queue: Mutex::new(Some(queue)),
        }));
        let _first_checks = service.watch(fleet, config);
        service
    }

    /// Counts the backends whose first check has neither passed nor failed yet; readiness waits
    /// for it to reach zero.
    pub fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0.waiting)
    }

    /// The scraper of the same backends, run as a separate service.
    pub fn scraper(&self) -> Scraper {
        self.0.scraper.clone()
    }

    /// Watches the backends of this fleet from now on, and no others. The future completes once every
    /// new backend has been checked and its models have been queried.
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
        let batch = Batch { fleet: Arc::clone(fleet), discovery, round };
        let is_watched = self.0.batches.send(batch).is_ok();
        async move {
            if is_watched && fresh > 0 {
                ended.notified().await;
            }
        }
    }

    fn spawn(&self, batch: &Batch) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for backend in &batch.fleet.topology().backends {
            let watcher = Watcher {
                fleet: Arc::clone(&batch.fleet),
                discovery: batch.discovery.clone(),
                client: Arc::clone(&self.0.client),
                schedule: CheckSchedule::new(
                    backend.clone(),
                    SmallRng::from_rng(&mut *self.0.rng.lock()),
                ),
                first: is_fresh(backend).then(|| batch.round.clone()),
                backend: backend.clone(),
            };
            tasks.spawn(watcher.run());
        }
        tasks
    }
}

/// Whether requests must wait for the first check and discovery.
fn is_fresh(backend: &Backend) -> bool {
    backend.state.checked_at().is_none() || backend.models.is_none()
}

#[async_trait]
impl BackgroundService for DiscoveryService {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Some(mut queue) = self.0.queue.lock().take() else { return };
        // Replacing the set ends the tasks of the previous batch.
        let mut watchers = JoinSet::new();
        loop {
            tokio::select! {
                batch = queue.recv() => match batch {
                    Some(batch) => watchers = self.spawn(&batch),
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

/// Watches one backend.
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
        let is_resolved = dns::resolve(&self.backend).await;
        let (backend, interval) = (self.backend.clone(), self.discovery.dns_interval);
        // Both run until the task is aborted.
        tokio::select! {
            () = dns::follow(&backend, interval, is_resolved) => {}
            () = self.check() => {}
        }
    }

    async fn check(mut self) {
        let mut checks = HealthChecks::new(&self.backend, Arc::clone(&self.client));
        let mut discover_at = Timestamp::default();
        if self.first.is_none() {
            self.schedule.wait_at_start().await;
        }
        loop {
            let change = checks.run().await;
            if change == Some(Health::Unhealthy) {
                self.fleet.record_outage(self.backend.state.id);
            }
            self.fleet.limit_caches(self.backend.state.id);
            let is_up = checks.is_passing();
            // A backend that recovers may serve other models than before.
            if is_up && self.discovers_models() && (change.is_some() || now() >= discover_at) {
                discover_at = now().after(self.discovery.interval);
                self.discover().await;
            }
            if let Some(round) = self.first.take() {
                round.end_one();
            }
            self.schedule.wait().await;
        }
    }

    /// Declared models count as they are; discovery only fills in what they leave out, and how many slots
    /// an engine has.
    fn discovers_models(&self) -> bool {
        let declared = self.backend.config.models.as_ref();
        let is_open =
            |entry: &ModelEntry| entry.context_length.is_none() || entry.capabilities.is_none();
        let has_slots = engines::facts(self.backend.config.engine).props_path.is_some();
        self.discovery.enabled
            && (has_slots || declared.is_none_or(|models| models.iter().any(is_open)))
    }

    /// Warns of ids that are not used, once per change of the list.
    fn record_dropped(&self, dropped: DroppedModels) {
        let is_new = self.backend.state.listing.record(dropped);
        if is_new && dropped != DroppedModels::default() {
            let DroppedModels { too_long, unprintable, duplicate, over_limit } = dropped;
            tracing::warn!(
                backend = %self.backend.state.name, too_long, unprintable, duplicate, over_limit,
                "the backend lists model ids that are not used"
            );
        }
    }

    async fn discover(&self) {
        let limit = self.discovery.timeout;
        let found = models::discover(&self.client, &self.backend, limit).await;
        match found {
            Ok(ListedModels { models, dropped }) => {
                self.record_dropped(dropped);
                if self.fleet.learn_models(self.backend.state.id, &models) {
                    let count = models.len();
                    let names = models.iter().map(|model| model.id.as_str());
                    let models = show_names(names, SHOWN_MODELS);
                    tracing::info!(backend = %self.backend.state.name, count, models, "models discovered");
                }
            }
            // The last list stays: a backend that cannot list its models may still serve them.
            Err(error) if self.backend.config.models.is_some() => {
                tracing::debug!(backend = %self.backend.state.name, %error, "discovery failed, declared models stay in use");
            }
            Err(error) => {
                tracing::warn!(backend = %self.backend.state.name, %error, "discovery failed");
            }
        }
    }
}
