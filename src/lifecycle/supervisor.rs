//! The work in the background: idle connections are swept, the service manager is told how it goes,
//! commands and SIGHUP are obeyed, and the process ends once it was told to stop and is done with
//! what is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::runtime::Handle;

use super::control::ControlLoop;
use super::listener_service::Sockets;
use super::shutdown::{LEEWAY, Shutdown, TerminationSignals};
use super::upgrade::InheritedSockets;
use crate::clock::now;
use crate::downstream::acceptor::IDLE_GRACE;
use crate::fleet::Health;
use crate::lifecycle::systemd::{Notifier, State};
use crate::proxy::Proxy;
use crate::units::Timestamp;

/// How often the fleet's idle connections are looked through, and the status is told.
const TICK: Duration = Duration::from_secs(1);
/// How often the status is told although it is the same: who took over from another process is not
/// believed before the service manager has taken notice of that.
const STATUS_AGAIN: Duration = Duration::from_secs(10);
/// How often a stopping server looks whether it is idle, and a starting one whether it is ready.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the first checks may take before the service manager hears that the start is done.
const FIRST_CHECKS: Duration = Duration::from_secs(10);
/// How long the data plane may take to show that it lives.
const PULSE: Duration = Duration::from_secs(2);

/// What the supervisor looks after.
pub struct Supervisor {
    /// The data plane.
    pub proxy: Arc<Proxy>,
    /// Where it runs.
    pub runtime: Arc<OnceCell<Handle>>,
    /// Backends whose first check has not ended.
    pub waiting: Arc<AtomicUsize>,
    /// The listening sockets.
    pub sockets: Arc<Sockets>,
    /// Whom to tell.
    pub notifier: Arc<Notifier>,
    /// Whether another process has taken over.
    pub stop: Arc<Shutdown>,
    /// What is to be told once this process serves.
    pub inherited: Mutex<Option<InheritedSockets>>,
    /// What obeys commands; until the service runs.
    pub control_loop: Mutex<Option<ControlLoop>>,
}

#[async_trait]
impl BackgroundService for Supervisor {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        if let Some(control_loop) = self.control_loop.lock().take() {
            tokio::spawn(control_loop.run());
        }
        tokio::select! {
            // It has its turn besides, and says nothing about the end.
            () = async { self.tell_ready().await; std::future::pending().await } => {}
            () = self.tick(&mut shutdown) => {}
        }
        self.end_when_idle().await;
    }
}

impl Supervisor {
    /// The start is done once every backend has been checked: what is taken over from another
    /// process is not used before.
    async fn tell_ready(&self) {
        let until = now().after(FIRST_CHECKS);
        while self.waiting.load(Ordering::Acquire) > 0 && now() < until {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.sockets.start_accepting();
        if let Some(inherited) = self.inherited.lock().take() {
            inherited.tell_ready();
        }
        self.notifier.tell(&[State::Ready, State::Status(&self.status())]);
    }

    async fn tick(&self, shutdown: &mut ShutdownWatch) {
        let mut ticks = tokio::time::interval(TICK);
        let mut watchdog_due = now();
        let (mut told, mut again) = (String::new(), now());
        while !*shutdown.borrow_and_update() {
            tokio::select! {
                _ = ticks.tick() => {
                    self.proxy.sweep();
                    self.feed_watchdog(&mut watchdog_due).await;
                    let status = self.status();
                    let is_news = status != told || now() >= again;
                    if self.notifier.is_heard() && is_news && !self.stop.is_upgraded() {
                        self.notifier.tell(&[State::Status(&status)]);
                        (told, again) = (status, now().after(STATUS_AGAIN));
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

    /// Tells the watchdog that all is well, at twice the pace it asks for, and only when the data
    /// plane shows that it lives.
    async fn feed_watchdog(&self, due: &mut Timestamp) {
        let Some(interval) = self.notifier.watchdog() else { return };
        if now() < *due || self.stop.is_upgraded() {
            return;
        }
        if self.has_pulse().await {
            self.notifier.tell(&[State::Watchdog]);
            // A tick early: the next one must not come late.
            *due = now().after((interval / 2).saturating_sub(TICK));
        } else {
            tracing::error!("the data plane does not answer: the watchdog is not told");
        }
    }

    /// Whether the threads that serve clients still take up work and can read what they route by.
    async fn has_pulse(&self) -> bool {
        let Some(runtime) = self.runtime.get() else { return true };
        let proxy = Arc::clone(&self.proxy);
        let beat = runtime.spawn(async move {
            tokio::task::yield_now().await;
            proxy.generation().fleet.topology().backends.len()
        });
        matches!(tokio::time::timeout(PULSE, beat).await, Ok(Ok(_)))
    }

    async fn end_when_idle(&self) {
        // Listened for before it is said, so that whoever reads it may send one.
        let mut signals = TerminationSignals::watch();
        let limit = self.proxy.generation().config.server.drain_timeout;
        let in_flight = self.proxy.in_flight();
        tracing::info!(in_flight, ?limit, "stopping: finishing what is in flight");
        let until = now().after(limit);
        let forced = async {
            // Another process serves: a first signal is meant for the service, not for the rest.
            if self.stop.is_upgraded() {
                signals.next().await;
            }
            signals.next().await;
        };
        tokio::select! {
            () = self.drained(until) => tracing::info!("stopped"),
            () = forced => {
                tracing::warn!(in_flight = self.proxy.in_flight(), "stopped by a second signal");
            }
            () = tokio::time::sleep(limit) => {
                let in_flight = self.proxy.in_flight();
                tracing::warn!(in_flight, "stopped: the drain timeout has passed");
            }
        }
        self.stop.end();
    }

    async fn drained(&self, until: Timestamp) {
        let mut idle_checks = 0;
        let mut tell_at = now();
        // Connections without a request may still bring one.
        let silent_until = now().after(IDLE_GRACE);
        // The last bytes of the last answers leave before the process does.
        while idle_checks < 3 {
            if now() >= tell_at && !self.stop.is_upgraded() {
                let (in_flight, left) = (self.proxy.in_flight(), until.since(now()).as_secs());
                let status = format!("stopping: {in_flight} requests in flight, {left} s left");
                self.notifier.tell(&[State::Status(&status), State::ExtendTimeout(LEEWAY)]);
                tell_at = now().after(TICK);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            let may_come = self.proxy.clients().connections() > 0 && now() < silent_until;
            let is_idle = self.proxy.in_flight() == 0 && !may_come;
            idle_checks = if is_idle { idle_checks + 1 } else { 0 };
        }
    }
}
