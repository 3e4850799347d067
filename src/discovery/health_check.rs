//! One backend's health check, run by Pingora's load-balancing machinery. Every backend gets its own
//! `Backends`, because Pingora identifies a backend by address alone and ours may share one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend as Peer, Backends};

use super::client::{DiscoveryClient, DiscoveryError, SmallRequest};
use super::engines::facts;
use crate::clock::now;
use crate::fleet::{Backend, CheckResult, Health};

/// The health checks of one backend.
pub(super) struct HealthChecks {
    backends: Backends,
    checker: Arc<Checker>,
}

impl HealthChecks {
    pub(super) fn new(backend: &Backend, client: Arc<DiscoveryClient>) -> Self {
        let checker = Arc::new(Checker {
            backend: backend.clone(),
            client,
            change: Mutex::default(),
            is_refused: AtomicBool::new(false),
        });
        let mut backends = Backends::new(Box::new(OneAddress(backend.clone())));
        backends.set_health_check(Box::new(SharedChecker(Arc::clone(&checker))));
        Self { backends, checker }
    }

    /// Runs one check; returns the new verdict when it changed.
    pub(super) async fn run(&mut self) -> Option<Health> {
        if self.checker.backend.state.addresses.first().is_none() {
            // No address is a failed check, too.
            self.checker.learn(Err(DiscoveryError::NoAddress));
        } else {
            if let Err(error) = self.backends.update(|_peers| {}).await {
                tracing::debug!(%error, "the address set could not be updated");
            }
            self.backends.run_health_check(false).await;
        }
        self.checker.change.lock().take()
    }

    pub(super) fn is_passing(&self) -> bool {
        self.checker.backend.state.health.status() == Health::Healthy
    }
}

/// Gives Pingora the one address to check; the client chooses among several.
struct OneAddress(Backend);

#[async_trait]
impl ServiceDiscovery for OneAddress {
    async fn discover(&self) -> pingora::Result<(BTreeSet<Peer>, HashMap<u64, bool>)> {
        let first = self.0.state.addresses.first();
        let peer = first.map(|address| Peer::new(&address.to_string())).transpose()?;
        Ok((peer.into_iter().collect(), HashMap::new()))
    }
}

struct SharedChecker(Arc<Checker>);

#[async_trait]
impl HealthCheck for SharedChecker {
    async fn check(&self, _peer: &Peer) -> pingora::Result<()> {
        let result = self.0.check().await;
        let is_passed = result.is_ok();
        self.0.learn(result);
        if is_passed {
            return Ok(());
        }
        pingora::Error::e_explain(pingora::ErrorType::ConnectError, "the check failed")
    }

    // The fleet counts streaks, with rise and fall per backend.
    fn health_threshold(&self, _success: bool) -> usize {
        1
    }
}

struct Checker {
    backend: Backend,
    client: Arc<DiscoveryClient>,
    change: Mutex<Option<Health>>,
    /// Whether the backend rejects our key; logged once.
    is_refused: AtomicBool,
}

impl Checker {
    async fn check(&self) -> Result<Duration, DiscoveryError> {
        let config = &self.backend.config;
        let path =
            config.health.path.as_deref().unwrap_or_else(|| facts(config.engine).health_path);
        let request = SmallRequest { path, body: None, timeout: config.health.timeout };
        let started = now();
        let (status, _body) = self.client.send(&self.backend, request).await?;
        let is_refused = matches!(status, 401 | 403);
        if is_refused && !self.is_refused.swap(true, Ordering::Relaxed) {
            let name = &self.backend.state.name;
            tracing::warn!(
                backend = %name, status,
                "health check rejected: check 'api_key' of backend '{name}'"
            );
        }
        if !is_refused {
            self.is_refused.store(false, Ordering::Relaxed);
        }
        match status {
            200..=299 => Ok(now().since(started)),
            _ => Err(DiscoveryError::Status { path: path.to_owned(), status }),
        }
    }

    fn learn(&self, result: Result<Duration, DiscoveryError>) {
        let health = &self.backend.config.health;
        let check = CheckResult { at: now(), passed: result.as_ref().ok().copied() };
        let was_away = self.backend.state.health.status() == Health::Unhealthy;
        let change = self.backend.state.learn_check(check, health.rise, health.fall);
        if was_away && change == Some(Health::Healthy) {
            self.backend.state.begin_slow_start(check.at, health.slow_start);
        }
        let name = &self.backend.state.name;
        match (change, &result) {
            (Some(Health::Healthy), _) => tracing::info!(backend = %name, "backend is healthy"),
            (Some(_), Err(reason)) => {
                tracing::warn!(backend = %name, %reason, "backend is unhealthy");
            }
            (Some(_), Ok(_)) | (None, _) => {}
        }
        *self.change.lock() = change;
    }
}
