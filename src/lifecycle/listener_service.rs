//! A wrapper of Pingora's listening service, for two reasons. Its sockets may be inherited from the
//! previous process. The admin port must keep responding during the drain, while the data port
//! stops with Pingora's other services.

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
    /// True if connections may be accepted.
    accepting: watch::Sender<bool>,
    /// True if a new process has taken the sockets over.
    upgraded: watch::Sender<bool>,
}

impl Sockets {
    /// Creates the sockets. If some are inherited, nothing is accepted before
    /// [`Sockets::start_accepting`].
    pub fn new(inherited: Option<Vec<Socket>>) -> Arc<Self> {
        let (accepting, _) = watch::channel(inherited.is_none());
        let (upgraded, _) = watch::channel(false);
        let inherited = Mutex::new(inherited.unwrap_or_default());
        Arc::new(Self { inherited, table: OnceCell::new(), accepting, upgraded })
    }

    pub fn start_accepting(&self) {
        self.accepting.send_replace(true);
    }

    /// Stops the services that run until an upgrade.
    pub fn release(&self) {
        self.upgraded.send_replace(true);
    }

    pub fn all(&self) -> Vec<Socket> {
        let table = self.table.get().map(|table| table.lock().serialize());
        let (addresses, descriptors) = table.unwrap_or_default();
        addresses.into_iter().zip(descriptors).collect()
    }

    /// Adds the inherited sockets to Pingora's table, where it looks before it binds.
    fn add_inherited_to(&self, table: &ListenFds) {
        for (address, descriptor) in self.inherited.lock().drain(..) {
            table.lock().add(address, descriptor);
        }
        self.table.get_or_init(|| Arc::clone(table));
    }
}

/// The event at which a listening service stops accepting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAccepting {
    /// The shutdown of the process.
    OnShutdown,
    /// An upgrade; without one, the exit of the process.
    AfterUpgrade,
}

/// A listening service with these sockets.
pub struct ListenerService<S> {
    inner: S,
    sockets: Arc<Sockets>,
    stop_accepting: StopAccepting,
    /// The runtime of its connections.
    runtime: Arc<OnceCell<Handle>>,
}

impl<S: Service> ListenerService<S> {
    pub fn new(inner: S, sockets: Arc<Sockets>, stop_accepting: StopAccepting) -> Self {
        Self { inner, sockets, stop_accepting, runtime: Arc::default() }
    }

    /// Returns the runtime of the service, once it runs.
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
            self.sockets.add_inherited_to(table);
        }
        // The old process accepts on inherited sockets meanwhile, so no connection waits for this.
        let mut accepting = self.sockets.accepting.subscribe();
        if accepting.wait_for(|accepting| *accepting).await.is_err() {
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
