//! The health check of one backend, run by Pingora's load-balancing machinery. Every backend has
//! its own `Backends`, because Pingora identifies a backend by address alone and ours may share
//! one.
//!
//! A check without a response does not delay the next: after `health.fast_interval` another one
//! starts beside it, up to `health.fall` of them, each with its full timeout. A backend that hangs
//! is unhealthy after one timeout and a little, not after `health.fall` timeouts in sequence. A
//! backend that is only slow passes as before. A check that is late, hangs or breaks does not count
//! if responses made progress meanwhile: they prove more than a page. While a request in flight may
//! take that long, one check waits, and no further one starts, until the backend has responded to
//! something else.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_core::fleet::{Backend, CheckOutcome, CheckResult, CheckVerdict, Fleet, Health};
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend as Peer, Backends};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::check_page::{CheckPage, Remark};
use super::client::{DiscoveryClient, DiscoveryError, SmallRequest};

pub(super) struct HealthChecks {
    backends: Arc<Backends>,
    checker: Arc<Checker>,
    results: mpsc::UnboundedReceiver<CheckEnd>,
}

struct CheckEnd {
    started: Timestamp,
    /// The duration and the remark on the status, or the reason why it failed.
    result: Result<(Duration, Option<Remark>), DiscoveryError>,
}

impl HealthChecks {
    pub(super) fn new(backend: &Backend, client: Arc<DiscoveryClient>, fleet: Arc<Fleet>) -> Self {
        let checker = Arc::new(Checker { backend: backend.clone(), client, fleet });
        let mut backends = Backends::new(Box::new(OneAddress(backend.clone())));
        let (ends, results) = mpsc::unbounded_channel();
        backends.set_health_check(Box::new(SharedChecker { checker: Arc::clone(&checker), ends }));
        Self { backends: Arc::new(backends), checker, results }
    }

    /// Runs a check, and further ones beside it while it hangs; returns the new verdict if it
    /// changed.
    pub(super) async fn run(&mut self) -> Option<Health> {
        if self.checker.backend.state.addresses.first().is_none() {
            // No address is a failed check, too.
            let result = Err(DiscoveryError::NoAddress);
            return self.checker.learn(&CheckEnd { started: now(), result });
        }
        // Pingora checks the addresses of the last update only.
        if let Err(error) = self.backends.update(|_peers| {}).await {
            tracing::debug!(%error, "the address set could not be updated");
        }
        // A check that was abandoned may have ended after all.
        while self.results.try_recv().is_ok() {}
        let health = self.checker.backend.config.health.clone();
        let mut running = JoinSet::new();
        let (mut started, mut ended, mut change) = (0, 0, None);
        loop {
            if started == 0 || (started < health.fall && !self.checker.is_at_work()) {
                let backends = Arc::clone(&self.backends);
                running.spawn(async move { backends.run_health_check(false).await });
                started += 1;
            }
            match tokio::time::timeout(health.fast_interval, self.results.recv()).await {
                Ok(Some(end)) => {
                    ended += 1;
                    let is_passed = end.result.is_ok();
                    // A shortage on this machine says nothing about the backend. Only the first
                    // check counts all the same: an address may be out of reach for good (IPv6
                    // without a route).
                    let is_known = self.checker.backend.state.health.status() != Health::Unknown;
                    let is_short = matches!(end.result, Err(DiscoveryError::OutOf(_)));
                    if !(is_known && is_short) {
                        change = self.checker.learn(&end).or(change);
                    }
                    // The set aborts the others when it is dropped.
                    if is_passed || change.is_some() || ended == started {
                        return change;
                    }
                }
                Ok(None) => return change,
                Err(_still_running) => {
                    while running.try_join_next().is_some() {}
                    // A check that panics ends without a result.
                    if started == health.fall && running.is_empty() && self.results.is_empty() {
                        let result = Err(DiscoveryError::Connection("the check ended early"));
                        return self.checker.learn(&CheckEnd { started: now(), result });
                    }
                }
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
        let is_passed = end.result.is_ok();
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
    fleet: Arc<Fleet>,
}

impl Checker {
    async fn check(&self) -> CheckEnd {
        let started = now();
        let page = CheckPage::of(&self.backend.config);
        let timeout = self.backend.config.health.timeout;
        let request = SmallRequest { path: page.path, body: None, timeout };
        // An engine with one thread accepts no connection while it works: each further check would
        // fill its backlog, until it refuses requests. After its next response it has had time.
        let is_explained = || self.is_at_work() && self.backend.state.last_response() <= started;
        let response = self.client.send_while(&self.backend, request, is_explained).await;
        let remark = response.and_then(|(status, _body)| page.judge(status));
        CheckEnd { started, result: remark.map(|remark| (now().since(started), remark)) }
    }

    /// Records a result; returns the new verdict if it changed.
    fn learn(&self, end: &CheckEnd) -> Option<Health> {
        let (state, health) = (&self.backend.state, &self.backend.config.health);
        let name = &state.name;
        self.note_status(end);
        let outcome = match &end.result {
            Ok((took, _)) => CheckOutcome::Passed(*took),
            Err(DiscoveryError::Refused) => CheckOutcome::Refused,
            Err(reason) if self.is_vetoed(reason, end.started) => {
                tracing::debug!(backend = %name, %reason, "health check failed while requests prove more");
                state.veto_check(now());
                return None;
            }
            Err(_) => CheckOutcome::Failed,
        };
        let check = CheckResult { at: now(), outcome };
        let CheckVerdict { health: change, breaker } = state.learn_check(check, health);
        if let Some(transition) = breaker {
            transition.log(name);
        }
        match (change, &end.result) {
            (Some(Health::Healthy), _) => tracing::info!(backend = %name, "backend is healthy"),
            (Some(_), Err(reason)) => {
                tracing::warn!(backend = %name, %reason, "backend is unhealthy");
            }
            (Some(_), Ok(_)) | (None, _) => {}
        }
        change
    }

    /// Keeps a status that is no success, and logs it once.
    fn note_status(&self, end: &CheckEnd) {
        let name = &self.backend.state.name;
        let status = match &end.result {
            Ok((_, remark)) => remark.map(|remark| remark.status),
            Err(DiscoveryError::Status { status, .. }) => Some(*status),
            Err(_) => return,
        };
        let is_new = self.backend.state.set_check_status(status);
        match (status, &end.result) {
            (Some(status @ (401 | 403)), _) if is_new => tracing::warn!(
                backend = %name, status,
                "health check rejected: check 'api_key' of backend '{name}'"
            ),
            (_, Ok((_, Some(remark)))) if is_new => tracing::warn!(
                backend = %name, status = remark.status, meaning = remark.meaning(),
                "health check passed without a success"
            ),
            _ => {}
        }
    }

    /// Returns whether a request in flight that is not overdue explains that no page is shown, and
    /// no other backend could take the place of this one.
    fn is_at_work(&self) -> bool {
        let state = &self.backend.state;
        state.has_work_due_later(now()) && !self.fleet.topology().can_do_without(state)
    }

    /// Returns whether a failed check counts less than the progress of responses. If no other
    /// backend could take its place, a check that hangs counts less than work that is not overdue.
    /// A refused connection and the error of a health page stand: operators drain with them.
    fn is_vetoed(&self, reason: &DiscoveryError, started: Timestamp) -> bool {
        let state = &self.backend.state;
        let last_check = state.checked_at().unwrap_or(started);
        let since = match reason {
            DiscoveryError::TimedOut if self.is_at_work() => return true,
            // Within the check's own time: earlier progress says nothing about a backend that
            // hangs.
            DiscoveryError::TimedOut | DiscoveryError::NotConnected => started,
            DiscoveryError::Connection(_)
            | DiscoveryError::TooLarge
            | DiscoveryError::NotJson { .. } => last_check,
            DiscoveryError::Status { .. } if CheckPage::of(&self.backend.config).is_list() => {
                last_check
            }
            DiscoveryError::Status { .. }
            | DiscoveryError::NoAddress
            | DiscoveryError::Refused
            | DiscoveryError::OutOf(_) => return false,
        };
        state.last_response() > since
    }
}
