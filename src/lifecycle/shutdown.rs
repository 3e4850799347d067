//! Graceful shutdown, triggered by SIGTERM, SIGINT or a completed upgrade. Readiness fails at once;
//! Pingora closes the listeners after `server.shutdown_delay`, so that load balancers in front have
//! seen the failed readiness before a connection is refused.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::lifecycle::systemd::{Notifier, SystemdState};
use crate::proxy::Proxy;

/// The time after an upgrade in which responses carry `Connection: close`, so that few connections
/// are idle when the listeners close.
const LINGER: Duration = Duration::from_secs(1);
/// The time added to each stop timeout that is announced to the service manager.
pub(super) const LEEWAY: Duration = Duration::from_secs(15);

/// Runs before the process exits, e.g. flushes a queue.
pub type ShutdownHook = Box<dyn Fn() + Send + Sync>;

/// The shutdown state of this process.
#[derive(Default)]
pub struct Shutdown {
    upgraded: AtomicBool,
    wake: Notify,
    hooks: Vec<ShutdownHook>,
}

impl Shutdown {
    /// Runs `hooks` before the process exits.
    pub fn new(hooks: Vec<ShutdownHook>) -> Self {
        Self { hooks, ..Self::default() }
    }

    /// Runs the hooks and exits.
    pub(super) fn end(&self) -> ! {
        self.exit(0)
    }

    /// Runs the hooks and exits with the code of a failure.
    pub(super) fn fail(&self) -> ! {
        self.exit(1)
    }

    fn exit(&self, code: i32) -> ! {
        self.hooks.iter().for_each(|write| write());
        std::process::exit(code)
    }

    /// Starts the shutdown: the new process of an upgrade serves.
    pub(super) fn mark_upgraded(&self) {
        self.upgraded.store(true, Ordering::Release);
        // `notify_one` stores a permit, so this may come before `recv` waits.
        self.wake.notify_one();
    }

    /// Returns whether a new process serves.
    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }
}

/// Resolves when Pingora is to close the listeners.
pub struct ShutdownTrigger {
    /// The data plane to stop.
    pub proxy: Arc<Proxy>,
    pub stop: Arc<Shutdown>,
    pub notifier: Arc<Notifier>,
    /// The files of the listeners' Unix sockets.
    pub sockets: Vec<PathBuf>,
}

#[async_trait]
impl ShutdownSignalWatch for ShutdownTrigger {
    async fn recv(&self) -> ShutdownSignal {
        let mut signals = TerminationSignals::watch();
        tokio::select! {
            () = signals.next() => {
                self.wait_for_delay(&mut signals).await;
                // Before the listeners close: afterwards another process may listen there.
                self.remove_sockets();
            }
            () = self.stop.wake.notified() => {
                // Responses close their connections from now on.
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
        self.notifier.notify(&[
            SystemdState::Stopping,
            SystemdState::Status("shutting down: not ready"),
            SystemdState::ExtendTimeout(delay.saturating_add(LEEWAY)),
        ]);
        if delay.is_zero() {
            return;
        }
        tracing::info!(?delay, "shutting down: not ready, still accepting requests");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = signals.next() => {
                tracing::warn!(in_flight = self.proxy.in_flight(), "second signal: exiting without draining");
                self.remove_sockets();
                self.stop.end();
            }
        }
    }

    /// Removes the files of the Unix sockets, which lead nowhere once the listeners are closed.
    /// After an upgrade, the new process does that when it stops.
    fn remove_sockets(&self) {
        for path in &self.sockets {
            // A file that has replaced the socket belongs to another program.
            let is_socket = |found: Metadata| found.file_type().is_socket();
            if std::fs::symlink_metadata(path).is_ok_and(is_socket)
                && let Err(error) = std::fs::remove_file(path)
            {
                tracing::warn!(path = %path.display(), %error, "the socket's file stays");
            }
        }
    }
}

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

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            () = next(&mut self.terminate) => {}
            () = next(&mut self.interrupt) => {}
        }
    }
}

/// Starts to receive signals of a kind; `None` if that fails.
pub(super) fn watch_signal(kind: SignalKind) -> Option<Signal> {
    let watched = signal(kind);
    watched
        .inspect_err(|error| tracing::error!(%error, ?kind, "cannot install signal handler"))
        .ok()
}

/// Installs handlers early: the default action of SIGHUP and SIGUSR1 would kill the process during
/// startup.
pub fn install_signal_handlers() {
    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
    let _entered = runtime.enter();
    // A handler stays installed after its stream is dropped.
    drop([SignalKind::hangup(), SignalKind::user_defined1()].map(watch_signal));
}

/// Waits for a signal; forever if its handler is not installed.
pub(super) async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
