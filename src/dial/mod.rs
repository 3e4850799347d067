//! Connections to backends, for attempts and for probes alike: TCP by Pingora's connector, TLS by
//! the backend's own settings, and HTTP/2 where it is asked for, which then looks like a connection
//! of its own for each request.

mod http2;
mod http2_stream;

pub(crate) use http2_stream::Http2Stream;

use std::net::SocketAddr;
use std::time::Duration;

use pingora::ErrorType;
use pingora::connectors::TransportConnector;
use pingora::protocols::l4::stream::Stream as SocketStream;
use pingora::protocols::tls::client::handshake;
use pingora::protocols::{ALPN, Stream};
use pingora::upstreams::peer::HttpPeer;
use tokio_rustls::TlsConnector;

use crate::registry::Backend;
use crate::tls::ClientTls;
use http2::Links;

/// Why there is no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The name has not been resolved.
    NoAddress,
    /// Refused or unreachable.
    Refused,
    /// Nothing within the connect timeout.
    TimedOut,
    /// The TLS handshake failed, or its settings cannot be used.
    Tls,
    /// The backend does not speak HTTP/2.
    Http2,
}

impl DialError {
    /// The same in words, without addresses.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NoAddress => "the backend's name does not resolve",
            Self::Refused => "connection refused",
            Self::TimedOut => "connect timed out",
            Self::Tls => "TLS handshake failed",
            Self::Http2 => "the backend does not speak HTTP/2",
        }
    }
}

/// Makes connections to backends.
pub(crate) struct Dialer {
    connector: TransportConnector,
    links: Links,
}

impl Dialer {
    /// A dialer whose connections over HTTP/2 are used as long as they are idle for less than
    /// `idle_timeout`.
    pub(crate) fn new(idle_timeout: Duration) -> Self {
        Self { connector: TransportConnector::new(None), links: Links::new(idle_timeout) }
    }

    /// A connection for one request or more; over HTTP/2 for exactly one.
    pub(crate) async fn connect(
        &self,
        backend: &Backend,
        timeout: Duration,
    ) -> Result<Stream, DialError> {
        let connecting = async {
            if !backend.config.http2 {
                return self.open(backend).await;
            }
            if let Some(stream) = self.links.take(backend) {
                return Ok(stream);
            }
            let wire = self.open(backend).await?;
            if backend.config.url.https && wire.selected_alpn_proto() != Some(ALPN::H2) {
                return Err(DialError::Http2);
            }
            self.links.add(backend, wire).await
        };
        let connected = tokio::time::timeout(timeout, connecting).await;
        let connected = connected.unwrap_or(Err(DialError::TimedOut));
        if let Err(reason) = connected {
            tracing::debug!(backend = %backend.state.name, reason = reason.text(), "no connection");
        }
        connected
    }

    /// A connection to another port of a backend, where no TLS is spoken.
    pub(crate) async fn connect_plain(
        &self,
        backend: &Backend,
        port: u16,
        timeout: Duration,
    ) -> Result<Stream, DialError> {
        let mut address = backend.state.address().ok_or(DialError::NoAddress)?;
        address.set_port(port);
        let connected = tokio::time::timeout(timeout, self.open_socket(backend, address)).await;
        connected.unwrap_or(Err(DialError::TimedOut))
    }

    /// Uses connections over HTTP/2 by this limit from now on.
    pub(crate) fn follow(&self, idle_timeout: Duration) {
        self.links.follow(idle_timeout);
    }

    /// Closes connections over HTTP/2 that have been idle too long.
    pub(crate) fn sweep(&self) {
        self.links.sweep();
    }

    async fn open(&self, backend: &Backend) -> Result<Stream, DialError> {
        let address = backend.state.address().ok_or(DialError::NoAddress)?;
        let stream = self.open_socket(backend, address).await?;
        match (backend.config.url.https, &backend.tls) {
            (false, _) => Ok(stream),
            (true, Some(tls)) => secure(stream, tls).await,
            (true, None) => Err(DialError::Tls),
        }
    }

    // TLS is not Pingora's: it would build its settings anew for every connection.
    async fn open_socket(
        &self,
        backend: &Backend,
        address: SocketAddr,
    ) -> Result<Stream, DialError> {
        let peer = HttpPeer::new(address, false, backend.config.url.host.clone());
        let connected = self.connector.new_stream(&peer).await;
        connected.map_err(|error| match error.etype() {
            ErrorType::ConnectTimedout => DialError::TimedOut,
            _ => DialError::Refused,
        })
    }
}

async fn secure(stream: Stream, tls: &ClientTls) -> Result<Stream, DialError> {
    let socket = to_socket(stream).ok_or(DialError::Tls)?;
    let connector = TlsConnector::from(tls.config());
    match handshake(&connector, tls.server_name(), *socket).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            tracing::debug!(%error, "a TLS handshake with a backend failed");
            Err(DialError::Tls)
        }
    }
}

/// The socket below a stream that is nothing but one.
fn to_socket(stream: Stream) -> Option<Box<SocketStream>> {
    stream.into_any().downcast().ok()
}
