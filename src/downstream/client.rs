//! The client of one request, over either HTTP version: its body is read here, and a disconnect is
//! noticed here.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::HeaderMap;
use http::header;
use pingora_proxy::Session;

use super::body::BodyLength;
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
    /// The client of a session, unless the session did not come from one of our listeners.
    pub(crate) fn of(session: &Session) -> Option<Self> {
        if let Some(stream) = session.as_downstream().stream() {
            let guarded = stream.as_ref().as_any().downcast_ref::<GuardedStream>()?;
            return Some(Self::Http1(guarded.connection()));
        }
        let stream = session.req_header().extensions.get::<Arc<Http2Stream>>()?;
        Some(Self::Http2(Arc::clone(stream)))
    }

    /// Where its connection comes from.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::Http1(connection) => connection.origin(),
            Self::Http2(stream) => stream.origin(),
        }
    }

    /// Why the head of the current request was refused, if it was.
    pub(crate) fn refused(&self) -> Option<RefusedHead> {
        match self {
            Self::Http1(connection) => connection.refused(),
            Self::Http2(_) => None,
        }
    }

    /// How the body is framed.
    pub(crate) fn body_length(&self, headers: &HeaderMap) -> BodyLength {
        match self {
            Self::Http1(_) => BodyLength::of(headers),
            Self::Http2(stream) if stream.is_body_done() => BodyLength::None,
            Self::Http2(_) => {
                let length = headers.get(header::CONTENT_LENGTH);
                let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
                BodyLength::Framed(length)
            }
        }
    }

    /// The body has been read: the next head may follow.
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
    /// body where the protocol frames it, else of the connection.
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

    /// Returns bytes that were read past the end of a body.
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

    /// Ready once the client has closed its connection or reset its stream.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Http1(connection) => connection.poll_gone(cx),
            Self::Http2(stream) => stream.poll_gone(cx),
        }
    }
}
