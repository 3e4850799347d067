//! A wrapper of Pingora's listening service, for three reasons. Its sockets may be inherited from
//! the previous process. The admin port must keep responding during the drain, while the data port
//! stops with Pingora's other services. A port that cannot be opened must end the process.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::shutdown::Shutdown;
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
    stop: Arc<Shutdown>,
    stop_accepting: StopAccepting,
    /// The runtime of its connections.
    runtime: Arc<OnceCell<Handle>>,
}

impl<S: Service> ListenerService<S> {
    pub fn new(
        inner: S,
        sockets: &Arc<Sockets>,
        stop: &Arc<Shutdown>,
        stop_accepting: StopAccepting,
    ) -> Self {
        let (sockets, stop) = (Arc::clone(sockets), Arc::clone(stop));
        Self { inner, sockets, stop, stop_accepting, runtime: Arc::default() }
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
        let service = self.inner.name().to_owned();
        let running = self.inner.start_service(table, shutdown, listeners_per_fd);
        if let Err(reason) = until_panic(running).await {
            // The other ports would go on, and a health check of them would succeed for ever.
            tracing::error!("{service}: cannot listen, exiting: {reason}");
            self.stop.fail();
        }
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn threads(&self) -> Option<usize> {
        self.inner.threads()
    }
}

/// Runs a service to its end.
///
/// # Errors
/// The message of its panic: Pingora panics when it cannot listen on an address, and the runtime
/// would drop that.
async fn until_panic(service: impl Future<Output = ()>) -> Result<(), String> {
    let mut service = pin!(service);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| service.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(message_of(panic.as_ref()))),
    })
    .await
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_service_is_an_error_with_its_message() {
        assert_eq!(until_panic(async {}).await, Ok(()));
        let port = "port 1";
        let taken = until_panic(async { panic!("{port} is taken") }).await;
        assert_eq!(taken, Err("port 1 is taken".to_owned()));
        assert_eq!(until_panic(async { panic!("taken") }).await, Err("taken".to_owned()));
    }
}
