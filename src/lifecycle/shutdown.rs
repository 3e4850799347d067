//! What begins the end: SIGTERM, SIGINT, or another process that has taken over. Readiness fails at
//! once; Pingora is told to close the listeners after `server.shutdown_delay`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::lifecycle::systemd::{Notifier, State};
use crate::proxy::Proxy;

/// How long clients with open connections get to hear that their next request goes elsewhere, once
/// another process has taken over.
const LINGER: Duration = Duration::from_secs(1);
/// How long stopping may take beyond what was announced before it counts as stuck.
pub(super) const LEEWAY: Duration = Duration::from_secs(15);

/// Something to be written out before the process ends.
pub type ShutdownHook = Box<dyn Fn() + Send + Sync>;

/// Whether and how this process ends.
#[derive(Default)]
pub struct Shutdown {
    upgraded: AtomicBool,
    wake: Notify,
    hooks: Vec<ShutdownHook>,
}

impl Shutdown {
    /// An end that comes behind those words.
    pub fn new(hooks: Vec<ShutdownHook>) -> Self {
        Self { hooks, ..Self::default() }
    }

    /// Ends the process.
    pub(super) fn end(&self) -> ! {
        self.hooks.iter().for_each(|write| write());
        std::process::exit(0)
    }

    /// Begins the end: another process has taken over.
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether another process has taken over.
    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }
}

/// Tells Pingora when to close the listeners.
pub struct ShutdownTrigger {
    /// What is to end.
    pub proxy: Arc<Proxy>,
    /// Whether another process has taken over.
    pub stop: Arc<Shutdown>,
    /// Whom to tell.
    pub notifier: Arc<Notifier>,
}

#[async_trait]
impl ShutdownSignalWatch for ShutdownTrigger {
    async fn recv(&self) -> ShutdownSignal {
        let mut signals = TerminationSignals::watch();
        tokio::select! {
            () = signals.next() => self.wait_for_delay(&mut signals).await,
            () = self.stop.wake.notified() => {
                // Answers end their connections from here on, so that few are left idle when the
                // listeners close.
                self.proxy.begin_stop();
                tokio::time::sleep(LINGER).await;
            }
        }
        ShutdownSignal::GracefulTerminate
    }
}

impl ShutdownTrigger {
    async fn wait_for_delay(&self, signals: &mut TerminationSignals) {
        self.proxy.begin_stop();
        let delay = self.proxy.generation().config.server.shutdown_delay;
        self.notifier.tell(&[
            State::Stopping,
            State::Status("stopping: not ready any more"),
            State::ExtendTimeout(delay.saturating_add(LEEWAY)),
        ]);
        if delay.is_zero() {
            return;
        }
        tracing::info!(?delay, "stopping: not ready any more, requests are still taken");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = signals.next() => {
                tracing::warn!(in_flight = self.proxy.in_flight(), "stopped by a second signal");
                self.stop.end();
            }
        }
    }
}

/// SIGTERM and SIGINT.
pub(super) struct TerminationSignals {
    terminate: Option<Signal>,
    interrupt: Option<Signal>,
}

impl TerminationSignals {
    pub(super) fn watch() -> Self {
        Self {
            terminate: watch_signal(SignalKind::terminate()),
            interrupt: watch_signal(SignalKind::interrupt()),
        }
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            () = next(&mut self.terminate) => {}
            () = next(&mut self.interrupt) => {}
        }
    }
}

/// Signals of a kind from now on.
pub(super) fn watch_signal(kind: SignalKind) -> Option<Signal> {
    let watched = signal(kind);
    watched.inspect_err(|error| tracing::error!(%error, ?kind, "a signal cannot be watched")).ok()
}

/// Has SIGHUP and SIGUSR1 heard from now on, which by themselves end a process: who sends one just
/// after the start, before anybody obeys it, means something else.
pub fn install_signal_handlers() {
    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
    let _entered = runtime.enter();
    // What is watched once stays watched for the process, though nobody listens yet.
    drop([SignalKind::hangup(), SignalKind::user_defined1()].map(watch_signal));
}

/// Waits for a signal; for ever when it is not watched.
pub(super) async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
