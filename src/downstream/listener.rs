//! What happens on a new connection before HTTP is spoken: whose it is (PROXY header), TLS, and
//! which version of HTTP it will be. All of it under one deadline.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as SocketStream;
use pingora::protocols::{ALPN, Ssl, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::http1::put_ahead;
use super::origin::{Origin, Peer};
use super::proxy_protocol;
use super::proxy_protocol::Header;
use crate::config::{ListenAddress, Listener, TrustedProxy};
use crate::tls::{ServerTls, TlsError};

/// What a client says first that begins with HTTP/2 (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FIRST_READ: usize = 4096;

/// A listener, as far as its connections are concerned.
#[derive(Debug)]
pub(crate) struct Port {
    address: ListenAddress,
    tls: Option<Arc<ServerTls>>,
    http2: bool,
    proxy_protocol: bool,
}

/// Every listener of the data plane.
#[derive(Debug)]
pub(crate) struct Ports(Box<[Port]>);

/// A connection that is ready for HTTP.
pub(crate) struct Welcomed {
    pub(crate) stream: Stream,
    /// Bytes read already.
    pub(crate) ahead: BytesMut,
    pub(crate) origin: Origin,
    pub(crate) is_http2: bool,
    /// Cancelled once the certificate its client has shown is worth nothing any more.
    pub(crate) distrusted: Option<CancellationToken>,
}

/// Why a connection was closed before HTTP was spoken on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwelcome {
    /// It closed, or said nothing.
    Silent,
    /// It took too long.
    TooSlow,
    /// It should have begun with a PROXY header of a proxy that is trusted.
    ProxyHeader,
    /// The TLS handshake failed.
    Tls,
}

impl Ports {
    /// Reads the certificates of `listeners`.
    pub(crate) fn open(listeners: &[Listener]) -> Result<Self, TlsError> {
        listeners.iter().map(Port::open).collect::<Result<_, _>>().map(Self)
    }

    /// The port a connection came in at.
    pub(crate) fn of(&self, stream: &Stream) -> Option<&Port> {
        if let [only] = &*self.0 {
            return Some(only);
        }
        let digest = stream.get_socket_digest()?;
        let local = digest.local_addr()?;
        if let Some(address) = local.as_inet() {
            let exact = self.0.iter().find(|port| port.address == ListenAddress::Tcp(*address));
            return exact.or_else(|| self.0.iter().find(|port| port.is_everywhere_at(*address)));
        }
        let path = local.as_unix()?.as_pathname()?;
        self.0.iter().find(|port| port.is_at(path))
    }

    /// The TLS of every port that speaks it.
    pub(crate) fn tls(&self) -> impl Iterator<Item = (&ListenAddress, &ServerTls)> {
        self.0.iter().filter_map(|port| Some((&port.address, port.tls.as_deref()?)))
    }
}

impl Port {
    fn open(listener: &Listener) -> Result<Self, TlsError> {
        let http2 = listener.speaks_http2();
        let load = |tls: &crate::config::ListenerTls| ServerTls::load(tls.files(), http2);
        Ok(Self {
            address: listener.address.clone(),
            tls: listener.tls.as_ref().map(load).transpose()?.map(Arc::new),
            http2,
            proxy_protocol: listener.proxy_protocol,
        })
    }

    fn is_everywhere_at(&self, local: SocketAddr) -> bool {
        let ListenAddress::Tcp(own) = self.address else { return false };
        // Port 0 stands for one the system chose.
        own.ip().is_unspecified() && (own.port() == local.port() || own.port() == 0)
    }

    fn is_at(&self, path: &Path) -> bool {
        matches!(&self.address, ListenAddress::Unix(own) if own == path)
    }

    /// Whether connections begin in plain HTTP/1.1, with nothing in front of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none() && !self.http2 && !self.proxy_protocol
    }

    /// Whether bytes can be sent before the client has sent some.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The other end, by the socket's own word.
    pub(crate) fn peer(&self, stream: &Stream) -> Peer {
        if matches!(self.address, ListenAddress::Unix(_)) {
            return Peer::Local;
        }
        let digest = stream.get_socket_digest();
        let address = digest.as_ref().and_then(|digest| digest.peer_addr()?.as_inet().copied());
        address.map_or(Peer::Unknown, |address| Peer::Address(address.ip().to_canonical()))
    }

    /// Takes a connection as far as HTTP, within `limit`.
    pub(crate) async fn welcome(
        &self,
        stream: Stream,
        trusted: &[TrustedProxy],
        limit: Duration,
    ) -> Result<Welcomed, Unwelcome> {
        let welcomed = tokio::time::timeout(limit, self.prepare(stream, trusted)).await;
        welcomed.unwrap_or(Err(Unwelcome::TooSlow))
    }

    async fn prepare(
        &self,
        mut stream: Stream,
        trusted: &[TrustedProxy],
    ) -> Result<Welcomed, Unwelcome> {
        let mut peer = self.peer(&stream);
        let mut ahead = BytesMut::new();
        if self.proxy_protocol {
            if !peer.is_trusted(trusted) {
                return Err(Unwelcome::ProxyHeader);
            }
            if let Some(client) = read_proxy_header(&mut stream, &mut ahead).await? {
                peer = client;
            }
        }
        let mut distrusted = None;
        if let Some(tls) = &self.tls {
            (stream, distrusted) = shake_hands(stream, &ahead, tls).await?;
            ahead.clear();
        }
        let origin = Origin { peer, is_tls: self.tls.is_some() };
        let is_http2 = match (self.http2, &self.tls) {
            (false, _) => false,
            (true, Some(_)) => stream.selected_alpn_proto() == Some(ALPN::H2),
            (true, None) => begins_with_http2(&mut stream, &mut ahead).await?,
        };
        Ok(Welcomed { stream, ahead, origin, is_http2, distrusted })
    }
}

async fn read_more(stream: &mut Stream, ahead: &mut BytesMut) -> Result<(), Unwelcome> {
    ahead.reserve(FIRST_READ);
    match stream.read_buf(ahead).await {
        Ok(1..) => Ok(()),
        Ok(0) | Err(_) => Err(Unwelcome::Silent),
    }
}

/// Takes the PROXY header off; `None` where it speaks of no client.
async fn read_proxy_header(
    stream: &mut Stream,
    ahead: &mut BytesMut,
) -> Result<Option<Peer>, Unwelcome> {
    loop {
        read_more(stream, ahead).await?;
        match proxy_protocol::parse(ahead) {
            Ok(Header::Partial) => {}
            Ok(Header::Complete { length, client }) => {
                ahead.advance(length);
                return Ok(client.map(|address| Peer::Address(address.to_canonical())));
            }
            Err(_no_header) => return Err(Unwelcome::ProxyHeader),
        }
    }
}

async fn shake_hands(
    stream: Stream,
    ahead: &[u8],
    tls: &ServerTls,
) -> Result<(Stream, Option<CancellationToken>), Unwelcome> {
    let mut socket = to_socket(stream).ok_or(Unwelcome::Tls)?;
    socket.rewind(ahead);
    let (config, distrusted) = tls.config();
    let acceptor = Acceptor::from_server_config(config);
    match acceptor.tls_handshake(*socket).await {
        Ok(stream) => {
            let about = stream.get_ssl_digest();
            let has_shown_one = about.is_some_and(|digest| !digest.cert_digest.is_empty());
            Ok((Box::new(stream), distrusted.filter(|_| has_shown_one)))
        }
        Err(error) => {
            tracing::debug!(%error, "a TLS handshake failed");
            Err(Unwelcome::Tls)
        }
    }
}

/// The socket below a stream that is nothing but one.
fn to_socket(stream: Stream) -> Option<Box<SocketStream>> {
    stream.into_any().downcast().ok()
}

/// Whether the client begins with HTTP/2; nothing is taken off.
async fn begins_with_http2(stream: &mut Stream, ahead: &mut BytesMut) -> Result<bool, Unwelcome> {
    loop {
        let common = ahead.len().min(PREFACE.len());
        if ahead.get(..common) != PREFACE.get(..common) {
            return Ok(false);
        }
        if common == PREFACE.len() {
            return Ok(true);
        }
        read_more(stream, ahead).await?;
    }
}

/// A stream with bytes in front that were read from it already.
pub(crate) struct Rejoined {
    pub(crate) ahead: BytesMut,
    pub(crate) stream: Stream,
}

impl AsyncRead for Rejoined {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        put_ahead(&mut self.ahead, out);
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Rejoined {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
