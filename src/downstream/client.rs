//! The client of one request, over either HTTP version: its body is read here, and a disconnect is
//! detected here.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::{HeaderMap, Version, header};
use pingora_proxy::Session;

use super::body::BodyLength;
use super::certificate::CertificateNames;
use super::http1::{GuardedStream, Http1Connection, RefusedHead};
use super::http2::Http2Stream;
use super::origin::Origin;

/// The client of one request.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    Http1(Arc<Http1Connection>),
    /// One stream of a connection.
    Http2(Arc<Http2Stream>),
}

impl Client {
    /// The client of a session, unless the session did not come from one of penstock's listeners.
    pub(crate) fn of(session: &Session) -> Option<Self> {
        if let Some(stream) = session.as_downstream().stream() {
            let guarded = stream.as_ref().as_any().downcast_ref::<GuardedStream>()?;
            return Some(Self::Http1(guarded.connection()));
        }
        let stream = session.req_header().extensions.get::<Arc<Http2Stream>>()?;
        Some(Self::Http2(Arc::clone(stream)))
    }

    /// The connection as a plain stream, after it no longer speaks HTTP; `None` for a stream of
    /// HTTP/2.
    pub(crate) fn upgraded(&self) -> Option<GuardedStream> {
        match self {
            Self::Http1(connection) => Some(GuardedStream::new(connection)),
            Self::Http2(_) => None,
        }
    }

    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::Http1(connection) => connection.origin(),
            Self::Http2(stream) => stream.origin(),
        }
    }

    /// The names of the client's verified certificate, if it has shown one.
    pub(crate) fn certificate(&self) -> Option<&CertificateNames> {
        match self {
            Self::Http1(connection) => connection.certificate(),
            Self::Http2(stream) => stream.certificate(),
        }
        .map(Arc::as_ref)
    }

    /// The reason why the head of the current request was refused, if it was.
    pub(crate) fn refused(&self) -> Option<RefusedHead> {
        match self {
            Self::Http1(connection) => connection.refused(),
            Self::Http2(_) => None,
        }
    }

    /// The framing of the body.
    pub(crate) fn body_length(&self, headers: &HeaderMap) -> BodyLength {
        match self {
            Self::Http1(_) => BodyLength::of(headers),
            // The head of a request without a body ends its stream.
            Self::Http2(stream) if stream.is_body_done() => BodyLength::None,
            Self::Http2(_) => {
                let length = headers.get(header::CONTENT_LENGTH);
                let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
                BodyLength::Framed(length)
            }
        }
    }

    /// Returns whether the connection may carry another request after this one, as far as the
    /// client decides (RFC 9112 §9.3): HTTP/1.1 unless it says `close`, HTTP/1.0 only if it says
    /// `keep-alive`.
    pub(crate) fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
        let says = |option: &[u8]| {
            let fields = headers.get_all(header::CONNECTION).iter();
            let mut options = fields.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
            options.any(|one| one.trim_ascii().eq_ignore_ascii_case(option))
        };
        !says(b"close") && (version != Version::HTTP_10 || says(b"keep-alive"))
    }

    /// Records that the body has been read: the next head may follow.
    pub(crate) fn expect_head(&self) {
        match self {
            Self::Http1(connection) => connection.expect_head(),
            Self::Http2(_) => {}
        }
    }

    /// Takes a body of `total` bytes if it was read along with its head.
    pub(crate) fn take_body(&self, total: usize) -> Option<BytesMut> {
        match self {
            Self::Http1(connection) => connection.take_body(total),
            Self::Http2(_) => None,
        }
    }

    /// Reads up to `limit` bytes of a body to the end of `into`. Zero bytes are the end: of the
    /// body if the protocol frames it, else of the connection.
    pub(crate) fn poll_body(
        &self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Http1(connection) => connection.poll_body(cx, into, limit),
            Self::Http2(stream) => stream.poll_body(cx, into, limit),
        }
    }

    /// Puts back bytes that were read past the end of a body.
    pub(crate) fn unread(&self, bytes: &[u8]) {
        match self {
            Self::Http1(connection) => connection.unread(bytes),
            Self::Http2(_) => debug_assert!(bytes.is_empty(), "frames end where a body ends"),
        }
    }

    /// Frees the buffer kept for the next head.
    pub(crate) fn shrink(&self) {
        match self {
            Self::Http1(connection) => connection.shrink(),
            Self::Http2(_) => {}
        }
    }

    /// Sends bytes that were written to the client and are still buffered.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(connection) => connection.poll_flush(cx),
            // The connection's own task sends frames as soon as its socket takes them.
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// Ready once the client has closed its connection or reset its stream.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Http1(connection) => connection.poll_gone(cx),
            Self::Http2(stream) => stream.poll_gone(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn http10_is_kept_alive_only_on_request() {
        for (version, fields, keeps) in [
            (Version::HTTP_11, &[][..], true),
            (Version::HTTP_11, &["keep-alive"], true),
            (Version::HTTP_11, &["Close"], false),
            (Version::HTTP_11, &["x-private, close"], false),
            (Version::HTTP_10, &[], false),
            (Version::HTTP_10, &["Keep-Alive"], true),
            (Version::HTTP_10, &["x-private", "keep-alive, x-other"], true),
            (Version::HTTP_10, &["keep-alive, close"], false),
            (Version::HTTP_2, &[], true),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(header::CONNECTION, HeaderValue::from_static(field));
            }
            assert_eq!(Client::keeps_alive(version, &headers), keeps, "{version:?} {fields:?}");
        }
    }
}
