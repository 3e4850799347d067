//! Stands between the listener and Pingora's parser: every client stream is wrapped so that Pingora
//! is given exactly one request head at a time. The body stays here, where the proxy reads it
//! straight into the one buffer it is kept in; pipelined requests wait their turn.

mod pingora_io;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use memchr::memmem;
use parking_lot::Mutex;
use pingora::apps::ServerApp;
use pingora::protocols::{Shutdown, Stream};
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

use super::LINGER;
use super::context::Counted;
use crate::api::{Dialect, ErrorCode, error_body};
use crate::config::LimitsConfig;

/// Reads of a head and of whatever follows it.
const HEAD_CHUNK: usize = 4096;
/// The longest head and body that are read together when the last ones were as long.
const WHOLE_LIMIT: usize = 64 * 1024;
/// Pipelined bytes kept while a request is under way; beyond it the client is no longer watched.
const PIPELINE_LIMIT: usize = 64 * 1024;

/// What clients may ask of their connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// The most bytes of one head.
    pub(crate) head_size: usize,
    /// The longest a head that has begun may take.
    pub(crate) head_time: Duration,
    /// The most connections at one time.
    pub(crate) connections: usize,
}

impl ConnectionLimits {
    /// Those of a configuration.
    pub(crate) fn of(limits: &LimitsConfig) -> Self {
        Self {
            head_size: limits.head_size.to_usize(),
            head_time: limits.header,
            connections: limits.connections,
        }
    }
}

/// What holds for a connection that is opened now.
pub(crate) type CurrentLimits = Box<dyn Fn() -> ConnectionLimits + Send + Sync>;

/// What a client is told that gets no further than the guard, and who else hears of it.
pub(crate) struct Refusals {
    head_too_large: Vec<u8>,
    too_many_connections: Vec<u8>,
    tell: Box<dyn Fn(ErrorCode) + Send + Sync>,
}

impl Refusals {
    /// Calls `tell` with every refusal.
    pub(crate) fn new(tell: Box<dyn Fn(ErrorCode) + Send + Sync>) -> Self {
        let head = "The request head exceeds the limit (limits.head_size)";
        let connections = "Too many connections (limits.connections)";
        Self {
            head_too_large: refusal(ErrorCode::HeadTooLarge, head),
            too_many_connections: refusal(ErrorCode::TooManyConnections, connections),
            tell,
        }
    }
}

/// A whole answer as bytes: Pingora has not seen the request, so it cannot write one.
fn refusal(code: ErrorCode, message: &str) -> Vec<u8> {
    let row = code.row();
    let body = error_body(Dialect::OpenAi, code, message, None);
    let reason = http::StatusCode::from_u16(row.status).ok().and_then(|s| s.canonical_reason());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         x-should-retry: {}\r\n{}connection: close\r\n\r\n",
        row.status,
        reason.unwrap_or_default(),
        body.len(),
        row.retry,
        if row.retry { "retry-after: 1\r\n" } else { "" },
    );
    [head.into_bytes(), body].concat()
}

/// Pingora's HTTP application with every client stream wrapped.
pub(crate) struct Guarded<A> {
    inner: Arc<A>,
    limits: CurrentLimits,
    open: Arc<AtomicUsize>,
    refusals: Arc<Refusals>,
}

impl<A> Guarded<A> {
    /// Wraps the streams given to `inner`, and counts them in `open`.
    pub(crate) fn new(
        inner: A,
        limits: CurrentLimits,
        open: Arc<AtomicUsize>,
        refusals: Refusals,
    ) -> Self {
        Self { inner: Arc::new(inner), limits, open, refusals: Arc::new(refusals) }
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> ServerApp for Guarded<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = Counted::new(&self.open);
        let limits = (self.limits)();
        if open.count() > limits.connections {
            (self.refusals.tell)(ErrorCode::TooManyConnections);
            refuse(&mut stream, &self.refusals.too_many_connections).await;
            return None;
        }
        let guarded = GuardStream::new(stream, limits, Arc::clone(&self.refusals));
        self.inner.process_new(Box::new(guarded), shutdown).await
    }

    async fn cleanup(&self) {
        // A client that has just connected, or is about to use its connection again, is answered;
        // only what stays silent is closed.
        tokio::time::sleep(LINGER).await;
        self.inner.cleanup().await;
    }
}

/// Turns a connection over the limit away, without reading from it.
async fn refuse(stream: &mut Stream, answer: &[u8]) {
    let told = async {
        stream.write_all(answer).await?;
        stream.flush().await
    };
    match tokio::time::timeout(Duration::from_secs(1), told).await {
        Ok(Ok(())) => Shutdown::shutdown(&mut **stream).await,
        Ok(Err(_)) | Err(_) => tracing::debug!("a client over the limit was not told so"),
    }
}

/// What Pingora reads and writes.
pub(crate) struct GuardStream(Arc<ClientStream>);

impl GuardStream {
    fn new(stream: Stream, limits: ConnectionLimits, refusals: Arc<Refusals>) -> Self {
        let inner = Inner {
            stream,
            ahead: BytesMut::with_capacity(HEAD_CHUNK),
            next_read: HEAD_CHUNK,
            phase: Phase::Head { searched: 0 },
            deadline: None,
            limits,
            refusals,
        };
        Self(Arc::new(ClientStream(Mutex::new(inner))))
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
pub(crate) struct ClientStream(Mutex<Inner>);

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
    limits: ConnectionLimits,
    refusals: Arc<Refusals>,
}

enum Phase {
    /// Looking for the end of a head; `searched` bytes of `ahead` hold none.
    Head { searched: usize },
    /// Handing a complete head to Pingora, so many bytes of it left.
    Deliver { left: usize },
    /// Behind a head: the bytes belong to its body, or to the next request.
    Body,
}

impl ClientStream {
    /// Expects a new head next: the body of the last request has been read.
    pub(crate) fn expect_head(&self) {
        self.0.lock().phase = Phase::Head { searched: 0 };
    }

    /// Takes a body of `total` bytes if it was read along with its head, without a copy. The next
    /// request is then expected to be about as long.
    pub(crate) fn take_body(&self, total: usize) -> Option<BytesMut> {
        let mut inner = self.0.lock();
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
        let mut inner = self.0.lock();
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
            let mut inner = self.0.lock();
            let mut ahead = BytesMut::with_capacity(bytes.len() + inner.ahead.len());
            ahead.extend_from_slice(bytes);
            ahead.extend_from_slice(&inner.ahead);
            inner.ahead = ahead;
        }
    }

    /// Frees the room kept for the next head: a stream may last for minutes.
    pub(crate) fn shrink(&self) {
        let mut inner = self.0.lock();
        if inner.ahead.is_empty() {
            inner.ahead = BytesMut::new();
        }
    }

    /// Ends the answer's side of the connection.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_shutdown(cx)
    }

    /// Ready once the client has closed or reset the connection. What it sends ahead of its next
    /// request is kept.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock();
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
                Phase::Head { searched } => {
                    let from = searched.saturating_sub(3);
                    if let Some(end) = head_end(&self.ahead, from) {
                        self.deadline = None;
                        self.phase = Phase::Deliver { left: end };
                        continue;
                    }
                    let searched = self.ahead.len();
                    self.phase = Phase::Head { searched };
                    if searched > self.limits.head_size {
                        return self.refuse(cx);
                    }
                    self.ahead.reserve(self.next_read);
                    let read = read_some(&mut self.stream, cx, &mut self.ahead, self.next_read);
                    match read {
                        Poll::Ready(Ok(0)) => {
                            // What there is of the head goes on, so that Pingora sees a cut head.
                            self.phase = Phase::Body;
                            return self.poll_rest(cx, out);
                        }
                        Poll::Ready(Ok(_)) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => return self.wait_for_head(cx),
                    }
                }
            }
        }
    }

    // A head that has begun must end in time; an idle connection is Pingora's keep-alive to judge.
    fn wait_for_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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

    fn refuse(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A fresh answer fits the socket's buffer; where it does not, closing says enough.
        (self.refusals.tell)(ErrorCode::HeadTooLarge);
        let stream = Pin::new(&mut self.stream);
        if stream.poll_write(cx, &self.refusals.head_too_large).is_ready() {
            let flushed = Pin::new(&mut self.stream).poll_flush(cx);
            tracing::debug!(is_sent = flushed.is_ready(), "refused an oversized head");
        }
        self.ahead.clear();
        Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
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
    fn a_refusal_is_a_whole_answer() {
        let refusals = Refusals::new(Box::new(|_code| ()));
        for bytes in [refusals.head_too_large, refusals.too_many_connections] {
            let text = String::from_utf8(bytes).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
            assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
        }
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
