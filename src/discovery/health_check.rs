//! One backend's health check, run by Pingora's load-balancing health machinery. Every backend has
//! a set of its own, because Pingora tells backends apart by address alone and ours may share one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend as Peer, Backends};

use super::client::{DiscoveryClient, DiscoveryError, Question};
use super::engines::check_path;
use crate::clock::now;
use crate::fleet::{Backend, CheckResult, Health};

/// The checks of one backend.
pub(super) struct Checks {
    backends: Backends,
    checker: Arc<Checker>,
}

impl Checks {
    /// Checks for a backend, none of them run yet.
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
            // Nothing to connect to is a failed check, too.
            self.checker.learn(Err(DiscoveryError::NoAddress));
        } else {
            if let Err(error) = self.backends.update(|_peers| {}).await {
                tracing::debug!(%error, "the address set could not be updated");
            }
            self.backends.run_health_check(false).await;
        }
        self.checker.change.lock().take()
    }

    /// Whether the checks' verdict is good.
    pub(super) fn is_passing(&self) -> bool {
        self.checker.backend.state.health.status() == Health::Healthy
    }
}

/// Tells Pingora the one address a check goes to; which of several is the client's to choose.
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
        let asked = self.0.ask().await;
        let is_passed = asked.is_ok();
        self.0.learn(asked);
        if is_passed {
            return Ok(());
        }
        pingora::Error::e_explain(pingora::ErrorType::ConnectError, "the check failed")
    }

    // Streaks are counted in the fleet, where rise and fall differ per backend.
    fn health_threshold(&self, _success: bool) -> usize {
        1
    }
}

struct Checker {
    backend: Backend,
    client: Arc<DiscoveryClient>,
    change: Mutex<Option<Health>>,
    /// Whether the backend refuses our key, and the log has said so.
    is_refused: AtomicBool,
}

impl Checker {
    async fn ask(&self) -> Result<std::time::Duration, DiscoveryError> {
        let config = &self.backend.config;
        let path = config.health.path.as_deref().unwrap_or_else(|| check_path(config.engine));
        let question = Question { path, body: None, timeout: config.health.timeout };
        let started = now();
        let (status, _body) = self.client.ask(&self.backend, question).await?;
        let is_refused = matches!(status, 401 | 403);
        if is_refused && !self.is_refused.swap(true, Ordering::Relaxed) {
            let name = &self.backend.state.name;
            tracing::warn!(
                backend = %name, status,
                "the backend refuses its health check: look at 'api_key' of backend '{name}'"
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

    fn learn(&self, asked: Result<std::time::Duration, DiscoveryError>) {
        let health = &self.backend.config.health;
        let check = CheckResult { at: now(), passed: asked.as_ref().ok().copied() };
        let was_away = self.backend.state.health.status() == Health::Unhealthy;
        let change = self.backend.state.learn_check(check, health.rise, health.fall);
        if was_away && change == Some(Health::Healthy) {
            self.backend.state.begin_slow_start(check.at, health.slow_start);
        }
        let name = &self.backend.state.name;
        match (change, &asked) {
            (Some(Health::Healthy), _) => tracing::info!(backend = %name, "backend is healthy"),
            (Some(_), Err(reason)) => {
                tracing::warn!(backend = %name, %reason, "backend is unhealthy");
            }
            (Some(_), Ok(_)) | (None, _) => {}
        }
        *self.change.lock() = change;
    }
}
