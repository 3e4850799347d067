//! The steps from a socket to HTTP: the PROXY header, the TLS handshake, and the choice of the HTTP
//! version, all within one timeout.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use penstock_config::tls::TlsError;
use penstock_config::{ListenAddress, Listener, TrustedProxy};
use pingora::listeners::tls::Acceptor;
use pingora::protocols::{ALPN, Ssl, Stream};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use super::certificate::CertificateNames;
use super::origin::{Origin, Peer};
use super::port_tls::{HandshakeTerms, PortTls};
use super::proxy_protocol;
use super::proxy_protocol::Header;
use crate::upstream::connect::to_socket;
use crate::wire::HTTP2_PREFACE;

const FIRST_READ: usize = 4096;

/// One listener of the data plane.
#[derive(Debug)]
pub(crate) struct Port {
    address: ListenAddress,
    tls: Option<PortTls>,
    http2: bool,
    proxy_protocol: bool,
}

/// Every listener of the data plane.
#[derive(Debug)]
pub(crate) struct Ports(Box<[Port]>);

/// The reason why a connection was closed before HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptError {
    /// The client closed it, or sent nothing.
    Closed,
    TimedOut,
    /// The PROXY header was missing or malformed, or its sender is not a trusted proxy.
    ProxyHeader,
    /// The TLS handshake failed.
    Tls,
}

impl Ports {
    /// Reads the certificates of `listeners`.
    pub(crate) fn open(listeners: &[Listener]) -> Result<Self, TlsError> {
        listeners.iter().map(Port::open).collect::<Result<_, _>>().map(Self)
    }

    /// The port that accepted a connection.
    pub(crate) fn of(&self, stream: &Stream) -> Option<&Port> {
        if let [only] = &*self.0 {
            return Some(only);
        }
        let digest = stream.get_socket_digest()?;
        let local = digest.local_addr()?;
        if let Some(address) = local.as_inet() {
            let exact = self.0.iter().find(|port| port.address == ListenAddress::Tcp(*address));
            return exact.or_else(|| self.0.iter().find(|port| port.is_wildcard_of(*address)));
        }
        let path = local.as_unix()?.as_pathname()?;
        self.0.iter().find(|port| port.is_at(path))
    }

    /// The TLS of every port that has it.
    pub(crate) fn tls(&self) -> impl Iterator<Item = (&ListenAddress, &PortTls)> {
        self.0.iter().filter_map(|port| Some((&port.address, port.tls.as_ref()?)))
    }
}

impl Port {
    fn open(listener: &Listener) -> Result<Self, TlsError> {
        let http2 = listener.speaks_http2();
        let tls = match &listener.tls {
            Some(tls) => Some(PortTls::load(tls.files(), http2)?),
            None => None,
        };
        Ok(Self {
            address: listener.address.clone(),
            tls,
            http2,
            proxy_protocol: listener.proxy_protocol,
        })
    }

    /// Returns whether the port listens on every address of the machine, and so on `local`.
    fn is_wildcard_of(&self, local: SocketAddr) -> bool {
        let ListenAddress::Tcp(own) = self.address else { return false };
        // Port 0 stands for one that the system chose.
        own.ip().is_unspecified() && (own.port() == local.port() || own.port() == 0)
    }

    fn is_at(&self, path: &Path) -> bool {
        matches!(&self.address, ListenAddress::Unix(own) if own == path)
    }

    /// Returns whether a connection starts with HTTP/1.1.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none() && !self.http2 && !self.proxy_protocol
    }

    /// Returns whether its connections use TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The peer of the socket.
    pub(crate) fn peer(&self, stream: &Stream) -> Peer {
        if matches!(self.address, ListenAddress::Unix(_)) {
            return Peer::Local;
        }
        let digest = stream.get_socket_digest();
        let address = digest.as_ref().and_then(|digest| digest.peer_addr()?.as_inet().copied());
        // An IPv6 socket reports a mapped address, which no rule for IPv4 would match.
        address.map_or(Peer::Unknown, |address| Peer::Address(address.ip().to_canonical()))
    }

    /// Reads and negotiates everything before HTTP, within `timeout`.
    pub(crate) async fn accept(
        &self,
        stream: Stream,
        trusted: &[TrustedProxy],
        timeout: Duration,
    ) -> Result<AcceptedConnection, AcceptError> {
        let accepted = tokio::time::timeout(timeout, self.negotiate(stream, trusted)).await;
        accepted.unwrap_or(Err(AcceptError::TimedOut))
    }

    async fn negotiate(
        &self,
        mut stream: Stream,
        trusted: &[TrustedProxy],
    ) -> Result<AcceptedConnection, AcceptError> {
        let mut peer = self.peer(&stream);
        let mut ahead = BytesMut::new();
        if self.proxy_protocol {
            // Any client that may connect could claim any address.
            if !peer.is_trusted(trusted) {
                return Err(AcceptError::ProxyHeader);
            }
            if let Some(client) = read_proxy_header(&mut stream, &mut ahead).await? {
                peer = client;
            }
        }
        let (mut ca_revoked, mut certificate) = (None, None);
        if let Some(tls) = &self.tls {
            let encrypted = handshake(stream, &ahead, tls).await?;
            certificate = CertificateNames::of(&*encrypted.stream);
            (stream, ca_revoked) = (encrypted.stream, encrypted.ca_revoked);
            ahead.clear();
        }
        let origin = Origin { peer, is_tls: self.tls.is_some() };
        let is_http2 = match (self.http2, &self.tls) {
            (false, _) => false,
            (true, Some(_)) => stream.selected_alpn_proto() == Some(ALPN::H2),
            // Without ALPN, HTTP/2 starts by prior knowledge (RFC 9113 §3.3).
            (true, None) => starts_with_http2(&mut stream, &mut ahead).await?,
        };
        Ok(AcceptedConnection { stream, ahead, origin, is_http2, ca_revoked, certificate })
    }
}

async fn read_more(stream: &mut Stream, ahead: &mut BytesMut) -> Result<(), AcceptError> {
    ahead.reserve(FIRST_READ);
    match stream.read_buf(ahead).await {
        Ok(1..) => Ok(()),
        Ok(0) | Err(_) => Err(AcceptError::Closed),
    }
}

/// Takes the PROXY header off `ahead`; `None` if it names no client.
async fn read_proxy_header(
    stream: &mut Stream,
    ahead: &mut BytesMut,
) -> Result<Option<Peer>, AcceptError> {
    loop {
        read_more(stream, ahead).await?;
        match proxy_protocol::parse(ahead) {
            Ok(Header::Partial) => {}
            Ok(Header::Complete { length, client }) => {
                ahead.advance(length);
                return Ok(client.map(|address| Peer::Address(address.to_canonical())));
            }
            Err(_malformed) => return Err(AcceptError::ProxyHeader),
        }
    }
}

struct Encrypted {
    stream: Stream,
    /// Cancelled when a reload removes the client's CA; `None` without a client certificate.
    ca_revoked: Option<CancellationToken>,
}

async fn handshake(stream: Stream, ahead: &[u8], tls: &PortTls) -> Result<Encrypted, AcceptError> {
    let mut socket = to_socket(stream).ok_or(AcceptError::Tls)?;
    // Bytes behind the PROXY header were read along with it: they start the handshake.
    socket.rewind(ahead);
    let HandshakeTerms { config, ca_revoked } = tls.for_handshake();
    let acceptor = Acceptor::from_server_config(config);
    match acceptor.tls_handshake(*socket).await {
        Ok(stream) => {
            let digest = stream.get_ssl_digest();
            let has_certificate = digest.is_some_and(|digest| !digest.cert_digest.is_empty());
            let ca_revoked = has_certificate.then_some(ca_revoked);
            Ok(Encrypted { stream: Box::new(stream), ca_revoked })
        }
        Err(error) => {
            tracing::debug!(%error, "TLS handshake with a client failed");
            Err(AcceptError::Tls)
        }
    }
}

/// Returns whether the client starts with HTTP/2; the bytes read stay in `ahead`.
async fn starts_with_http2(stream: &mut Stream, ahead: &mut BytesMut) -> Result<bool, AcceptError> {
    loop {
        let common = ahead.len().min(HTTP2_PREFACE.len());
        if ahead.get(..common) != HTTP2_PREFACE.get(..common) {
            return Ok(false);
        }
        if common == HTTP2_PREFACE.len() {
            return Ok(true);
        }
        read_more(stream, ahead).await?;
    }
}

/// A client connection that is ready for HTTP: PROXY header read, TLS established, protocol known.
/// The client's next byte belongs to HTTP.
pub(crate) struct AcceptedConnection {
    pub(crate) stream: Stream,
    /// Bytes already read from `stream`; they precede the bytes that it still holds.
    pub(crate) ahead: BytesMut,
    pub(crate) origin: Origin,
    pub(crate) is_http2: bool,
    /// Cancelled when a reload removes a CA that the client's certificate may depend on; `None` if
    /// the client presented no certificate.
    pub(crate) ca_revoked: Option<CancellationToken>,
    /// The names of the client's verified certificate.
    pub(crate) certificate: Option<Arc<CertificateNames>>,
}

impl AcceptedConnection {
    /// A plain HTTP/1.1 connection before its first byte is read.
    pub(crate) fn plain(stream: Stream, origin: Origin) -> Self {
        Self {
            stream,
            ahead: BytesMut::new(),
            origin,
            is_http2: false,
            ca_revoked: None,
            certificate: None,
        }
    }
}
