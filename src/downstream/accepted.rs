//! A client connection that is ready for HTTP: PROXY header read, TLS established, protocol known.

use std::sync::Arc;

use bytes::BytesMut;
use pingora::protocols::Stream;
use tokio_util::sync::CancellationToken;

use super::certificate::CertificateNames;
use super::origin::Origin;

/// A connection on which the client's next byte belongs to HTTP.
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
