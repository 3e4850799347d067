//! How many may be connected to the admin port at one time. Those over the limit are told so at once:
//! the port has one thread, and whoever asks in time must get an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;

use crate::api::ErrorCode;
use crate::proxy::{Counted, Proxy, Refusal};

/// Connections over the limit that are told so at one time; further ones are closed without a word.
const REFUSED_AT_ONCE: usize = 64;

/// Who is connected to the admin port.
#[derive(Debug, Default)]
pub struct Callers {
    open: Arc<AtomicUsize>,
    refused: AtomicU64,
}

impl Callers {
    /// Connections open now, those that are being turned away among them.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that were turned away.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Lets as many connections to an application as `admin.connections` says.
pub(super) struct Door<A> {
    inner: Arc<A>,
    proxy: Arc<Proxy>,
    callers: Arc<Callers>,
    refusal: Refusal,
}

impl<A: ServerApp> Door<A> {
    pub(super) fn new(inner: A, proxy: Arc<Proxy>, callers: Arc<Callers>) -> Self {
        let message = "Too many connections (admin.connections)";
        let refusal = Refusal::new(ErrorCode::TooManyConnections, message);
        Self { inner: Arc::new(inner), proxy, callers, refusal }
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> ServerApp for Door<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = Counted::new(&self.callers.open);
        let limit = self.proxy.generation().config.admin.connections;
        let over = open.count().saturating_sub(limit);
        if over == 0 {
            return self.inner.process_new(stream, shutdown).await;
        }
        self.callers.refused.fetch_add(1, Ordering::Relaxed);
        if over <= REFUSED_AT_ONCE {
            self.refusal.send(&mut stream).await;
        }
        None
    }

    async fn cleanup(&self) {
        self.inner.cleanup().await;
    }
}
