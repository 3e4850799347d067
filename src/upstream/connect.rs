//! Opens connections to backends, for attempts, health checks and scrapes alike: TCP by Pingora's
//! connector, TLS by the backend's own settings, and HTTP/2 where it is configured. An HTTP/2
//! stream then looks like a separate connection per request (`http2/stream.rs`).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_config::tls::ClientTls;
use penstock_core::fleet::Backend;
use pingora::ErrorType;
use pingora::connectors::TransportConnector;
use pingora::protocols::l4::stream::Stream as SocketStream;
use pingora::protocols::tls::client::handshake;
use pingora::protocols::{ALPN, Stream};
use pingora::upstreams::peer::HttpPeer;
use tokio_rustls::TlsConnector;

use super::failure::ConnectError;
use super::http2::Http2Connections;
use super::shortage::Shortage;

/// Opens connections to backends.
pub(crate) struct Connector {
    tcp: TransportConnector,
    http2: Http2Connections,
}

impl Connector {
    /// A connector that closes HTTP/2 connections after they were idle for `idle_timeout`.
    pub(crate) fn new(idle_timeout: Duration) -> Self {
        Self { tcp: TransportConnector::new(None), http2: Http2Connections::new(idle_timeout) }
    }

    /// Opens a connection for one request or more; over HTTP/2 for exactly one.
    pub(crate) async fn connect(
        &self,
        backend: &Backend,
        timeout: Duration,
    ) -> Result<Stream, ConnectError> {
        let until = now().after(timeout);
        let connected = tokio::time::timeout(timeout, self.connect_until(backend, until)).await;
        let connected = connected.unwrap_or(Err(ConnectError::TimedOut));
        if let Err(error) = connected {
            tracing::debug!(backend = %backend.state.name, reason = error.text(), "connect failed");
        }
        connected
    }

    async fn connect_until(
        &self,
        backend: &Backend,
        until: Timestamp,
    ) -> Result<Stream, ConnectError> {
        if !backend.config.http2 {
            return self.open(backend, until).await;
        }
        if let Some(stream) = self.http2.open_stream(backend) {
            return Ok(stream);
        }
        // Read before the connect: if the addresses change meanwhile, it must count as old.
        let epoch = backend.state.addresses.epoch();
        let transport = self.open(backend, until).await?;
        // In plain text `http2: true` is the prior knowledge of RFC 9113 §3.3; TLS agrees by ALPN.
        if backend.config.url.https && transport.selected_alpn_proto() != Some(ALPN::H2) {
            return Err(ConnectError::Http2);
        }
        self.http2.start(backend, epoch, transport).await
    }

    /// Opens a connection to another port of a backend, without TLS.
    pub(crate) async fn connect_plain(
        &self,
        backend: &Backend,
        port: u16,
        timeout: Duration,
    ) -> Result<Stream, ConnectError> {
        self.reach(backend, Some(port), now().after(timeout)).await
    }

    /// Sets the time after which idle HTTP/2 connections are closed.
    pub(crate) fn set_idle_timeout(&self, idle_timeout: Duration) {
        self.http2.set_idle_timeout(idle_timeout);
    }

    /// Closes HTTP/2 connections past the idle timeout.
    pub(crate) fn sweep(&self) {
        self.http2.sweep();
    }

    async fn open(&self, backend: &Backend, until: Timestamp) -> Result<Stream, ConnectError> {
        let stream = self.reach(backend, None, until).await?;
        match (backend.config.url.https, &backend.tls) {
            (false, _) => Ok(stream),
            (true, Some(tls)) => secure(stream, tls).await,
            (true, None) => Err(ConnectError::Tls),
        }
    }

    /// Connects to the first of the backend's addresses that accepts, at its own port or another.
    /// Each address gets an equal part of the remaining time, so that one that drops packets does
    /// not use up the time of the others.
    async fn reach(
        &self,
        backend: &Backend,
        port: Option<u16>,
        until: Timestamp,
    ) -> Result<Stream, ConnectError> {
        let addresses = backend.state.addresses.in_turn();
        let mut failed = ConnectError::NoAddress;
        for (index, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let part = until.since(now()) / left;
            let mut to = *address;
            to.set_port(port.unwrap_or(to.port()));
            let connected = tokio::time::timeout(part, self.open_socket(backend, to)).await;
            failed = match connected.unwrap_or(Err(ConnectError::TimedOut)) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            tracing::debug!(
                backend = %backend.state.name,
                address = %to,
                reason = failed.text(),
                "cannot connect"
            );
            // Another port says nothing about the port of requests, and a shortage here says
            // nothing about the backend.
            if port.is_none() && !matches!(failed, ConnectError::OutOf(_)) {
                backend.state.addresses.note_failure(*address);
            }
        }
        Err(failed)
    }

    // Without Pingora's TLS: it would build its settings again for every connection.
    async fn open_socket(
        &self,
        backend: &Backend,
        address: SocketAddr,
    ) -> Result<Stream, ConnectError> {
        let peer = HttpPeer::new(address, false, backend.config.url.host.clone());
        let connected = self.tcp.new_stream(&peer).await;
        connected.map_err(|error| {
            let cause = error.root_cause().downcast_ref::<io::Error>();
            match (cause.and_then(Shortage::of), error.etype()) {
                (Some(shortage), _) => {
                    shortage.log();
                    ConnectError::OutOf(shortage)
                }
                (None, ErrorType::ConnectTimedout) => ConnectError::TimedOut,
                (None, _) => ConnectError::Refused,
            }
        })
    }
}

async fn secure(stream: Stream, tls: &ClientTls) -> Result<Stream, ConnectError> {
    let socket = to_socket(stream).ok_or(ConnectError::Tls)?;
    let connector = TlsConnector::from(tls.config());
    match handshake(&connector, tls.server_name(), *socket).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            tracing::debug!(%error, "TLS handshake with a backend failed");
            Err(ConnectError::Tls)
        }
    }
}

/// The socket of a stream that is a plain socket.
pub(crate) fn to_socket(stream: Stream) -> Option<Box<SocketStream>> {
    stream.into_any().downcast().ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;

    use socket2::{Domain, Socket, Type};
    use tokio::net::TcpListener;

    use super::*;
    use penstock_config::{Config, Environment};
    use penstock_core::fleet::Fleet;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn backend_at(addresses: &[SocketAddr]) -> Backend {
        let yaml = "backends: [{ url: 'http://engines.test:8000', engine: vllm }]";
        let config = Config::parse(yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        backend.state.addresses.publish(addresses.to_vec());
        backend
    }

    /// An address without a listener.
    async fn closed() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    async fn took(connector: &Connector, backend: &Backend) -> Duration {
        let started = now();
        let connected = connector.connect(backend, PATIENCE).await;
        assert!(connected.is_ok(), "{:?}", connected.err());
        now().since(started)
    }

    #[tokio::test]
    async fn connect_tries_every_address_of_a_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let backend = backend_at(&[closed().await, open, closed().await]);
        let connector = Connector::new(Duration::ZERO);
        for _ in 0..6 {
            took(&connector, &backend).await;
            listener.accept().await.unwrap();
        }
        let unreachable = backend_at(&[closed().await, closed().await]);
        assert_eq!(
            connector.connect(&unreachable, PATIENCE).await.err(),
            Some(ConnectError::Refused)
        );
        assert_eq!(
            connector.connect(&backend_at(&[]), PATIENCE).await.err(),
            Some(ConnectError::NoAddress)
        );
    }

    /// Accepts one HTTP/2 connection.
    async fn serve(listener: &TcpListener) {
        let (socket, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(socket).await.unwrap();
        tokio::spawn(async move { while connection.accept().await.is_some() {} });
    }

    #[tokio::test]
    async fn http2_connection_to_an_old_address_takes_no_new_request() {
        let yaml = "backends: [{ url: 'http://engines.test:8000', engine: vllm, http2: true }]";
        let config = Config::parse(yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        let listen = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
        let (old, new) = (listen().await, listen().await);
        let address = |listener: &TcpListener| vec![listener.local_addr().unwrap()];
        let connector = Connector::new(PATIENCE);
        backend.state.addresses.publish(address(&old));
        let (first, ()) = tokio::join!(connector.connect(&backend, PATIENCE), serve(&old));
        assert!(first.is_ok());
        assert!(connector.http2.open_stream(&backend).is_some(), "requests share a connection");
        backend.state.addresses.publish(address(&new));
        assert!(connector.http2.open_stream(&backend).is_none(), "it leads to the old address");
        let (second, ()) = tokio::join!(connector.connect(&backend, PATIENCE), serve(&new));
        assert!(second.is_ok());
        assert!(connector.http2.open_stream(&backend).is_some());
    }

    #[tokio::test]
    async fn unresponsive_address_leaves_time_for_the_others_and_is_tried_last() {
        // A listener with a full accept queue: connects hang.
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
        let connector = Connector::new(Duration::ZERO);
        let first = took(&connector, &backend).await;
        assert!(first >= PATIENCE / 2 && first < PATIENCE, "{first:?}");
        for _ in 0..4 {
            let next = took(&connector, &backend).await;
            assert!(next < PATIENCE / 2, "{next:?}: the hanging address is tried last now");
        }
        let alone = backend_at(&[full]);
        assert_eq!(connector.connect(&alone, patience).await.err(), Some(ConnectError::TimedOut));
    }
}
