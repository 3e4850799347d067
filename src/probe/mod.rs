//! The only background I/O: health checks, discovery of models, name resolution. Results go into
//! the registry; the hot path never waits for any of it.

mod check;
mod client;
mod discover;
mod dns;
mod engines;
mod examine;

pub use client::{ProbeClient, ProbeError};
pub use examine::{Examination, KeepAlive, MetricsPage};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::clock::now;
use crate::config::{Config, DiscoveryConfig, ModelEntry};
use crate::registry::{Backend, Registry};
use crate::units::Timestamp;
use check::Checks;

/// How often names are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);
/// How soon after a failure.
const RESOLVE_AGAIN: Duration = Duration::from_secs(2);

/// Runs every backend's checks and discovery, in one background service.
#[derive(Clone)]
pub struct Prober {
    registry: Arc<Registry>,
    discovery: DiscoveryConfig,
    client: Arc<ProbeClient>,
    seed: u64,
    waiting: Arc<AtomicUsize>,
}

impl Prober {
    /// A prober for the backends of a registry. `seed` starts its jitter.
    pub fn new(registry: Arc<Registry>, config: &Config, seed: u64) -> Self {
        let backends = registry.snapshot().topology.backends.len();
        Self {
            registry,
            discovery: config.discovery.clone(),
            client: Arc::default(),
            seed,
            waiting: Arc::new(AtomicUsize::new(backends)),
        }
    }

    /// Counts the backends whose first check has neither passed nor failed yet; readiness waits
    /// for it to reach zero.
    pub fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.waiting)
    }
}

#[async_trait]
impl BackgroundService for Prober {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut tasks = tokio::task::JoinSet::new();
        for (index, backend) in (0_u64..).zip(&self.registry.snapshot().topology.backends) {
            tasks.spawn(
                Watcher {
                    backend: backend.clone(),
                    registry: Arc::clone(&self.registry),
                    discovery: self.discovery.clone(),
                    client: Arc::clone(&self.client),
                    rng: SmallRng::seed_from_u64(self.seed ^ index),
                    waiting: Arc::clone(&self.waiting),
                }
                .run(),
            );
        }
        let stopped = shutdown.changed().await;
        tracing::debug!(is_signalled = stopped.is_ok(), "checks end");
        tasks.abort_all();
    }
}

/// Watches one backend.
struct Watcher {
    backend: Backend,
    registry: Arc<Registry>,
    discovery: DiscoveryConfig,
    client: Arc<ProbeClient>,
    rng: SmallRng,
    waiting: Arc<AtomicUsize>,
}

impl Watcher {
    async fn run(mut self) {
        let mut checks = Checks::new(&self.backend, Arc::clone(&self.client));
        let mut resolve_at = Timestamp::default();
        let mut discover_at = Timestamp::default();
        let mut is_first = true;
        loop {
            if now() >= resolve_at {
                let found = dns::resolve(&self.backend).await;
                resolve_at = now().after(if found { RESOLVE_EVERY } else { RESOLVE_AGAIN });
            }
            let change = checks.run().await;
            let is_up = checks.is_passing();
            // A backend that comes back may serve other models than the one that went.
            if is_up && self.asks_for_models() && (change.is_some() || now() >= discover_at) {
                discover_at = now().after(self.discovery.interval);
                self.discover().await;
            }
            if is_first {
                is_first = false;
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            let pause = self.pause(is_up);
            self.wait(pause).await;
        }
    }

    /// Declared models are taken as they are; only what they leave open is asked for.
    fn asks_for_models(&self) -> bool {
        let declared = self.backend.config.models.as_ref();
        let is_open =
            |entry: &ModelEntry| entry.context_length.is_none() || entry.capabilities.is_none();
        self.discovery.enabled && declared.is_none_or(|models| models.iter().any(is_open))
    }

    fn pause(&mut self, is_up: bool) -> Duration {
        let health = &self.backend.config.health;
        let interval = if is_up { health.interval } else { health.unhealthy_interval };
        let jitter = health.jitter * self.rng.random_range(-1.0..=1.0);
        interval.mul_f64((1.0 + jitter).max(0.0))
    }

    /// Waits for the next check; not as long once traffic finds the backend out of reach, so that
    /// it is used again soon after it is back.
    async fn wait(&self, pause: Duration) {
        let slice = self.backend.config.health.unhealthy_interval;
        let until = now().after(pause);
        loop {
            let left = until.since(now());
            tokio::time::sleep(slice.min(left)).await;
            if left <= slice || !self.backend.state.breaker.is_closed() {
                return;
            }
        }
    }

    async fn discover(&self) {
        let limit = self.discovery.timeout;
        let found = discover::models(&self.client, &self.backend, limit).await;
        match found {
            Ok(models) => {
                if self.registry.discovered(self.backend.state.id, &models) {
                    let names: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                    tracing::info!(backend = %self.backend.state.name, models = ?names, "models discovered");
                }
            }
            // The last list stays: a backend that cannot tell its models may still serve them.
            Err(error) if self.backend.config.models.is_some() => {
                tracing::debug!(backend = %self.backend.state.name, %error, "no facts beyond the declared");
            }
            Err(error) => {
                tracing::warn!(backend = %self.backend.state.name, %error, "discovery failed");
            }
        }
    }
}
