//! Keeps two lists of one backend current: the models it serves, and those in its memory. Each list
//! has its own schedule: `discovery.interval` or `discovery.loaded_interval`; sooner when a request
//! or a command shows that the list is outdated; `discovery.error_interval` after a failed read.
//! The known list stays in use meanwhile. A failure of one list changes neither the other list nor
//! the backend's health.
//!
//! One task per backend reads both, so that no list is read twice at a time.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_api::{Engine, show_names};
use penstock_clock::now;
use penstock_config::{DiscoveryConfig, ModelEntry};
use penstock_core::fleet::{Backend, DroppedModels, Fleet};
use penstock_scoring::Residency;
use tokio::sync::{oneshot, watch};

use super::client::DiscoveryClient;
use super::engines::{self, LoadedSource};
use super::listed_models::ListedModels;
use super::loaded::{LoadedReport, probe_loaded};
use super::models;
use super::ollama_models::{self, ShownModels};
use super::queries::Queries;

/// The largest number of models in one log line.
const MAX_SHOWN_MODELS: usize = 20;
/// The least time between two reads of a list, however often it is found outdated: clients cause
/// that, too.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The same for the list of models in memory, which responses change.
const MIN_LOADED_PAUSE: Duration = Duration::from_millis(200);
/// The time in which reads of details begin before those that are known are published.
const DETAILS_ROUND: Duration = Duration::from_secs(1);
/// The number of intervals without a report after which the known models in memory are forgotten.
const BELIEVED_INTERVALS: u32 = 3;

/// The state of a backend's health checks, as its watcher reports it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reachable {
    pub(super) is_up: bool,
    /// The number of times it became healthy; it may serve other models each time.
    pub(super) recoveries: u64,
}

impl Reachable {
    /// Takes in a check; returns whether it shows something new.
    pub(super) fn update(&mut self, is_up: bool, is_changed: bool) -> bool {
        let is_recovery = is_up && (is_changed || !self.is_up);
        let is_news = is_recovery || is_up != self.is_up;
        self.is_up = is_up;
        self.recoveries += u64::from(is_recovery);
        is_news
    }
}

/// The times of the next and the last read of a list.
#[derive(Debug, Clone, Copy, Default)]
struct Schedule {
    due: Timestamp,
    last: Timestamp,
}

impl Schedule {
    fn start(&mut self) -> bool {
        let at = now();
        let is_due = at >= self.due;
        if is_due {
            self.last = at;
        }
        is_due
    }

    fn wait(&mut self, interval: Duration) {
        self.due = now().after(interval);
    }

    /// Makes an outdated list due as soon as `pause` has passed since the last read.
    fn hurry(&mut self, pause: Duration) {
        self.due = self.due.min(self.last.after(pause));
    }
}

pub(super) struct CatalogueWatch {
    backend: Backend,
    fleet: Arc<Fleet>,
    discovery: DiscoveryConfig,
    client: Arc<DiscoveryClient>,
    shown: ShownModels,
    models: Schedule,
    loaded: Schedule,
    /// The time of its last report of the models in memory.
    reported_at: Timestamp,
    /// True if this process of the engine does not report them.
    is_unreported: bool,
    /// True if its models have not been read since it became healthy.
    is_recovered: bool,
}

impl CatalogueWatch {
    pub(super) fn new(
        backend: Backend,
        fleet: Arc<Fleet>,
        discovery: DiscoveryConfig,
        client: Arc<DiscoveryClient>,
    ) -> Self {
        let known = backend.discovered.as_deref().map(Vec::as_slice).unwrap_or_default();
        Self {
            shown: ShownModels::new(known),
            backend,
            fleet,
            discovery,
            client,
            models: Schedule::default(),
            loaded: Schedule::default(),
            reported_at: Timestamp::default(),
            is_unreported: false,
            is_recovered: false,
        }
    }

    /// Reads the lists while the backend is up. Drops `first` after the first time. Ends with the
    /// sender of `reachable`.
    pub(super) async fn follow(
        mut self,
        mut reachable: watch::Receiver<Reachable>,
        first: oneshot::Sender<()>,
    ) {
        let mut first = Some(first);
        let mut recoveries = 0;
        loop {
            let Ok(up) = reachable.wait_for(|it| it.is_up).await.map(|it| *it) else { return };
            if up.recoveries != recoveries {
                recoveries = up.recoveries;
                (self.models.due, self.loaded.due) = (now(), now());
                (self.is_recovered, self.is_unreported) = (true, false);
            }
            self.read_what_is_due().await;
            self.read_details().await;
            drop(first.take());
            self.wait(&mut reachable).await;
        }
    }

    /// Waits until a list is due, is found outdated, or the backend's state changes; no longer than
    /// it takes to see that while details are to be read.
    async fn wait(&mut self, reachable: &mut watch::Receiver<Reachable>) {
        let has_more = self.shown.is_incomplete();
        let until = if has_more { now() } else { self.models.due.min(self.loaded.due) };
        let state = Arc::clone(&self.backend.state);
        tokio::select! {
            biased;
            outdated = poll_fn(|cx| state.poll_outdated(cx)) => {
                if outdated.models {
                    self.models.hurry(MIN_PAUSE);
                }
                if outdated.loaded {
                    self.loaded.hurry(MIN_LOADED_PAUSE);
                }
            }
            // An error means that the sender is gone; the loop sees that, too.
            _ = reachable.changed() => {}
            () = tokio::time::sleep(until.since(now())) => {}
        }
    }

    async fn read_what_is_due(&mut self) {
        if self.models.start() {
            self.fleet.expire_lessons(&self.backend.state, now());
            let is_read = !self.discovers_models() || self.read_models().await;
            self.is_recovered = false;
            self.models.wait(self.pause(self.discovery.interval, is_read));
        }
        if self.loaded.start() {
            let is_read = self.read_loaded().await;
            self.loaded.wait(self.pause(self.discovery.loaded_interval, is_read));
        }
    }

    fn pause(&self, interval: Duration, is_read: bool) -> Duration {
        if is_read { interval } else { interval.min(self.discovery.error_interval) }
    }

    /// Returns whether the list of models is read. Declared models are used as they are; discovery
    /// only adds their missing details, and the slots of an engine. Whether an engine has slots is
    /// known once it is detected.
    fn discovers_models(&self) -> bool {
        let declared = self.backend.config.models.as_ref();
        let is_open =
            |entry: &ModelEntry| entry.context_length.is_none() || entry.capabilities.is_none();
        let engine = self.engine();
        let is_undetected = self.is_recovered && engine == Engine::Auto;
        self.discovery.enabled
            && (is_undetected
                || engines::facts(engine).props_path.is_some()
                || declared.is_none_or(|models| models.iter().any(is_open)))
    }

    fn engine(&self) -> Engine {
        self.backend.state.engine(self.backend.config.engine)
    }

    /// Reads the list of models; returns whether that worked.
    async fn read_models(&mut self) -> bool {
        let limit = self.discovery.timeout;
        let found = models::discover(&self.client, &self.backend, limit, &mut self.shown).await;
        let state = &self.backend.state;
        match found {
            Ok(ListedModels { models, dropped, sizes, version }) => {
                self.record_dropped(dropped);
                if self.fleet.learn_models(state.id, &models) {
                    let count = models.len();
                    let names = models.iter().map(|model| model.id.as_str());
                    let models = show_names(names, MAX_SHOWN_MODELS);
                    tracing::info!(backend = %state.name, count, models, "models discovered");
                    // The residency of the new models is not known yet.
                    self.loaded.due = now();
                }
                self.fleet.learn_sizes(state.id, &sizes);
                if version.is_some_and(|version| self.fleet.learn_version(state, &version)) {
                    tracing::info!(backend = %state.name, "engine has another version");
                }
                true
            }
            // The last list stays: a backend that cannot list its models may still serve them.
            Err(error) if self.backend.config.models.is_some() => {
                tracing::debug!(backend = %state.name, %error, "discovery failed, declared models stay in use");
                false
            }
            Err(error) => {
                tracing::warn!(backend = %state.name, %error, "discovery failed");
                false
            }
        }
    }

    /// Reads details that the list of models lacks, for about [`DETAILS_ROUND`], and publishes what
    /// is known then: a topology for each model would be costly. The models serve meanwhile.
    async fn read_details(&mut self) {
        if !self.shown.is_incomplete() {
            return;
        }
        let (client, backend) = (&*self.client, &self.backend);
        let queries = Queries { client, backend, timeout: self.discovery.timeout };
        let until = now().after(DETAILS_ROUND);
        ollama_models::read_details(&queries, &mut self.shown, until).await;
        let id = self.backend.state.id;
        let topology = self.fleet.topology();
        let listed = topology.backends.iter().find(|one| one.state.id == id);
        let listed = listed.and_then(|one| one.discovered.as_deref());
        if let Some(mut models) = listed.cloned() {
            self.shown.complete(&mut models);
            self.fleet.learn_models(id, &models);
        }
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

    /// Reads the list of models in memory; returns whether that worked.
    async fn read_loaded(&mut self) -> bool {
        let state = &self.backend.state;
        // The engine may have been detected only now.
        let source = engines::facts(self.engine()).loaded;
        if !self.discovery.enabled || self.is_unreported || source == LoadedSource::Always {
            return true;
        }
        // Taken before the query: what responses show later is newer than the page.
        let asked_at = now();
        let limit = self.discovery.timeout;
        match probe_loaded(&self.client, &self.backend, limit, source).await {
            Ok(report) => {
                self.reported_at = now();
                let is_listed = matches!(report, LoadedReport::Listed(_));
                state.set_router(source == LoadedSource::LlamaCpp && is_listed);
                match report {
                    LoadedReport::Listed(models) => {
                        let has_new_context = self.fleet.learn_loaded(state.id, &models, asked_at);
                        // There, the context of a loaded model is the one it has.
                        if has_new_context && source == LoadedSource::LmStudio {
                            self.models.hurry(MIN_PAUSE);
                        }
                    }
                    LoadedReport::Every(residency) => {
                        self.fleet.learn_residency(state.id, residency);
                    }
                    LoadedReport::NotServed => {
                        // Not queried again before the next recovery, which may bring another
                        // process.
                        self.is_unreported = true;
                        self.fleet.learn_residency(state.id, Residency::Resident);
                    }
                }
                true
            }
            Err(error) => {
                tracing::debug!(backend = %state.name, %error, "cannot read what is in memory");
                let believed = self.discovery.loaded_interval * BELIEVED_INTERVALS;
                if now().since(self.reported_at) > believed {
                    self.fleet.forget_loaded(state.id);
                }
                false
            }
        }
    }
}
