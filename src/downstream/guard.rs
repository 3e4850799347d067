//! Stands between the listener and Pingora's parser: Pingora is woken once a whole request head is
//! there and `strict` has passed it, and is given that head alone. So a connection that waits for its
//! next request costs little. The body stays here, where the proxy reads it straight into the one
//! buffer it is kept in; pipelined requests wait their turn.

pub(crate) use super::accept::Waiting;
pub(crate) use super::connection_limit::{Refusal, Refusals};
pub(crate) use super::http1::{ClientStream, GuardStream, RefusedHead};
pub(crate) use super::listener::Ports;
pub(crate) use super::origin::Origin;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::l4::ext::set_snd_buf;
use pingora::server::ShutdownWatch;
use tokio_util::sync::CancellationToken;

use super::listener::Welcomed;
use crate::config::Config;
use crate::proxy::LINGER;
use crate::proxy::Proxy;
use crate::proxy::context::Counted;
use crate::units::ByteSize;

/// What clients may ask of their connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// The most bytes of one head.
    pub(crate) head_size: usize,
    /// The most fields of one head.
    pub(crate) head_fields: usize,
    /// The longest a head that has begun may take.
    pub(crate) head_time: Duration,
    /// The longest a connection is kept that waits for a request.
    pub(crate) idle: Duration,
    /// The most connections at one time.
    pub(crate) connections: usize,
    /// What the system may keep of an answer that a client is slow to take.
    pub(crate) send_buffer: Option<usize>,
}

impl ConnectionLimits {
    /// Those of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            idle: config.server.keep_alive,
            head_size: limits.max_head_size.to_usize(),
            head_fields: limits.max_headers,
            head_time: limits.header_timeout,
            connections: limits.connections,
            send_buffer: limits.client_send_buffer.map(ByteSize::to_usize),
        }
    }
}

/// What holds for a connection that is opened now.
pub(crate) type CurrentLimits = Box<dyn Fn() -> ConnectionLimits + Send + Sync>;

/// Pingora's HTTP application with every client stream wrapped.
pub(crate) struct Guarded<A> {
    pub(crate) inner: Arc<A>,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) limits: CurrentLimits,
    pub(crate) refusals: Refusals,
    /// Ends connections that wait for a request.
    pub(crate) closing: CancellationToken,
}

impl<A: HttpServerApp + Send + Sync + 'static> Guarded<A> {
    /// Wraps the streams given to `inner`, which answers for `proxy`.
    pub(crate) fn new(
        inner: A,
        proxy: Arc<Proxy>,
        limits: CurrentLimits,
        refusals: Refusals,
    ) -> Self {
        let closing = CancellationToken::new();
        Self { inner: Arc::new(inner), proxy, limits, refusals, closing }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for Guarded<A> {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = Counted::new(&self.proxy.connections);
        let limits = (self.limits)();
        let port = self.proxy.ports.of(&stream)?;
        if open.count() > limits.connections {
            let over = open.count() - limits.connections;
            let generation = self.proxy.generation();
            let trusted = &generation.config.server.trusted_proxies;
            // Boxed: there may be a handshake in it, and nobody else need carry room for one.
            Box::pin(self.refusals.turn_away(stream, (port, trusted), over)).await;
            return None;
        }
        if let Some(bytes) = limits.send_buffer
            && let Err(error) = set_snd_buf(stream.id(), bytes)
        {
            tracing::debug!(%error, "a client's send buffer stays as it is");
        }
        if port.is_plain() {
            let origin = Origin { peer: port.peer(&stream), is_tls: false };
            let ahead = BytesMut::new();
            let distrusted = None;
            let welcomed = Welcomed { stream, ahead, origin, is_http2: false, distrusted };
            return self.serve_http1(welcomed, limits, shutdown).await;
        }
        // Boxed: a handshake is large, and plain connections need not carry room for one.
        Box::pin(self.serve_welcomed(stream, (port, limits), shutdown)).await
    }

    async fn cleanup(&self) {
        // A client that has just connected, or is about to use its connection again, is answered;
        // only what stays silent is closed.
        tokio::time::sleep(LINGER).await;
        self.closing.cancel();
        self.inner.cleanup().await;
    }
}
