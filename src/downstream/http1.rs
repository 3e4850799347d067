//! A client connection over HTTP/1.1, and the guard between its socket and Pingora's parser.
//!
//! **Why a guard.** Pingora is woken only with a whole head that `head_check` has passed:
//! * *Smuggling.* Two parsers that read one head differently see two different requests. The strict
//!   check runs on the raw bytes, so Pingora and every engine after it read a head in the only way
//!   possible.
//! * *Memory.* A Pingora session takes tens of kilobytes. A keep-alive connection that waits for
//!   its next request has none, only this struct.
//! * *Bodies.* The proxy reads a body from here into the one buffer that holds it; Pingora would
//!   copy it in pieces.
//!
//! **A refused head** never reaches Pingora, which gets [`PLACEHOLDER_HEAD`] in its place. So the
//! refusal takes the path of every request: the request filter finds [`RefusedHead`], responds in
//! the client's dialect, and logs and counts it. Then the connection ends: the start of the next
//! request is unknown.
//!
//! **Invariants**, and what breaks without them:
//! * Pingora gets exactly one head, never a byte after it. It would keep those bytes in its own
//!   buffer, where `poll_body` cannot find them: the body would never end.
//! * `is_between_requests` is false from a head to the end of its body. Otherwise an unread body
//!   would be parsed as the next request: smuggling.
//! * Bytes read past a body go back to the front of `ahead` ([`Http1Connection::unread`]) before
//!   the search for the next head: pipelined requests keep their order.
//! * The lock is never held across an await, and one task at a time uses the connection. Pingora's
//!   session and the proxy both own it, so it needs a lock; it is never contended.

mod head_reader;
mod head_wait;
mod pingora_io;

pub(crate) use head_wait::{HeadWait, IDLE_GRACE};

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use penstock_api::Dialect;
use penstock_api::slices::split_at;
use pingora::protocols::Stream;
use tokio::io::{AsyncWrite, ReadBuf};

use super::certificate::CertificateNames;
use super::head_check;
use super::head_check::{HeadError, LoggedRequest};
use super::limits::HeadLimits;
use super::listener::AcceptedConnection;
use super::origin::{Origin, Peer};
use super::prefixed_stream::poll_read_after;
use crate::wire::poll_read_into;
use head_reader::{HEAD_READ, HeadReader};

/// The most bytes of a head and a body that are read together, if the last ones were as long.
const MAX_WHOLE: usize = 64 * 1024;
/// The most pipelined bytes that are kept while a request is in flight; beyond it the client is no
/// longer watched.
const MAX_PIPELINED: usize = 64 * 1024;
/// The head that Pingora gets in place of a refused one.
const PLACEHOLDER_HEAD: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\n\r\n";

/// The connection as Pingora reads and writes it: see `pingora_io`.
pub(crate) struct GuardedStream(Arc<Http1Connection>);

impl GuardedStream {
    pub(crate) fn new(connection: &Arc<Http1Connection>) -> Self {
        Self(Arc::clone(connection))
    }

    pub(crate) fn connection(&self) -> Arc<Http1Connection> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for GuardedStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("GuardedStream")
    }
}

/// A client's connection, shared by Pingora's session and the proxy.
pub(crate) struct Http1Connection {
    inner: Mutex<Inner>,
    origin: Origin,
    certificate: Option<Arc<CertificateNames>>,
}

impl fmt::Debug for Http1Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Http1Connection")
    }
}

struct Inner {
    stream: Stream,
    /// Bytes read from `stream` and not yet consumed.
    ahead: BytesMut,
    heads: HeadReader,
    /// True if the body of the last request has been read, or there has been no request.
    is_between_requests: bool,
    refused: Option<HeadError>,
}

/// A head that Pingora never sees.
#[derive(Debug, Clone)]
pub(crate) struct RefusedHead {
    pub(crate) error: HeadError,
    /// The dialect of the requested path.
    pub(crate) dialect: Dialect,
    /// The method and path for the access log.
    pub(crate) requested: LoggedRequest,
}

impl Http1Connection {
    pub(crate) fn new(accepted: AcceptedConnection, limits: HeadLimits) -> Arc<Self> {
        let AcceptedConnection { stream, ahead, origin, certificate, .. } = accepted;
        let inner = Inner {
            stream,
            ahead,
            heads: HeadReader::new(limits),
            is_between_requests: true,
            refused: None,
        };
        Arc::new(Self { inner: Mutex::new(inner), origin, certificate })
    }

    /// A connection to a port that speaks plain HTTP/1.1 and has no use for the client's address.
    pub(crate) fn anonymous(stream: Stream, limits: HeadLimits) -> Arc<Self> {
        let origin = Origin { peer: Peer::Unknown, is_tls: false };
        Self::new(AcceptedConnection::plain(stream, origin), limits)
    }

    /// Reads the next head, or [`PLACEHOLDER_HEAD`] for a refused one; `None` when no more heads
    /// follow.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        let mut inner = self.inner.lock();
        if !inner.is_between_requests {
            // The next bytes would be the rest of a body.
            return Poll::Ready(None);
        }
        let Inner { stream, ahead, heads, is_between_requests, refused } = &mut *inner;
        let head = match ready!(heads.poll_head(cx, stream, ahead)) {
            None => return Poll::Ready(None),
            Some(Ok(head)) => head,
            Some(Err(error)) => {
                *refused = Some(error);
                BytesMut::from(PLACEHOLDER_HEAD)
            }
        };
        heads.start_next();
        *is_between_requests = false;
        Poll::Ready(Some(head))
    }

    /// Returns whether no byte of the next request has arrived.
    pub(crate) fn is_idle(&self) -> bool {
        self.inner.lock().ahead.is_empty()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn certificate(&self) -> Option<&Arc<CertificateNames>> {
        self.certificate.as_ref()
    }

    /// Records that the body of the last request has been read: a head comes next.
    pub(crate) fn expect_head(&self) {
        self.inner.lock().is_between_requests = true;
    }

    /// The reason why the head of the current request was refused, if it was.
    pub(crate) fn refused(&self) -> Option<RefusedHead> {
        let inner = self.inner.lock();
        let error = inner.refused?;
        // Nothing has been taken off `ahead`: it still holds the received part of the head.
        let dialect = Dialect::of_path(head_check::requested_target(&inner.ahead));
        Some(RefusedHead { error, dialect, requested: LoggedRequest::of(&inner.ahead) })
    }

    /// Returns whether the head of the current request was refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.inner.lock().refused.is_some()
    }

    /// Takes a body of `total` bytes without a copy if it was read along with its head. The next
    /// request is then expected to be about as long.
    pub(crate) fn take_body(&self, total: usize) -> Option<BytesMut> {
        let mut inner = self.inner.lock();
        // A client that sends one body of this size sends more: use one read for the whole request.
        let whole = total + HEAD_READ;
        inner.heads.next_read = if whole <= MAX_WHOLE { whole } else { HEAD_READ };
        if total < HEAD_READ || inner.ahead.len() < total {
            return None;
        }
        let body = inner.ahead.split_to(total);
        // Copied: the remaining bytes must not keep the body's memory.
        inner.ahead = BytesMut::from(&*inner.ahead);
        Some(body)
    }

    /// Reads up to `limit` bytes of a body to the end of `into`, without a copy if the socket has
    /// them. Zero bytes mean that the client closed.
    pub(crate) fn poll_body(
        &self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.inner.lock();
        if !inner.ahead.is_empty() {
            let count = inner.ahead.len().min(limit);
            let (body, _later) = split_at(&inner.ahead, count);
            into.extend_from_slice(body);
            inner.ahead.advance(count);
            return Poll::Ready(Ok(count));
        }
        poll_read_into(Pin::new(&mut inner.stream), cx, into, limit)
    }

    /// Puts back bytes that were read past the end of a body.
    pub(crate) fn unread(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut inner = self.inner.lock();
            let mut ahead = BytesMut::with_capacity(bytes.len() + inner.ahead.len());
            ahead.extend_from_slice(bytes);
            ahead.extend_from_slice(&inner.ahead);
            inner.ahead = ahead;
        }
    }

    /// Frees the buffer kept for the next head: a stream may last for minutes.
    pub(crate) fn shrink(&self) {
        let mut inner = self.inner.lock();
        if inner.ahead.is_empty() {
            inner.ahead = BytesMut::new();
        }
    }

    /// Closes the side of the connection that carries responses.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner.lock().stream).poll_shutdown(cx)
    }

    /// Sends bytes that were written and are still buffered.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner.lock().stream).poll_flush(cx)
    }

    /// Ready once the client has closed or reset the connection. Bytes that it sends ahead of its
    /// next request are kept.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        let Inner { stream, ahead, .. } = &mut *inner;
        while ahead.len() < MAX_PIPELINED {
            match ready!(poll_read_into(Pin::new(&mut *stream), cx, ahead, HEAD_READ)) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}

impl Inner {
    /// Reads the bytes for Pingora after the head that it got.
    fn poll_rest(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        poll_read_after(&mut self.ahead, &mut self.stream, cx, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_passes_the_head_check() {
        assert_eq!(head_check::check(PLACEHOLDER_HEAD, 1), Ok(()));
    }
}
