//! Connections to backends, for attempts and for probes alike: TCP by Pingora's connector, TLS by
//! the backend's own settings, and HTTP/2 where it is asked for, which then looks like a connection
//! of its own for each request.

use std::net::SocketAddr;
use std::time::Duration;

use pingora::ErrorType;
use pingora::connectors::TransportConnector;
use pingora::protocols::l4::stream::Stream as SocketStream;
use pingora::protocols::tls::client::handshake;
use pingora::protocols::{ALPN, Stream};
use pingora::upstreams::peer::HttpPeer;
use tokio_rustls::TlsConnector;

use super::http2::Links;
use crate::clock::now;
use crate::fleet::Backend;
use crate::tls::ClientTls;
use crate::units::Timestamp;

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
        let until = now().after(timeout);
        let connecting = async {
            if !backend.config.http2 {
                return self.open(backend, until).await;
            }
            if let Some(stream) = self.links.take(backend) {
                return Ok(stream);
            }
            let wire = self.open(backend, until).await?;
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
        self.reach(backend, Some(port), now().after(timeout)).await
    }

    /// Uses connections over HTTP/2 by this limit from now on.
    pub(crate) fn follow(&self, idle_timeout: Duration) {
        self.links.follow(idle_timeout);
    }

    /// Closes connections over HTTP/2 that have been idle too long.
    pub(crate) fn sweep(&self) {
        self.links.sweep();
    }

    async fn open(&self, backend: &Backend, until: Timestamp) -> Result<Stream, DialError> {
        let stream = self.reach(backend, None, until).await?;
        match (backend.config.url.https, &backend.tls) {
            (false, _) => Ok(stream),
            (true, Some(tls)) => secure(stream, tls).await,
            (true, None) => Err(DialError::Tls),
        }
    }

    /// Connects to the first of the backend's addresses that takes a connection, at its own port or
    /// another. Each gets its part of the time that is left, so that one that swallows packets leaves
    /// some to the others.
    async fn reach(
        &self,
        backend: &Backend,
        port: Option<u16>,
        until: Timestamp,
    ) -> Result<Stream, DialError> {
        let addresses = backend.state.addresses.in_turn();
        let mut failed = DialError::NoAddress;
        for (index, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let part = until.since(now()) / left;
            let mut to = *address;
            to.set_port(port.unwrap_or(to.port()));
            let connected = tokio::time::timeout(part, self.open_socket(backend, to)).await;
            failed = match connected.unwrap_or(Err(DialError::TimedOut)) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // Another port says nothing about the one requests go to.
            if port.is_none() {
                backend.state.addresses.note_failure(*address);
            }
        }
        Err(failed)
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;

    use socket2::{Domain, Socket, Type};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{Config, Environment};
    use crate::fleet::Fleet;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn backend_at(addresses: &[SocketAddr]) -> Backend {
        let yaml = "backends: [{ url: 'http://engines.test:8000', engine: vllm }]";
        let config = Config::parse(yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        backend.state.addresses.publish(addresses.to_vec());
        backend
    }

    /// An address nobody listens on.
    async fn closed() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    async fn took(dialer: &Dialer, backend: &Backend) -> Duration {
        let started = now();
        let connected = dialer.connect(backend, PATIENCE).await;
        assert!(connected.is_ok(), "{:?}", connected.err());
        now().since(started)
    }

    #[tokio::test]
    async fn the_other_addresses_of_a_name_are_tried_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let backend = backend_at(&[closed().await, open, closed().await]);
        let dialer = Dialer::new(Duration::ZERO);
        for _ in 0..6 {
            took(&dialer, &backend).await;
            listener.accept().await.unwrap();
        }
        let nobody = backend_at(&[closed().await, closed().await]);
        assert_eq!(dialer.connect(&nobody, PATIENCE).await.err(), Some(DialError::Refused));
        assert_eq!(
            dialer.connect(&backend_at(&[]), PATIENCE).await.err(),
            Some(DialError::NoAddress)
        );
    }

    #[tokio::test]
    async fn one_that_swallows_packets_leaves_time_for_the_others_and_comes_last_then() {
        // A queue of connections that is full: who connects waits.
        let hole = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        hole.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        hole.listen(0).unwrap();
        let full = hole.local_addr().unwrap().as_socket().unwrap();
        let patience = Duration::from_millis(100);
        let queue = || std::net::TcpStream::connect_timeout(&full, patience).ok();
        let queued: Vec<_> = std::iter::from_fn(queue).take(16).collect();
        assert!(queued.len() < 16, "the queue does not fill");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = backend_at(&[full, listener.local_addr().unwrap()]);
        let dialer = Dialer::new(Duration::ZERO);
        let first = took(&dialer, &backend).await;
        assert!(first >= PATIENCE / 2 && first < PATIENCE, "{first:?}");
        for _ in 0..4 {
            let next = took(&dialer, &backend).await;
            assert!(next < PATIENCE / 2, "{next:?}: it is asked last now");
        }
        let alone = backend_at(&[full]);
        assert_eq!(dialer.connect(&alone, patience).await.err(), Some(DialError::TimedOut));
    }
}
