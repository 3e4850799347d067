//! A listening service as it lives here: with sockets that may come from the process before, and
//! with an end of its own. The admin port answers until the process is gone; the data port stops
//! with Pingora's other services.

use std::sync::Arc;

use async_trait::async_trait;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::upgrade::Socket;

/// The listening sockets of this process.
pub struct Sockets {
    inherited: Mutex<Vec<Socket>>,
    table: OnceCell<ListenFds>,
    /// Whether connections may be accepted.
    gate: watch::Sender<bool>,
    /// Whether another process has taken them over.
    upgraded: watch::Sender<bool>,
}

impl Sockets {
    /// With the ones taken over from another process; then nothing is accepted before
    /// [`Sockets::start_accepting`].
    pub fn new(inherited: Option<Vec<Socket>>) -> Arc<Self> {
        let (gate, _) = watch::channel(inherited.is_none());
        let (upgraded, _) = watch::channel(false);
        let inherited = Mutex::new(inherited.unwrap_or_default());
        Arc::new(Self { inherited, table: OnceCell::new(), gate, upgraded })
    }

    /// Lets connections be accepted.
    pub fn start_accepting(&self) {
        self.gate.send_replace(true);
    }

    /// Ends what goes on until another process takes over.
    pub fn release(&self) {
        self.upgraded.send_replace(true);
    }

    /// Every socket that is listened on.
    pub fn all(&self) -> Vec<Socket> {
        let table = self.table.get().map(|table| table.lock().serialize());
        let (addresses, descriptors) = table.unwrap_or_default();
        addresses.into_iter().zip(descriptors).collect()
    }

    /// Puts what was taken over where Pingora looks for it.
    fn join(&self, table: &ListenFds) {
        for (address, descriptor) in self.inherited.lock().drain(..) {
            table.lock().add(address, descriptor);
        }
        self.table.get_or_init(|| Arc::clone(table));
    }
}

/// When a listening service stops accepting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAccepting {
    /// When the process is told to stop.
    OnShutdown,
    /// When another process has taken over, else never: the process ends around it.
    AfterUpgrade,
}

/// A listening service with those sockets.
pub struct ListenerService<S> {
    inner: S,
    sockets: Arc<Sockets>,
    stop_accepting: StopAccepting,
    /// Where its connections are served.
    runtime: Arc<OnceCell<Handle>>,
}

impl<S: Service> ListenerService<S> {
    /// Wraps a service.
    pub fn new(inner: S, sockets: Arc<Sockets>, stop_accepting: StopAccepting) -> Self {
        Self { inner, sockets, stop_accepting, runtime: Arc::default() }
    }

    /// The runtime of the service, once it runs.
    pub fn runtime(&self) -> Arc<OnceCell<Handle>> {
        Arc::clone(&self.runtime)
    }
}

#[async_trait]
impl<S: Service> Service for ListenerService<S> {
    async fn start_service(
        &mut self,
        table: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_fd: usize,
    ) {
        self.runtime.get_or_init(Handle::current);
        if let Some(table) = &table {
            self.sockets.join(table);
        }
        let mut gate = self.sockets.gate.subscribe();
        if gate.wait_for(|is_open| *is_open).await.is_err() {
            return;
        }
        let shutdown = match self.stop_accepting {
            StopAccepting::OnShutdown => shutdown,
            StopAccepting::AfterUpgrade => self.sockets.upgraded.subscribe(),
        };
        self.inner.start_service(table, shutdown, listeners_per_fd).await;
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn threads(&self) -> Option<usize> {
        self.inner.threads()
    }
}
