//! Limits the number of connections to the admin port and their idle time. Over the limit a new
//! connection replaces the one that has waited longest for a request, so that idle clients do not
//! lock out probes. If all connections serve requests, the new one is refused at once: the port has
//! one thread, which must stay available to the others. The data port's guard reads the request
//! heads, with the same strict checks and a deadline.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use penstock_api::ErrorCode;
use penstock_config::Config;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::Notify;

use crate::downstream::counted::Counted;
use crate::downstream::head_check::HeadError;
use crate::downstream::http1::{GuardedStream, HeadWait, Http1Connection};
use crate::downstream::limits::{ConnectionLimits, HeadLimits};
use crate::downstream::response_writer::RawResponse;
use crate::observe::metrics::Metrics;
use crate::proxy::Proxy;

/// The number of refused connections that get an error response at a time; further ones are closed
/// without one.
const MAX_REFUSED_AT_ONCE: usize = 64;
/// The idle timeout between two requests of a connection.
const IDLE: Duration = Duration::from_secs(60);

/// The connections that wait for a request, in the order in which they started to wait.
#[derive(Default)]
struct WaitingConnections {
    next: AtomicU64,
    connections: Mutex<BTreeMap<u64, Arc<Notify>>>,
}

impl WaitingConnections {
    /// Joins the end of the line.
    fn join(&self) -> WaitingPlace<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let leave = Arc::new(Notify::new());
        self.connections.lock().insert(number, Arc::clone(&leave));
        WaitingPlace { line: self, number, leave }
    }

    /// Ends the connection that has waited longest. Returns whether there was one.
    fn evict(&self) -> bool {
        let first = self.connections.lock().pop_first();
        first.map(|(_, leave)| leave.notify_one()).is_some()
    }
}

/// A connection's place among those that wait; it leaves the line when dropped.
struct WaitingPlace<'a> {
    line: &'a WaitingConnections,
    number: u64,
    leave: Arc<Notify>,
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.line.connections.lock().remove(&self.number);
    }
}

/// Admits at most `admin.connections` connections to an application.
pub(super) struct AdminConnectionLimit<A> {
    inner: Arc<A>,
    proxy: Arc<Proxy>,
    metrics: Arc<Metrics>,
    waiting: WaitingConnections,
    refusal: RawResponse,
}

impl<A: HttpServerApp + Send + Sync + 'static> AdminConnectionLimit<A> {
    pub(super) fn new(inner: A, proxy: Arc<Proxy>, metrics: Arc<Metrics>) -> Self {
        let message = "Too many connections (admin.connections)";
        let refusal = RawResponse::new(ErrorCode::TooManyConnections, message);
        Self {
            inner: Arc::new(inner),
            proxy,
            metrics,
            waiting: WaitingConnections::default(),
            refusal,
        }
    }

    /// Serves the requests of a connection in sequence.
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
        // The header timeout, not the idle timeout, applies to the first request.
        let mut waiting = HeadWait::new(closing, idle, limits.head.timeout);
        loop {
            let place = self.waiting.join();
            let head = tokio::select! {
                // A head that has arrived is served, even if the connection is to make room.
                biased;
                head = waiting.next_head(&client) => head?,
                () = place.leave.notified() => return None,
            };
            // A connection that serves a request is not replaced.
            drop(place);
            if let Some(refused) = client.refused() {
                if refused.error == HeadError::TimedOut {
                    self.metrics.admin_connections.count_slow_head();
                }
                let refusal = RawResponse::new(refused.error.code(), &message(refused.error));
                refusal.send(&mut stream).await;
                return None;
            }
            let mut session = ServerSession::new_http1(stream);
            session.set_pipelined_prefix(head);
            (stream, _) = self.inner.process_new_http(session, shutdown).await?.consume();
            // Pingora returns the stream only after the body was read.
            client.expect_head();
            waiting.set_idle_timeout(limits.idle_timeout);
        }
    }
}

/// Returns the message for a client. It differs from the data port's only in the option for the
/// deadline.
fn message(error: HeadError) -> String {
    if error == HeadError::TimedOut {
        return "The request head did not arrive in time (admin.header_timeout)".to_owned();
    }
    error.to_string()
}

/// The limits of a new connection.
fn limits_of(config: &Config) -> ConnectionLimits {
    let limits = ConnectionLimits::of(config);
    let head = HeadLimits { timeout: config.admin.header_timeout, ..limits.head };
    ConnectionLimits { head, idle_timeout: IDLE, ..limits }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for AdminConnectionLimit<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = Counted::new(&self.metrics.admin_connections.open);
        let generation = self.proxy.generation();
        let (most, limits) = (generation.config.admin.connections, limits_of(&generation.config));
        // A connection may stay open for days, and must not keep an old configuration in memory.
        drop(generation);
        let over = open.count().saturating_sub(most);
        if over == 0 {
            return self.serve(stream, limits, shutdown).await;
        }
        self.metrics.admin_connections.count_refused();
        if self.waiting.evict() {
            return self.serve(stream, limits, shutdown).await;
        }
        if over <= MAX_REFUSED_AT_ONCE {
            self.refusal.send(&mut stream).await;
        }
        None
    }

    async fn cleanup(&self) {
        self.inner.http_cleanup().await;
    }
}
