//! Supervises the process: closes idle connections, reports status to the service manager, pings
//! its watchdog, runs the control loop, and exits after the drain.
//!
//! The watchdog ping is withheld unless a task spawned on the data plane's own runtime completes: a
//! deadlocked or busy-looping data plane must look dead to systemd even though this service, which
//! has another thread, is fine. A restart is then the only way to serve clients again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use penstock_api::units::Timestamp;
use penstock_clock::{now, unix_seconds};
use penstock_core::admission::rate_limits::LimitTime;
use penstock_core::fleet::Health;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::runtime::Handle;

use super::control::ControlLoop;
use super::file_limit::affordable_clients;
use super::listener_service::Sockets;
use super::shutdown::{LEEWAY, Shutdown, TerminationSignals};
use super::strategy_log::StrategyLog;
use super::upgrade::InheritedSockets;
use crate::downstream::http1::IDLE_GRACE;
use crate::lifecycle::systemd::{Notifier, SystemdState};
use crate::proxy::Proxy;

/// The interval of closing idle connections and of checking the status.
const TICK: Duration = Duration::from_secs(1);
/// The interval of sending an unchanged status: systemd ignores the new process of an upgrade until
/// it has processed the MAINPID message of the old one.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// The polling interval while waiting for readiness or for the end of the drain.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time by which first health checks may delay readiness.
const FIRST_CHECKS: Duration = Duration::from_secs(10);
/// The time in which the data plane must run a task.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(2);

/// The background service around the data plane.
pub struct Supervisor {
    pub proxy: Arc<Proxy>,
    pub runtime: Arc<OnceCell<Handle>>,
    /// Backends whose first health check has not finished.
    pub waiting: Arc<AtomicUsize>,
    pub sockets: Arc<Sockets>,
    pub notifier: Arc<Notifier>,
    pub stop: Arc<Shutdown>,
    /// The channel to the previous process, to report readiness.
    pub inherited: Mutex<Option<InheritedSockets>>,
    /// The control loop, until the service runs.
    pub control_loop: Mutex<Option<ControlLoop>>,
    /// The strategies that were logged; `None` until the process is ready.
    pub strategies: Mutex<Option<StrategyLog>>,
}

#[async_trait]
impl BackgroundService for Supervisor {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        if let Some(control_loop) = self.control_loop.lock().take() {
            tokio::spawn(control_loop.run());
        }
        tokio::select! {
            // Runs concurrently; never completes the select.
            () = async { self.report_ready().await; std::future::pending().await } => {}
            () = self.tick(&mut shutdown) => {}
        }
        self.end_when_idle().await;
    }
}

impl Supervisor {
    /// Reports readiness once every backend has been checked, at the latest after [`FIRST_CHECKS`].
    /// Inherited sockets accept no connection before.
    async fn report_ready(&self) {
        let until = now().after(FIRST_CHECKS);
        while self.waiting.load(Ordering::Acquire) > 0 && now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.limit_clients();
        // First the state of the old process: its drains and limits hold from the first request on.
        self.take_over().await;
        self.sockets.start_accepting();
        self.notifier.notify(&[SystemdState::Ready, SystemdState::Status(&self.status())]);
        self.log_strategies(true);
    }

    /// Logs the strategies that are new or have changed since the last time, but for those that the
    /// configuration names. `is_ready`: engines have had time to show what they are; before,
    /// nothing is logged.
    fn log_strategies(&self, is_ready: bool) {
        let mut log = self.strategies.lock();
        if is_ready && log.is_none() {
            *log = Some(StrategyLog::default());
        }
        if let Some(log) = log.as_mut() {
            log.update(&self.proxy.generation(), now());
        }
    }

    /// Reports to the previous process that this one is ready, and continues with its state.
    async fn take_over(&self) {
        let Some(inherited) = self.inherited.lock().take() else { return };
        match tokio::task::spawn_blocking(move || inherited.report_ready()).await {
            Ok((state, later)) => {
                let fleet = &self.proxy.generation().fleet;
                let backends = fleet.apply_manual_drains(&state.drains);
                if !backends.is_empty() {
                    tracing::info!(?backends, "drain states set by hand are kept");
                }
                let models = fleet.apply_learned_predictions(state.predictions);
                if models > 0 {
                    tracing::info!(models, "predictions continue with what was learned");
                }
                let moment = LimitTime { at: now(), unix: unix_seconds() };
                let keys = self.proxy.restore_limits(&state.limits, moment);
                tracing::debug!(keys, "limits continue with what was used");
                let ids = self.proxy.restore_ids(&state.stored);
                let homes = self.proxy.restore_homes(&state.homes);
                tracing::debug!(ids, homes, "stored responses and homes of sessions are known");
                let proxy = Arc::clone(&self.proxy);
                tokio::spawn(async move {
                    let received = later.receive(|ids| _ = proxy.restore_ids(&ids)).await;
                    tracing::debug!(is_whole = received.is_ok(), "the previous process has ended");
                });
            }
            Err(error) => tracing::error!(%error, "the previous process was not notified"),
        }
    }

    /// Keeps descriptors for backends in reserve if the limit of open files is low.
    fn limit_clients(&self) {
        let clients = &self.proxy.clients;
        // All services of the process have their descriptors by now.
        let affordable = affordable_clients(clients.connections() + clients.in_flight());
        if affordable < self.proxy.config().limits.connections {
            tracing::warn!(
                connections = affordable,
                "the limit of open files leaves room for this many client connections"
            );
        }
        clients.set_affordable(affordable);
    }

    async fn tick(&self, shutdown: &mut ShutdownWatch) {
        let mut ticks = tokio::time::interval(TICK);
        let mut watchdog_due = now();
        let (mut reported, mut repeat_at) = (String::new(), now());
        while !*shutdown.borrow_and_update() {
            tokio::select! {
                _ = ticks.tick() => {
                    self.proxy.sweep();
                    self.ping_watchdog(&mut watchdog_due).await;
                    // After an upgrade, the new process logs them.
                    if !self.stop.is_upgraded() {
                        self.log_strategies(false);
                    }
                    let status = self.status();
                    let is_due = status != reported || now() >= repeat_at;
                    // After an upgrade, the new process reports the status of the service.
                    if self.notifier.is_active() && is_due && !self.stop.is_upgraded() {
                        self.notifier.notify(&[SystemdState::Status(&status)]);
                        (reported, repeat_at) = (status, now().after(STATUS_INTERVAL));
                    }
                }
                changed = shutdown.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn status(&self) -> String {
        let fleet = self.proxy.generation().fleet.topology();
        let backends = &fleet.backends;
        let is_healthy = |state: Health| state == Health::Healthy;
        let healthy = backends.iter().filter(|one| is_healthy(one.state.status())).count();
        let (total, in_flight) = (backends.len(), self.proxy.in_flight());
        format!("serving: {healthy} of {total} backends healthy, {in_flight} requests in flight")
    }

    /// Pings the watchdog at twice the required rate, but only while the data plane is responsive.
    async fn ping_watchdog(&self, due: &mut Timestamp) {
        let Some(interval) = self.notifier.watchdog() else { return };
        if now() < *due || self.stop.is_upgraded() {
            return;
        }
        if self.is_data_plane_responsive().await {
            self.notifier.notify(&[SystemdState::Watchdog]);
            // One tick early, so that the next ping is not late.
            *due = now().after((interval / 2).saturating_sub(TICK));
        } else {
            // `due` stays as it is: the next tick checks again, so that a short stall costs no
            // restart.
            tracing::error!("data plane unresponsive, withholding watchdog ping");
        }
    }

    /// Returns whether the threads that serve clients still run tasks and can read the routing
    /// state.
    async fn is_data_plane_responsive(&self) -> bool {
        // The data plane has not started: nothing shows that it is stuck.
        let Some(runtime) = self.runtime.get() else { return true };
        let proxy = Arc::clone(&self.proxy);
        let probe = runtime.spawn(async move {
            tokio::task::yield_now().await;
            proxy.generation().fleet.topology().backends.len()
        });
        matches!(tokio::time::timeout(LIVENESS_TIMEOUT, probe).await, Ok(Ok(_)))
    }

    async fn end_when_idle(&self) {
        // Installed before the log line, so that its reader may send a signal.
        let mut signals = TerminationSignals::watch();
        let limit = self.proxy.generation().config.server.drain_timeout;
        let in_flight = self.proxy.in_flight();
        tracing::info!(in_flight, ?limit, "shutting down: draining requests in flight");
        let until = now().after(limit);
        let forced = async {
            // After an upgrade, the first signal is meant for the new process of the service.
            if self.stop.is_upgraded() {
                signals.next().await;
            }
            signals.next().await;
        };
        tokio::select! {
            () = self.drained(until) => tracing::info!("drained, exiting"),
            () = forced => {
                tracing::warn!(in_flight = self.proxy.in_flight(), "second signal: exiting with requests in flight");
            }
            () = tokio::time::sleep(limit) => {
                let in_flight = self.proxy.in_flight();
                tracing::warn!(in_flight, "drain timeout reached, exiting with requests in flight");
            }
        }
        self.stop.end();
    }

    async fn drained(&self, until: Timestamp) {
        let mut idle_checks = 0;
        let mut report_at = now();
        // An open connection may still send a request.
        let mut grace_until = now().after(IDLE_GRACE);
        // Idle in three consecutive polls: the last bytes of the last responses must be sent first.
        while idle_checks < 3 {
            if now() >= report_at && !self.stop.is_upgraded() {
                let (in_flight, left) = (self.proxy.in_flight(), until.since(now()).as_secs());
                let status =
                    format!("shutting down: {in_flight} requests in flight, {left} s left");
                self.notifier
                    .notify(&[SystemdState::Status(&status), SystemdState::ExtendTimeout(LEEWAY)]);
                report_at = now().after(TICK);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            let in_flight = self.proxy.in_flight();
            if in_flight > 0 {
                grace_until = now().after(IDLE_GRACE);
            }
            let may_come = self.proxy.clients.connections() > 0 && now() < grace_until;
            let is_idle = in_flight == 0 && !may_come;
            idle_checks = if is_idle { idle_checks + 1 } else { 0 };
        }
    }
}
