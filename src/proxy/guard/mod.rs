//! Stands between the listener and Pingora's parser: every client stream is wrapped so that Pingora
//! is given exactly one request head at a time, and only heads that `strict` has passed. The body
//! stays here, where the proxy reads it straight into the one buffer it is kept in; pipelined
//! requests wait their turn.

mod origin;
mod pingora_io;
mod port;
mod proxy_header;
mod refusals;
mod serve;

pub(crate) use origin::{FORWARDED_FOR, Origin};
pub(crate) use port::Ports;
pub(crate) use refusals::Refusals;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use memchr::memmem;
use parking_lot::Mutex;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::l4::ext::set_snd_buf;
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::context::Counted;
use super::strict::{self, Flaw};
use super::{LINGER, Proxy};
use crate::api::Dialect;
use crate::config::LimitsConfig;
use crate::units::ByteSize;
use port::Welcomed;

/// Reads of a head and of whatever follows it.
const HEAD_CHUNK: usize = 4096;
/// The longest head and body that are read together when the last ones were as long.
const WHOLE_LIMIT: usize = 64 * 1024;
/// Pipelined bytes kept while a request is under way; beyond it the client is no longer watched.
const PIPELINE_LIMIT: usize = 64 * 1024;
/// What Pingora is given instead of a head that is refused; the request filter then finds the flaw
/// and answers it, as it answers everything else.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\n\r\n";

/// What clients may ask of their connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// The most bytes of one head.
    pub(crate) head_size: usize,
    /// The most fields of one head.
    pub(crate) head_fields: usize,
    /// The longest a head that has begun may take.
    pub(crate) head_time: Duration,
    /// The most connections at one time.
    pub(crate) connections: usize,
    /// What the system may keep of an answer that a client is slow to take.
    pub(crate) send_buffer: Option<usize>,
}

impl ConnectionLimits {
    /// Those of a configuration.
    pub(crate) fn of(limits: &LimitsConfig) -> Self {
        Self {
            head_size: limits.head_size.to_usize(),
            head_fields: limits.headers,
            head_time: limits.header,
            connections: limits.connections,
            send_buffer: limits.client_send_buffer.map(ByteSize::to_usize),
        }
    }
}

/// What holds for a connection that is opened now.
pub(crate) type CurrentLimits = Box<dyn Fn() -> ConnectionLimits + Send + Sync>;

/// Pingora's HTTP application with every client stream wrapped.
pub(crate) struct Guarded<A> {
    inner: Arc<A>,
    proxy: Arc<Proxy>,
    limits: CurrentLimits,
    refusals: Refusals,
}

impl<A: HttpServerApp + Send + Sync + 'static> Guarded<A> {
    /// Wraps the streams given to `inner`, which answers for `proxy`.
    pub(crate) fn new(
        inner: A,
        proxy: Arc<Proxy>,
        limits: CurrentLimits,
        refusals: Refusals,
    ) -> Self {
        Self { inner: Arc::new(inner), proxy, limits, refusals }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for Guarded<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = Counted::new(&self.proxy.connections);
        let limits = (self.limits)();
        let port = self.proxy.ports.of(&stream)?;
        if open.count() > limits.connections {
            let over = open.count() - limits.connections;
            self.refusals.turn_away(&mut stream, (over, port.is_encrypted())).await;
            return None;
        }
        if let Some(bytes) = limits.send_buffer
            && let Err(error) = set_snd_buf(stream.id(), bytes)
        {
            tracing::debug!(%error, "a client's send buffer stays as it is");
        }
        if port.is_plain() {
            let origin = Origin { peer: port.peer(&stream), is_tls: false };
            let ahead = BytesMut::new();
            let welcomed = Welcomed { stream, ahead, origin, is_http2: false };
            return self.serve_http1(welcomed, limits, shutdown).await;
        }
        // Boxed: a handshake is large, and plain connections need not carry room for one.
        Box::pin(self.serve_welcomed(stream, (port, limits), shutdown)).await
    }

    async fn cleanup(&self) {
        // A client that has just connected, or is about to use its connection again, is answered;
        // only what stays silent is closed.
        tokio::time::sleep(LINGER).await;
        self.inner.cleanup().await;
    }
}

/// What Pingora reads and writes.
pub(crate) struct GuardStream(Arc<ClientStream>);

impl GuardStream {
    fn new(welcomed: Welcomed, limits: ConnectionLimits) -> Self {
        let Welcomed { stream, mut ahead, origin, .. } = welcomed;
        ahead.reserve(HEAD_CHUNK);
        let inner = Inner {
            stream,
            ahead,
            next_read: HEAD_CHUNK,
            phase: Phase::NEXT_HEAD,
            deadline: None,
            refused: None,
            limits,
        };
        Self(Arc::new(ClientStream { inner: Mutex::new(inner), origin }))
    }

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
    inner: Mutex<Inner>,
    origin: Origin,
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientStream")
    }
}

struct Inner {
    stream: Stream,
    /// Bytes read from the socket and not yet handed on.
    ahead: BytesMut,
    /// How much the next read of a head asks for.
    next_read: usize,
    phase: Phase,
    deadline: Option<Pin<Box<Sleep>>>,
    refused: Option<RefusedHead>,
    limits: ConnectionLimits,
}

/// A head that Pingora never sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedHead {
    /// What is wrong with it.
    pub(crate) flaw: Flaw,
    /// The dialect of the path it asks for.
    pub(crate) dialect: Dialect,
}

enum Phase {
    /// Looking for the end of a head; `searched` bytes of `ahead` hold none. One empty line may
    /// stand before it.
    Head { searched: usize, may_skip: bool },
    /// Handing a complete head to Pingora, so many bytes of it left.
    Deliver { left: usize },
    /// Handing what is left of [`STAND_IN`] to Pingora.
    Refused { left: &'static [u8] },
    /// Behind a head: the bytes belong to its body, or to the next request.
    Body,
}

impl Phase {
    const NEXT_HEAD: Self = Self::Head { searched: 0, may_skip: true };
}

impl ClientStream {
    /// Where the connection came from.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Expects a new head next: the body of the last request has been read.
    pub(crate) fn expect_head(&self) {
        self.inner.lock().phase = Phase::NEXT_HEAD;
    }

    /// Why the request at hand is only a stand-in for one that is refused, if it is.
    pub(crate) fn refused(&self) -> Option<RefusedHead> {
        self.inner.lock().refused
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

/// Reads up to `limit` bytes to the end of `into`.
pub(crate) fn poll_read_into<S: AsyncRead + ?Sized>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
    limit: usize,
) -> Poll<io::Result<usize>> {
    use tokio_util::io::poll_read_buf;
    let mut limited = bytes::BufMut::limit(into, limit);
    poll_read_buf(stream, cx, &mut limited)
}

impl Inner {
    fn poll_head(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.phase {
                Phase::Body => return self.poll_rest(cx, out),
                Phase::Deliver { left } => {
                    let count = left.min(out.remaining()).min(self.ahead.len());
                    out.put_slice(self.ahead.get(..count).unwrap_or_default());
                    self.ahead.advance(count);
                    self.phase = match left - count {
                        0 => Phase::Body,
                        left => Phase::Deliver { left },
                    };
                    return Poll::Ready(Ok(()));
                }
                Phase::Refused { left } => {
                    let (now, later) = left.split_at(left.len().min(out.remaining()));
                    out.put_slice(now);
                    self.phase =
                        if later.is_empty() { Phase::Body } else { Phase::Refused { left: later } };
                    return Poll::Ready(Ok(()));
                }
                Phase::Head { searched, may_skip } => {
                    if may_skip && self.ahead.starts_with(b"\r\n") {
                        self.ahead.advance(2);
                        self.phase = Phase::Head { searched: 0, may_skip: false };
                        continue;
                    }
                    match self.look_for_head(searched) {
                        Ok(Some(end)) => {
                            self.deadline = None;
                            self.phase = Phase::Deliver { left: end };
                            continue;
                        }
                        Ok(None) => {
                            let searched = self.ahead.len();
                            self.phase = Phase::Head { searched, may_skip };
                        }
                        Err(flaw) => {
                            self.refuse(flaw);
                            continue;
                        }
                    }
                    self.ahead.reserve(self.next_read);
                    let read = read_some(&mut self.stream, cx, &mut self.ahead, self.next_read);
                    match read {
                        Poll::Ready(Ok(0)) => {
                            // Nobody waits for an answer to half a head.
                            self.ahead.clear();
                            return Poll::Ready(Ok(()));
                        }
                        Poll::Ready(Ok(_)) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => ready!(self.wait_for_head(cx)),
                    }
                }
            }
        }
    }

    /// Where the head ends that `ahead` begins with, once it is there and nothing is wrong with it.
    fn look_for_head(&self, searched: usize) -> Result<Option<usize>, Flaw> {
        let end = head_end(&self.ahead, searched.saturating_sub(3));
        if end.unwrap_or(self.ahead.len()) > self.limits.head_size {
            return Err(Flaw::TooLarge);
        }
        match end.and_then(|end| self.ahead.get(..end)) {
            Some(head) => strict::check(head, self.limits.head_fields).map(|()| end),
            // A CR at the very front may be half of an empty line.
            None if *self.ahead == *b"\r" => Ok(None),
            None => strict::check_begun(&self.ahead, searched).map(|()| None),
        }
    }

    // A head that has begun must end in time; an idle connection is Pingora's keep-alive to judge.
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
        ready!(deadline.as_mut().poll(cx));
        self.refuse(Flaw::Late);
        Poll::Ready(())
    }

    fn refuse(&mut self, flaw: Flaw) {
        let is_anthropic = strict::asked_path(&self.ahead).starts_with(b"/v1/messages");
        let dialect = if is_anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
        self.deadline = None;
        self.refused = Some(RefusedHead { flaw, dialect });
        self.phase = Phase::Refused { left: STAND_IN };
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        let count = self.ahead.len().min(out.remaining());
        out.put_slice(self.ahead.get(..count).unwrap_or_default());
        self.ahead.advance(count);
        Poll::Ready(Ok(()))
    }
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
        assert_eq!(strict::check(STAND_IN, 1), Ok(()));
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
