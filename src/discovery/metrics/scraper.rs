//! Scrapes engine metrics in the background and publishes them. There is one task per backend, on a
//! runtime with one thread, so that the cost of all scrapes can be measured and bounded
//! ([`ScrapeBudget`]).
//!
//! A failed scrape doubles the pause up to 10 s (exponential backoff); jitter keeps backends apart.

mod budget;
mod fetch;
mod source;

pub use budget::ScrapeBudget;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use penstock_api::Engine;
use penstock_clock::now;
use penstock_config::{Config, TelemetryConfig};
use penstock_core::fleet::{Backend, EngineSample, Fleet, Health};
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::engine_metrics::{EnginePage, PageReader, read_props};
use crate::discovery::engines::{ScrapePace, facts};
use crate::upstream::connect::Connector;
use fetch::{Fetched, Fetcher, ScrapeError};
use source::{ScrapeSource, sources};

/// Idle connections over HTTP/2 are reused for less than this; engines close theirs after 5 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// The interval at which the budget is balanced.
const BALANCE_EVERY: Duration = Duration::from_secs(1);
/// The longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The share by which pauses vary, so that backends are not scraped in step.
const JITTER: f64 = 0.1;

/// Scrapes every backend of a configuration, in one background service.
#[derive(Clone)]
pub struct Scraper(Arc<ScraperState>);

struct ScraperState {
    connector: Connector,
    reader: PageReader,
    budget: Arc<ScrapeBudget>,
    rng: Mutex<SmallRng>,
    targets: watch::Sender<Option<ScrapeTargets>>,
}

/// The backends of one configuration.
#[derive(Clone)]
struct ScrapeTargets {
    fleet: Arc<Fleet>,
    config: TelemetryConfig,
    /// True if engines are not scraped that a scrape disturbs. Their load is what penstock has
    /// sent, unless other clients use them, too.
    spares_disturbed: bool,
}

impl Scraper {
    /// Creates a scraper without backends. `seed` starts its jitter.
    pub(in crate::discovery) fn new(seed: u64) -> Self {
        Self(Arc::new(ScraperState {
            connector: Connector::new(IDLE_TIMEOUT),
            reader: PageReader::default(),
            budget: Arc::default(),
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            targets: watch::Sender::new(None),
        }))
    }

    /// Returns the cost of all scrapes together.
    pub fn budget(&self) -> Arc<ScrapeBudget> {
        Arc::clone(&self.0.budget)
    }

    /// Scrapes the backends of this fleet from now on, and no others; none if the configuration
    /// needs no telemetry.
    pub(in crate::discovery) fn watch(&self, fleet: &Arc<Fleet>, config: &Config) {
        let targets = config.wants_telemetry().then(|| ScrapeTargets {
            fleet: Arc::clone(fleet),
            config: config.telemetry.clone(),
            spares_disturbed: !config.needs_telemetry(),
        });
        self.0.targets.send_replace(targets);
    }

    fn spawn(&self, targets: &ScrapeTargets) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for backend in &targets.fleet.topology().backends {
            let sources = sources(&backend.config);
            if sources.is_empty() {
                continue;
            }
            let task = Task {
                fetcher: Fetcher::new(backend.clone(), &targets.config),
                backend: backend.clone(),
                targets: targets.clone(),
                shared: Arc::clone(&self.0),
                rng: SmallRng::from_rng(&mut *self.0.rng.lock()),
                sources,
                known: None,
                failures: 0,
                was_busy: false,
                work: None,
                cache_tokens: None,
            };
            tasks.spawn(task.run());
        }
        tasks
    }
}

#[async_trait]
impl BackgroundService for Scraper {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut changes = self.0.targets.subscribe();
        let mut balancing = tokio::time::interval(BALANCE_EVERY);
        // Replacing the set ends the tasks of the previous targets.
        let mut tasks = JoinSet::new();
        // Targets may have been set before this service started.
        changes.mark_changed();
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let targets = changes.borrow_and_update().clone();
                    tasks = targets.map(|targets| self.spawn(&targets)).unwrap_or_default();
                }
                _ = balancing.tick() => {
                    if let Some(targets) = &*self.0.targets.borrow() {
                        self.0.budget.balance(now(), &targets.config);
                        self.0.connector.sweep();
                    }
                }
                changed = shutdown.changed() => {
                    if changed.is_err() || *shutdown.borrow() {
                        break;
                    }
                }
            }
        }
        tracing::debug!(tasks = tasks.len(), "scraping stopped");
    }
}

struct Task {
    backend: Backend,
    targets: ScrapeTargets,
    shared: Arc<ScraperState>,
    fetcher: Fetcher,
    rng: SmallRng,
    /// Pages that may have metrics, the likeliest first.
    sources: Vec<ScrapeSource>,
    /// The index of the page that has them, and its engine.
    known: Option<(usize, Option<Engine>)>,
    /// Failed scrapes in a row.
    failures: u32,
    /// True if requests of ours were in flight at the last scrape.
    was_busy: bool,
    work: Option<f64>,
    /// The number of tokens that llama.cpp's slots hold; queried once per start of the engine.
    cache_tokens: Option<Option<u64>>,
}

impl Task {
    async fn run(mut self) {
        // A new configuration must not scrape a whole fleet at once.
        let spread = self.targets.config.interval.mul_f64(self.rng.random());
        tokio::time::sleep(spread).await;
        // Wait until DNS has resolved.
        while self.backend.state.addresses.first().is_none()
            && self.backend.state.health.status() == Health::Unknown
        {
            tokio::time::sleep(self.targets.config.interval).await;
        }
        loop {
            if self.targets.spares_disturbed && facts(self.engine()).is_disturbed_by_scrapes {
                self.backend.state.telemetry.stop();
                tokio::time::sleep(self.targets.config.idle_interval).await;
                continue;
            }
            let started = now();
            match self.scrape().await {
                Ok((page, sent)) => self.learn(page, &sent, now().since(started)),
                Err(error) => self.fail(&error),
            }
            self.wait().await;
        }
    }

    /// Scrapes the source that worked before, else each in turn.
    async fn scrape(&mut self) -> Result<(EnginePage, Fetched), ScrapeError> {
        let known = self.known.map(|(index, _)| index);
        let mut refused = None;
        for index in 0..self.sources.len() {
            let Some(source) = self.sources.get(index) else { break };
            if known.is_some_and(|known| known != index) {
                continue;
            }
            match self.scrape_source(&source.clone()).await {
                Ok((page, sent)) => {
                    if let Some(engine) = page.engine {
                        self.backend.state.detect_engine(engine);
                    }
                    let engine = page.engine.or(Some(self.backend.config.engine));
                    self.known = Some((index, engine));
                    return Ok((page, sent));
                }
                // The first failure is the one to report: it is about the likeliest page.
                Err(error @ (ScrapeError::Status { .. } | ScrapeError::NoLoad { .. })) => {
                    refused.get_or_insert(error);
                }
                // Without a connection, the other pages cannot be read either.
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or(ScrapeError::NoConnection("no metrics page is known")))
    }

    async fn scrape_source(
        &mut self,
        source: &ScrapeSource,
    ) -> Result<(EnginePage, Fetched), ScrapeError> {
        let shared = Arc::clone(&self.shared);
        let fetched = self.fetcher.fetch(&shared.connector, &source.path).await;
        shared.budget.add_bytes(self.fetcher.body().len());
        let fetched = fetched?;
        let page = source.read(&shared.reader, self.fetcher.body());
        let mut page = page.ok_or_else(|| ScrapeError::NoLoad { path: source.path.clone() })?;
        if let Some(path) = page.engine.and_then(|engine| facts(engine).props_path) {
            page.details.cache_tokens = self.fetch_cache_tokens(path).await;
        }
        Ok((page, fetched))
    }

    async fn fetch_cache_tokens(&mut self, path: &str) -> Option<u64> {
        if let Some(known) = self.cache_tokens {
            return known;
        }
        let shared = Arc::clone(&self.shared);
        let fetched = self.fetcher.fetch(&shared.connector, path).await;
        let tokens = fetched.ok().and_then(|_| read_props(self.fetcher.body()));
        // A failure is kept as well: otherwise each scrape would try again, and take longer.
        self.cache_tokens = Some(tokens);
        tokens
    }

    fn learn(&mut self, page: EnginePage, sent: &Fetched, took: Duration) {
        let telemetry = &self.backend.state.telemetry;
        let has_later_start = self.targets.fleet.learn_details(&self.backend.state, &page.details);
        // Without a start time, a counter that falls shows a restart.
        let has_fallen = page.details.started_at.is_none()
            && self.work.zip(page.work).is_some_and(|(before, now)| now < before);
        if has_fallen {
            telemetry.restart();
        }
        if has_later_start || has_fallen {
            tracing::info!(backend = %self.backend.state.name, "engine restarted");
            self.targets.fleet.forget_process(self.backend.state.id);
            self.cache_tokens = None;
        }
        if let Some((hits, queries)) = page.prefix_cache {
            telemetry.learn_prefix_cache(hits, queries);
        }
        self.work = page.work;
        if let Some(work) = page.work {
            self.backend.state.note_work(work, sent.at);
        }
        self.was_busy = sent.in_flight > 0;
        if self.failures > 0 {
            tracing::info!(backend = %self.backend.state.name, "metrics scrape recovered");
        }
        self.failures = 0;
        telemetry.publish(EngineSample {
            waiting: page.waiting,
            running: page.running,
            kv_utilization: page.kv_utilization,
            in_flight: sent.in_flight,
            sent_at: sent.at,
            // The time from sample to sample, not only the pause between scrapes.
            interval: self.interval() + took,
        });
    }

    fn fail(&mut self, error: &ScrapeError) {
        self.backend.state.telemetry.fail();
        let (name, is_first) = (&self.backend.state.name, self.failures == 0);
        if is_first {
            tracing::warn!(backend = %name, %error, "metrics scrape failed");
        } else {
            tracing::debug!(backend = %name, %error, "metrics scrape failed");
        }
        self.failures = self.failures.saturating_add(1);
        if matches!(error, ScrapeError::Status { .. } | ScrapeError::NoLoad { .. }) {
            // It may be another engine now, or the same one with other options.
            self.known = None;
        }
    }

    /// Returns the engine, as its page shows it, or what else the backend shows.
    fn engine(&self) -> Engine {
        let known = self.known.and_then(|(_, engine)| engine);
        let shown = || self.backend.state.engine(self.backend.config.engine);
        known.filter(|engine| *engine != Engine::Auto).unwrap_or_else(shown)
    }

    /// Returns the pause between two scrapes that succeed.
    fn interval(&self) -> Duration {
        let config = &self.targets.config;
        // An engine that became idle is scraped once more soon, or its last sample would be stale.
        let is_busy = self.was_busy || self.backend.state.load.in_flight() > 0;
        let usual = if is_busy { config.interval } else { config.idle_interval };
        let pause = match facts(self.engine()).scrape_pace {
            ScrapePace::Configured => usual,
            ScrapePace::AtLeast(least) => usual.max(least),
            ScrapePace::Idle(least) => config.idle_interval.max(least),
        };
        pause.mul_f64(self.shared.budget.interval_factor())
    }

    fn pause(&self) -> Duration {
        let pause = self.interval();
        if self.failures == 0 {
            return pause;
        }
        // The bound keeps the shift in range; `MAX_PAUSE` is reached long before.
        let longer = pause.saturating_mul(1 << self.failures.min(10));
        longer.min(MAX_PAUSE.max(pause))
    }

    /// Waits for the next scrape, in slices: requests may arrive, or the backend may recover.
    async fn wait(&mut self) {
        let since = now();
        let health = self.backend.state.health.status();
        let jitter = 1.0 + JITTER * self.rng.random_range(-1.0..=1.0);
        loop {
            let passed = now().since(since);
            let left = self.pause().mul_f64(jitter).saturating_sub(passed);
            let has_recovered = self.failures > 0 && {
                let status = self.backend.state.health.status();
                status != health && status == Health::Healthy
            };
            if left.is_zero() || has_recovered {
                return;
            }
            let slice = self.targets.config.interval.mul_f64(self.shared.budget.interval_factor());
            tokio::time::sleep(left.min(slice)).await;
        }
    }
}

#[cfg(test)]
mod tests;
