//! One backend's health check, run by Pingora's load-balancing machinery. Every backend gets its own
//! `Backends`, because Pingora identifies a backend by address alone and ours may share one.
//!
//! A check that is not responded to does not delay the next: after `health.fast_interval` another one
//! starts beside it, up to `health.fall` of them, each with its full timeout. A backend that hangs is
//! unhealthy after one timeout and a little, not after `health.fall` of them in sequence; a backend that
//! is only slow passes as before.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend as Peer, Backends};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::{DiscoveryClient, DiscoveryError, SmallRequest};
use super::engines::facts;
use crate::clock::now;
use crate::fleet::{Backend, CheckOutcome, CheckResult, CheckVerdict, Health};

/// The health checks of one backend.
pub(super) struct HealthChecks {
    backends: Arc<Backends>,
    checker: Arc<Checker>,
    results: mpsc::UnboundedReceiver<CheckEnd>,
}

/// How a check ended: how long it took, or why it failed.
type CheckEnd = Result<Duration, DiscoveryError>;

impl HealthChecks {
    pub(super) fn new(backend: &Backend, client: Arc<DiscoveryClient>) -> Self {
        let is_refused = AtomicBool::new(false);
        let checker = Arc::new(Checker { backend: backend.clone(), client, is_refused });
        let mut backends = Backends::new(Box::new(OneAddress(backend.clone())));
        let (ends, results) = mpsc::unbounded_channel();
        backends.set_health_check(Box::new(SharedChecker { checker: Arc::clone(&checker), ends }));
        Self { backends: Arc::new(backends), checker, results }
    }

    /// Runs a check, and further ones beside it while it hangs; returns the new verdict when it changed.
    pub(super) async fn run(&mut self) -> Option<Health> {
        if self.checker.backend.state.addresses.first().is_none() {
            // No address is a failed check, too.
            return self.checker.learn(Err(DiscoveryError::NoAddress));
        }
        if let Err(error) = self.backends.update(|_peers| {}).await {
            tracing::debug!(%error, "the address set could not be updated");
        }
        // A check that was abandoned may have ended after all.
        while self.results.try_recv().is_ok() {}
        let health = self.checker.backend.config.health.clone();
        let mut running = JoinSet::new();
        let (mut started, mut ended, mut change) = (0, 0, None);
        loop {
            if started < health.fall {
                let backends = Arc::clone(&self.backends);
                running.spawn(async move { backends.run_health_check(false).await });
                started += 1;
            }
            match tokio::time::timeout(health.fast_interval, self.results.recv()).await {
                Ok(Some(end)) => {
                    ended += 1;
                    let is_passed = end.is_ok();
                    // What is short on this machine says nothing about the backend. Only the first check
                    // counts all the same: an address may be out of reach for good (IPv6 without a route).
                    let is_known = self.checker.backend.state.health.status() != Health::Unknown;
                    if !(is_known && matches!(end, Err(DiscoveryError::OutOf(_)))) {
                        change = self.checker.learn(end).or(change);
                    }
                    // The set aborts the others when it is dropped.
                    if is_passed || change.is_some() || ended == started {
                        return change;
                    }
                }
                Ok(None) => return change,
                Err(_still_running) => {}
            }
        }
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

/// Reports every result to the one task that counts them.
struct SharedChecker {
    checker: Arc<Checker>,
    ends: mpsc::UnboundedSender<CheckEnd>,
}

#[async_trait]
impl HealthCheck for SharedChecker {
    async fn check(&self, _peer: &Peer) -> pingora::Result<()> {
        let end = self.checker.check().await;
        let is_passed = end.is_ok();
        if self.ends.send(end).is_ok() && is_passed {
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
    /// Whether the backend rejects our key; logged once.
    is_refused: AtomicBool,
}

impl Checker {
    async fn check(&self) -> CheckEnd {
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

    /// Records a result; returns the new verdict when it changed.
    fn learn(&self, result: CheckEnd) -> Option<Health> {
        let health = &self.backend.config.health;
        let outcome = match &result {
            Ok(took) => CheckOutcome::Passed(*took),
            Err(DiscoveryError::Refused) => CheckOutcome::Refused,
            Err(_) => CheckOutcome::Failed,
        };
        let check = CheckResult { at: now(), outcome };
        let CheckVerdict { health: change, breaker } =
            self.backend.state.learn_check(check, health);
        if let Some(transition) = breaker {
            transition.log(&self.backend.state.name);
        }
        let name = &self.backend.state.name;
        match (change, &result) {
            (Some(Health::Healthy), _) => tracing::info!(backend = %name, "backend is healthy"),
            (Some(_), Err(reason)) => {
                tracing::warn!(backend = %name, %reason, "backend is unhealthy");
            }
            (Some(_), Ok(_)) | (None, _) => {}
        }
        change
    }
}
