//! How many may be connected to the admin port at one time, and for how long without asking. Those over
//! the limit are told so at once: the port has one thread, and whoever asks in time must get an answer.
//! Heads come by way of the data port's guard, so that they are as strict and have a deadline.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use crate::api::ErrorCode;
use crate::config::Config;
use crate::downstream::counted::Counted;
use crate::downstream::head_check::HeadError;
use crate::downstream::http1::{GuardedStream, HeadWait, Http1Connection};
use crate::downstream::limits::{ConnectionLimits, HeadLimits};
use crate::downstream::response_writer::RawResponse;
use crate::proxy::Proxy;

/// Connections over the limit that are told so at one time; further ones are closed without a word.
const REFUSED_AT_ONCE: usize = 64;
/// The longest a connection is kept between two requests.
const IDLE: Duration = Duration::from_secs(60);

/// Who is connected to the admin port.
#[derive(Debug, Default)]
pub struct AdminConnections {
    open: Arc<AtomicUsize>,
    refused: AtomicU64,
    late: AtomicU64,
}

impl AdminConnections {
    /// Connections open now, those that are being turned away among them.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that were turned away.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Requests whose head took longer than `admin.header_timeout`.
    pub(super) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    fn note_head_error(&self, error: HeadError) {
        if error == HeadError::TimedOut {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Lets as many connections to an application as `admin.connections` says.
pub(super) struct ConnectionLimit<A> {
    inner: Arc<A>,
    proxy: Arc<Proxy>,
    admin_connections: Arc<AdminConnections>,
    refusal: RawResponse,
}

impl<A: HttpServerApp + Send + Sync + 'static> ConnectionLimit<A> {
    pub(super) fn new(
        inner: A,
        proxy: Arc<Proxy>,
        admin_connections: Arc<AdminConnections>,
    ) -> Self {
        let message = "Too many connections (admin.connections)";
        let refusal = RawResponse::new(ErrorCode::TooManyConnections, message);
        Self { inner: Arc::new(inner), proxy, admin_connections, refusal }
    }

    /// Serves one request after the other.
    async fn serve(
        &self,
        stream: Stream,
        limits: ConnectionLimits,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let client = Http1Connection::anonymous(stream, limits.head);
        let mut stream: Stream = Box::new(GuardedStream::new(&client));
        let closing = pin!(std::future::pending::<()>());
        let idle = pin!(tokio::time::sleep(limits.head.timeout));
        // A first request must come within the header timeout, later ones within the idle timeout.
        let mut waiting = HeadWait::new(closing, idle, limits.head.timeout);
        while let Some(head) = waiting.next_head(&client).await {
            if let Some(refused) = client.refused() {
                self.admin_connections.note_head_error(refused.error);
                let refusal = RawResponse::new(refused.error.code(), &message_of(refused.error));
                refusal.send(&mut stream).await;
                return None;
            }
            let mut session = ServerSession::new_http1(stream);
            session.set_pipelined_prefix(head);
            (stream, _) = self.inner.process_new_http(session, shutdown).await?.consume();
            // Pingora returns the stream only after the body has been read.
            client.expect_head();
            waiting.set_idle_timeout(limits.idle_timeout);
        }
        None
    }
}

/// The message of a head error; only the timeout's setting differs from the data port's.
fn message_of(error: HeadError) -> String {
    if error == HeadError::TimedOut {
        return "The request head did not arrive in time (admin.header_timeout)".to_owned();
    }
    error.to_string()
}

/// The limits of a connection that is accepted now.
fn limits_of(config: &Config) -> ConnectionLimits {
    let limits = ConnectionLimits::of(config);
    let head = HeadLimits { timeout: config.admin.header_timeout, ..limits.head };
    ConnectionLimits { head, idle_timeout: IDLE, ..limits }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for ConnectionLimit<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = Counted::new(&self.admin_connections.open);
        let generation = self.proxy.generation();
        let (most, limits) = (generation.config.admin.connections, limits_of(&generation.config));
        drop(generation);
        let over = open.count().saturating_sub(most);
        if over == 0 {
            return self.serve(stream, limits, shutdown).await;
        }
        self.admin_connections.refused.fetch_add(1, Ordering::Relaxed);
        if over <= REFUSED_AT_ONCE {
            self.refusal.send(&mut stream).await;
        }
        None
    }

    async fn cleanup(&self) {
        self.inner.http_cleanup().await;
    }
}
