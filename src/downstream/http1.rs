//! A client's connection over HTTP/1.1: whole heads are taken off it, bodies are read from it, and
//! whether the client is still there is asked of it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use memchr::memmem;
use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::guard::{ConnectionLimits, Origin};
use super::head_check;
use super::head_check::{Asked, Flaw};
use super::listener::Welcomed;
use super::origin::Peer;
use crate::api::Dialect;
use crate::wire::poll_read_into;

/// Reads of a head and of whatever follows it.
const HEAD_CHUNK: usize = 4096;
/// The longest head and body that are read together when the last ones were as long.
const WHOLE_LIMIT: usize = 64 * 1024;
/// Pipelined bytes kept while a request is under way; beyond it the client is no longer watched.
const PIPELINE_LIMIT: usize = 64 * 1024;
/// What Pingora is given instead of a head that is refused; the request filter then finds the flaw
/// and answers it, as it answers everything else.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\n\r\n";

/// What Pingora reads and writes.
pub(crate) struct GuardStream(pub(crate) Arc<ClientStream>);

impl GuardStream {
    /// The stream behind, for as long as the request needs it.
    pub(crate) fn client(&self) -> Arc<ClientStream> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for GuardStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("GuardStream")
    }
}

/// The client's connection, shared by Pingora's session and the request's own code. Only one task
/// ever uses it, so the lock is never contended.
pub(crate) struct ClientStream {
    pub(crate) inner: Mutex<Inner>,
    origin: Origin,
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientStream")
    }
}

pub(crate) struct Inner {
    pub(crate) stream: Stream,
    /// Bytes read from the socket and not yet handed on.
    ahead: BytesMut,
    /// How much the next read of a head asks for.
    next_read: usize,
    /// How much of `ahead` is known to hold no end of a head.
    searched: usize,
    /// One empty line may stand before a head.
    may_skip: bool,
    /// The body of the last request has been read, or there has been no request.
    is_between: bool,
    deadline: Option<Pin<Box<Sleep>>>,
    refused: Option<Flaw>,
    limits: ConnectionLimits,
}

/// A head that Pingora never sees.
#[derive(Debug, Clone)]
pub(crate) struct RefusedHead {
    /// What is wrong with it.
    pub(crate) flaw: Flaw,
    /// The dialect of the path it asks for.
    pub(crate) dialect: Dialect,
    /// What it asks for, as far as that can be told.
    pub(crate) asked: Asked,
}

impl ClientStream {
    pub(crate) fn new(welcomed: Welcomed, limits: ConnectionLimits) -> Self {
        let Welcomed { stream, ahead, origin, .. } = welcomed;
        let inner = Inner {
            stream,
            ahead,
            next_read: HEAD_CHUNK,
            searched: 0,
            may_skip: true,
            is_between: true,
            deadline: None,
            refused: None,
            limits,
        };
        Self { inner: Mutex::new(inner), origin }
    }

    /// One of a port that speaks plain HTTP/1.1 and asks nobody who he is, and what Pingora is
    /// given of it.
    pub(crate) fn of_plain(stream: Stream, limits: ConnectionLimits) -> (Arc<Self>, Stream) {
        let origin = Origin { peer: Peer::Unknown, is_tls: false };
        let ahead = BytesMut::new();
        let welcomed = Welcomed { stream, ahead, origin, is_http2: false, distrusted: None };
        let client = Arc::new(Self::new(welcomed, limits));
        let stream = Box::new(GuardStream(Arc::clone(&client)));
        (client, stream)
    }

    /// The next head, or what stands in for one that is refused; `None` when there will be none.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        let mut inner = self.inner.lock();
        if !inner.is_between {
            // What comes next would be the rest of a body.
            return Poll::Ready(None);
        }
        let head = ready!(inner.poll_head(cx));
        if head.is_some() {
            (inner.searched, inner.may_skip, inner.is_between) = (0, true, false);
            inner.deadline = None;
        }
        Poll::Ready(head)
    }

    /// Whether nothing of the next request has come.
    pub(crate) fn is_idle(&self) -> bool {
        self.inner.lock().ahead.is_empty()
    }

    /// Where the connection came from.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Expects a new head next: the body of the last request has been read.
    pub(crate) fn expect_head(&self) {
        self.inner.lock().is_between = true;
    }

    /// Why the request at hand is only a stand-in for one that is refused, if it is.
    pub(crate) fn refused(&self) -> Option<RefusedHead> {
        let inner = self.inner.lock();
        let flaw = inner.refused?;
        // Nothing has been taken off what was read: the head is still there, as far as it came.
        let is_anthropic = head_check::asked_path(&inner.ahead).starts_with(b"/v1/messages");
        let dialect = if is_anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
        Some(RefusedHead { flaw, dialect, asked: Asked::of(&inner.ahead) })
    }

    /// Whether it is a stand-in.
    pub(crate) fn is_refused(&self) -> bool {
        self.inner.lock().refused.is_some()
    }

    /// Takes a body of `total` bytes if it was read along with its head, without a copy. The next
    /// request is then expected to be about as long.
    pub(crate) fn take_body(&self, total: usize) -> Option<BytesMut> {
        let mut inner = self.inner.lock();
        // A client that sends one body like this sends more: one read for the whole request.
        let whole = total + HEAD_CHUNK;
        inner.next_read = if whole <= WHOLE_LIMIT { whole } else { HEAD_CHUNK };
        if total < HEAD_CHUNK || inner.ahead.len() < total {
            return None;
        }
        let body = inner.ahead.split_to(total);
        // What follows must not keep the body's memory.
        inner.ahead = BytesMut::from(&*inner.ahead);
        Some(body)
    }

    /// Reads up to `limit` bytes of a body to the end of `into`, without a copy where the socket
    /// has them. Zero bytes mean the client closed.
    pub(crate) fn poll_body(
        &self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.inner.lock();
        if !inner.ahead.is_empty() {
            let count = inner.ahead.len().min(limit);
            into.extend_from_slice(inner.ahead.get(..count).unwrap_or_default());
            inner.ahead.advance(count);
            return Poll::Ready(Ok(count));
        }
        read_some(&mut inner.stream, cx, into, limit)
    }

    /// Gives back bytes that were read past the end of a body.
    pub(crate) fn unread(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut inner = self.inner.lock();
            let mut ahead = BytesMut::with_capacity(bytes.len() + inner.ahead.len());
            ahead.extend_from_slice(bytes);
            ahead.extend_from_slice(&inner.ahead);
            inner.ahead = ahead;
        }
    }

    /// Frees the room kept for the next head: a stream may last for minutes.
    pub(crate) fn shrink(&self) {
        let mut inner = self.inner.lock();
        if inner.ahead.is_empty() {
            inner.ahead = BytesMut::new();
        }
    }

    /// Ends the answer's side of the connection.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner.lock().stream).poll_shutdown(cx)
    }

    /// Ready once the client has closed or reset the connection. What it sends ahead of its next
    /// request is kept.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        let Inner { stream, ahead, .. } = &mut *inner;
        while ahead.len() < PIPELINE_LIMIT {
            match ready!(read_some(stream, cx, ahead, HEAD_CHUNK)) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}

fn read_some(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
    limit: usize,
) -> Poll<io::Result<usize>> {
    poll_read_into(Pin::new(stream), cx, into, limit)
}

impl Inner {
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        loop {
            if self.may_skip && self.ahead.starts_with(b"\r\n") {
                self.ahead.advance(2);
                (self.searched, self.may_skip) = (0, false);
            }
            match self.look_for_head(self.searched) {
                Ok(Some(end)) => return Poll::Ready(Some(self.take_head(end))),
                Ok(None) => self.searched = self.ahead.len(),
                Err(flaw) => return Poll::Ready(Some(self.refuse(flaw))),
            }
            self.ahead.reserve(self.next_read);
            match read_some(&mut self.stream, cx, &mut self.ahead, self.next_read) {
                Poll::Ready(Ok(1..)) => {}
                // Nobody waits for an answer to half a head.
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(self.wait_for_head(cx));
                    return Poll::Ready(Some(self.refuse(Flaw::Late)));
                }
            }
        }
    }

    // Copied: Pingora's fields point into it for as long as the answer takes, and must not keep the
    // memory of a body that was read along with them.
    fn take_head(&mut self, end: usize) -> BytesMut {
        let head = BytesMut::from(self.ahead.get(..end).unwrap_or_default());
        self.ahead.advance(end);
        head
    }

    /// Where the head ends that `ahead` begins with, once it is there and nothing is wrong with it.
    fn look_for_head(&self, searched: usize) -> Result<Option<usize>, Flaw> {
        let end = head_end(&self.ahead, searched.saturating_sub(3));
        if end.unwrap_or(self.ahead.len()) > self.limits.head_size {
            return Err(Flaw::TooLarge);
        }
        match end.and_then(|end| self.ahead.get(..end)) {
            Some(head) => head_check::check(head, self.limits.head_fields).map(|()| end),
            // A CR at the very front may be half of an empty line.
            None if *self.ahead == *b"\r" => Ok(None),
            None => head_check::check_begun(&self.ahead, searched).map(|()| None),
        }
    }

    // A head that has begun must end in time; an idle connection is another clock's to judge.
    fn wait_for_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ahead.is_empty() {
            if self.next_read > HEAD_CHUNK {
                // There may be many idle connections, and idle for long.
                self.ahead = BytesMut::new();
            }
            return Poll::Pending;
        }
        let time = self.limits.head_time;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        deadline.as_mut().poll(cx)
    }

    fn refuse(&mut self, flaw: Flaw) -> BytesMut {
        self.refused = Some(flaw);
        BytesMut::from(STAND_IN)
    }

    pub(crate) fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        put_ahead(&mut self.ahead, out);
        Poll::Ready(Ok(()))
    }
}

/// Hands on as much of what was read already as there is room for.
pub(crate) fn put_ahead(ahead: &mut BytesMut, out: &mut ReadBuf<'_>) {
    let count = ahead.len().min(out.remaining());
    out.put_slice(ahead.get(..count).unwrap_or_default());
    ahead.advance(count);
}

fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let part = bytes.get(from..)?;
    memmem::find(part, b"\r\n\r\n").map(|at| from + at + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_of_a_refused_head_is_a_good_one() {
        assert_eq!(head_check::check(STAND_IN, 1), Ok(()));
    }

    #[test]
    fn a_head_is_found_wherever_a_read_splits_it() {
        let bytes = b"GET / HTTP/1.1\r\nhost: x\r\n\r\nrest";
        let end = bytes.len() - 4;
        for searched in 0..end {
            assert_eq!(head_end(&bytes[..end], searched.saturating_sub(3)), Some(end));
        }
        assert_eq!(head_end(&bytes[..end - 1], 0), None);
    }
}
