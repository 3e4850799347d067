//! The application behind every data listener: enforces the connection limit, brings a connection
//! to HTTP, and has each request served: by the host over HTTP/1, by a Pingora HTTP application
//! over HTTP/2.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use penstock_api::ErrorCode;
use penstock_core::routing::Generation;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::l4::ext::set_snd_buf;
use pingora::server::ShutdownWatch;
use tokio_util::sync::CancellationToken;

use super::clients::{Clients, CloseReason};
use super::connection_limit::{ConnectionLimit, Excess};
use super::counted::Counted;
use super::http1::{GuardedStream, HeadWait, Http1Connection, IDLE_GRACE};
use super::http2;
use super::limits::ConnectionLimits;
use super::listener::{AcceptError, AcceptedConnection, Port};
use super::origin::Origin;
use super::prefixed_stream::PrefixedStream;

/// The program behind the acceptor.
#[async_trait]
pub(crate) trait Host: Send + Sync + 'static {
    /// Returns the configuration in force. Called for each connection, because a reload may have
    /// changed it.
    fn generation(&self) -> Arc<Generation>;

    /// Records a refused connection with its reason, and the client's address if it is known.
    fn refused(&self, code: ErrorCode, client: Option<IpAddr>);

    /// Serves the request whose `head` has been read from a connection of HTTP/1; returns the
    /// connection if another request may follow.
    async fn serve(
        &self,
        stream: Stream,
        head: BytesMut,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream>;
}

/// Serves client connections with an HTTP application.
pub(crate) struct Acceptor<A, H> {
    app: Arc<A>,
    clients: Arc<Clients>,
    host: Arc<H>,
    connection_limit: ConnectionLimit,
    /// Cancelled to close connections that wait for a request.
    closing: CancellationToken,
}

impl<A: HttpServerApp + Send + Sync + 'static, H: Host> Acceptor<A, H> {
    /// Serves the connections of `clients` with `app`.
    pub(crate) fn new(app: A, clients: Arc<Clients>, host: Arc<H>) -> Self {
        let connection_limit = ConnectionLimit::new();
        let closing = CancellationToken::new();
        Self { app: Arc::new(app), clients, host, connection_limit, closing }
    }

    /// Serves one request after the other. Pingora's session is created when a head has arrived: it
    /// takes tens of kilobytes, and a connection may be idle for long.
    async fn serve_http1(
        &self,
        mut accepted: AcceptedConnection,
        limits: ConnectionLimits,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let ca_revoked = accepted.ca_revoked.take();
        let client = Http1Connection::new(accepted, limits.head);
        let mut stream: Stream = Box::new(GuardedStream::new(&client));
        let closing = pin!(self.closing.cancelled());
        let idle = pin!(tokio::time::sleep(limits.idle_timeout));
        let mut wait = HeadWait::new(closing, idle, limits.idle_timeout);
        wait.end_with(ca_revoked);
        while let Some(head) = wait.next_head(&client).await {
            stream = self.host.serve(stream, head, shutdown).await?;
        }
        if wait.is_ca_revoked() {
            self.clients.close_reasons.note(CloseReason::CaRevoked);
        }
        None
    }

    /// Serves a connection that may start with a PROXY header, TLS or HTTP/2.
    async fn negotiate(
        &self,
        stream: Stream,
        port: &Port,
        generation: Arc<Generation>,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let limits = ConnectionLimits::of(&generation.config);
        let trusted = &generation.config.server.trusted_proxies;
        let accepted = match port.accept(stream, trusted, limits.head.timeout).await {
            Ok(accepted) => accepted,
            Err(error) => {
                self.note_failure(error);
                return None;
            }
        };
        if !accepted.is_http2 {
            // A connection may outlive many reloads, and must not keep its first generation alive.
            drop(generation);
            return self.serve_http1(accepted, limits, shutdown).await;
        }
        let settings = http2::Settings::of(&generation.config);
        drop(generation);
        let AcceptedConnection { stream, ahead, origin, ca_revoked, certificate, .. } = accepted;
        let connection = http2::ClientConnection {
            app: Arc::clone(&self.app),
            clients: Arc::clone(&self.clients),
            settings,
            origin,
            ca_revoked,
            certificate,
        };
        connection.serve(PrefixedStream { ahead, stream }, shutdown).await;
        None
    }

    fn note_failure(&self, error: AcceptError) {
        let reason = match error {
            AcceptError::Closed => return,
            AcceptError::TimedOut => CloseReason::TooSlow,
            AcceptError::ProxyHeader => CloseReason::ProxyHeader,
            AcceptError::Tls => CloseReason::Tls,
        };
        self.clients.close_reasons.note(reason);
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static, H: Host> ServerApp for Acceptor<A, H> {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        // Counted before the comparison: connections that arrive together must not all pass.
        let open = Counted::new(&self.clients.connections);
        let generation = self.host.generation();
        let limits = ConnectionLimits::of(&generation.config);
        let port = self.clients.ports.of(&stream)?;
        let affordable = self.clients.affordable();
        let excess = open.count().saturating_sub(limits.max_connections.min(affordable));
        if excess > 0 {
            let reason = match affordable < limits.max_connections {
                true => Excess::OfOpenFiles(excess),
                false => Excess::OfConnections(excess),
            };
            let trusted = &generation.config.server.trusted_proxies;
            // A connection that is closed without a response counts as well.
            self.host.refused(reason.code(), port.peer(&stream).address());
            // Boxed: it may contain a handshake, which is large; other connections need no room for
            // it.
            Box::pin(self.connection_limit.refuse(stream, port, trusted, reason)).await;
            return None;
        }
        if let Some(bytes) = limits.send_buffer
            && let Err(error) = set_snd_buf(stream.id(), bytes)
        {
            tracing::debug!(%error, "cannot set a client's send buffer");
        }
        if port.is_plain() {
            drop(generation);
            let origin = Origin { peer: port.peer(&stream), is_tls: false };
            let accepted = AcceptedConnection::plain(stream, origin);
            return self.serve_http1(accepted, limits, shutdown).await;
        }
        // Boxed: a handshake is large, and plain connections need no room for one.
        Box::pin(self.negotiate(stream, port, generation, shutdown)).await
    }

    async fn cleanup(&self) {
        // A client that has just connected, or is about to reuse its connection, still gets a
        // response; only silent connections are closed.
        tokio::time::sleep(IDLE_GRACE).await;
        self.closing.cancel();
        self.app.cleanup().await;
    }
}
