//! Client connections over HTTP/2, with the `h2` crate. The same application serves each stream as
//! a request over HTTP/1.1. Everything that a connection may hold or do is bounded: streams, header
//! lists, windows, resets (rapid reset), malformed requests, and the time for an unfinished frame
//! (slow loris: `frame_deadline`).

#[doc(hidden)]
pub mod frame_deadline;
mod head;
mod rejection;
mod session;
mod stream;

pub(crate) use rejection::refuse;
pub(crate) use stream::Http2Stream;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use penstock_api::units::{ByteSize, Timestamp};
use penstock_clock::now;
use penstock_config::{Config, Http2Limits};
use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::certificate::CertificateNames;
use super::clients::{Clients, CloseReason};
use super::counted::Counted;
use super::origin::Origin;
use frame_deadline::{FrameDeadline, FrameTimeouts, WatchedStream};
use session::Http2Session;

/// The number of malformed requests after which a connection is closed.
const MAX_MALFORMED: u32 = 32;
/// The largest list of header fields of one request, decoded.
const MAX_HEADER_LIST: ByteSize = ByteSize::kib(64);
/// The largest frame: the minimum of RFC 9113 §4.2, which bounds the memory of one frame.
const MAX_FRAME: ByteSize = ByteSize::kib(16);
/// The most bytes of one response that wait for a client that does not read them.
const MAX_SEND_BUFFER: ByteSize = ByteSize::kib(64);
/// The window in which `limits.http2.resets` are allowed.
const RESET_WINDOW: Duration = Duration::from_secs(10);
/// The time for the last bytes of a connection that is being closed.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

type Wire<S> = h2::server::Connection<S, Bytes>;

/// The settings of HTTP/2 connections.
pub(crate) struct Settings {
    limits: Http2Limits,
    timeouts: FrameTimeouts,
    keep_alive: Duration,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        let limits = &config.limits;
        let timeouts =
            FrameTimeouts { head: limits.header_timeout, body: limits.body_read_timeout };
        Self { limits: limits.http2.clone(), timeouts, keep_alive: config.server.keep_alive }
    }
}

/// One client connection over HTTP/2.
pub(crate) struct ClientConnection<A> {
    pub(crate) app: Arc<A>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) settings: Settings,
    pub(crate) origin: Origin,
    /// Cancelled when the CA of the client's certificate is revoked.
    pub(crate) ca_revoked: Option<CancellationToken>,
    pub(crate) certificate: Option<Arc<CertificateNames>>,
}

/// One request and the way to respond to it.
struct Incoming {
    request: Request<RecvStream>,
    response: SendResponse<Bytes>,
}

/// The connection's counters of its streams.
#[derive(Debug, Default)]
struct StreamCounters {
    open: AtomicUsize,
    resets: AtomicU32,
    changed: Notify,
}

/// A stream whose request is being served.
struct OpenStream(Arc<StreamCounters>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

impl StreamCounters {
    fn open(self: &Arc<Self>) -> OpenStream {
        self.open.fetch_add(1, Ordering::AcqRel);
        OpenStream(Arc::clone(self))
    }

    /// Resolves once no stream has been open for `time`.
    async fn idle_for(&self, time: Duration) {
        loop {
            // `notify_one` keeps a permit: an end between the load and the wait is not missed.
            while self.open.load(Ordering::Acquire) > 0 {
                self.changed.notified().await;
            }
            tokio::time::sleep(time).await;
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}

/// The next event on a connection.
enum ConnectionEvent {
    Request(Box<Incoming>),
    /// The client closed, or violated the protocol.
    Ended(Option<h2::Error>),
    Idle,
    /// A frame or head was not finished in time.
    TooSlow,
    CaRevoked,
    Shutdown,
}

/// The shutdown state of a connection.
struct ShutdownPhase {
    /// Held during a shutdown: the process waits until this connection has delivered its responses.
    draining: Option<Counted>,
    /// True if the client has received GOAWAY: when idle, the connection is closed.
    is_closing: bool,
    is_ca_revoked: bool,
    idle_timeout: Duration,
}

impl ShutdownPhase {
    /// Sends GOAWAY: open streams finish, the client opens new ones on a new connection.
    fn close<S: AsyncRead + AsyncWrite + Unpin>(&mut self, wire: &mut Wire<S>) {
        wire.graceful_shutdown();
        (self.is_closing, self.idle_timeout) = (true, GOODBYE_TIMEOUT);
    }
}

impl<A: HttpServerApp + Send + Sync + 'static> ClientConnection<A> {
    /// Serves requests until the connection ends.
    pub(crate) async fn serve<S>(self, stream: S, shutdown: &ShutdownWatch)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let deadline = FrameDeadline::new(self.settings.timeouts);
        let watched = WatchedStream::new(stream, Arc::clone(&deadline));
        let handshake = builder(&self.settings.limits).handshake(watched);
        match tokio::time::timeout(self.settings.timeouts.head, handshake).await {
            Ok(Ok(wire)) => self.run(wire, &deadline, shutdown).await,
            Ok(Err(error)) => self.note_end(&error),
            Err(_elapsed) => self.clients.close_reasons.note(CloseReason::TooSlow),
        }
    }

    async fn run<S>(&self, mut wire: Wire<S>, deadline: &FrameDeadline, shutdown: &ShutdownWatch)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let streams = Arc::new(StreamCounters::default());
        let mut abuse = AbuseLimit::new(self.settings.limits.resets);
        let mut watch = shutdown.clone();
        let mut phase = ShutdownPhase {
            draining: None,
            is_closing: false,
            is_ca_revoked: false,
            idle_timeout: self.settings.keep_alive,
        };
        let mut too_slow = pin!(deadline.passed());
        let mut ca_revoked = pin!(self.ca_revoked());
        let mut idle = pin!(streams.idle_for(phase.idle_timeout));
        loop {
            // Drives the whole connection, its responses included. The order matters: events that
            // end the connection come before the next request.
            let event = tokio::select! {
                biased;
                () = shutdown_requested(&mut watch), if phase.draining.is_none() => ConnectionEvent::Shutdown,
                () = ca_revoked.as_mut(), if !phase.is_ca_revoked => ConnectionEvent::CaRevoked,
                event = next_request(&mut wire) => event,
                // After the requests: bytes that have arrived may finish a frame or be a request.
                () = too_slow.as_mut() => ConnectionEvent::TooSlow,
                () = idle.as_mut() => ConnectionEvent::Idle,
            };
            match event {
                // The client may retry on a new connection, where it authenticates again.
                ConnectionEvent::Request(mut incoming) if phase.is_ca_revoked => {
                    incoming.response.send_reset(Reason::REFUSED_STREAM);
                    // Refused requests do not restart the idle timeout: the connection would never
                    // end.
                    continue;
                }
                ConnectionEvent::Request(incoming) => {
                    if abuse.is_exceeded(&streams) {
                        self.clients.close_reasons.note(CloseReason::Http2);
                        return end_abruptly(wire).await;
                    }
                    if !self.start(*incoming, &streams, shutdown) {
                        abuse.malformed += 1;
                    }
                }
                ConnectionEvent::Ended(Some(error)) => return self.note_end(&error),
                ConnectionEvent::Ended(None) => return,
                ConnectionEvent::Shutdown => {
                    phase.draining = Some(Counted::new(&self.clients.in_flight));
                    phase.close(&mut wire);
                }
                ConnectionEvent::TooSlow => {
                    self.clients.close_reasons.note(CloseReason::TooSlow);
                    return end_abruptly(wire).await;
                }
                ConnectionEvent::CaRevoked => {
                    self.clients.close_reasons.note(CloseReason::CaRevoked);
                    phase.is_ca_revoked = true;
                    phase.close(&mut wire);
                }
                ConnectionEvent::Idle if phase.is_closing => return,
                ConnectionEvent::Idle => phase.close(&mut wire),
            }
            // After every event: `idle_for` misses a stream that came and went in its sleep.
            idle.set(streams.idle_for(phase.idle_timeout));
        }
    }

    async fn ca_revoked(&self) {
        match &self.ca_revoked {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Spawns a task in which the application serves the request; returns false if the request is
    /// malformed.
    fn start(
        &self,
        Incoming { request, mut response }: Incoming,
        streams: &Arc<StreamCounters>,
        shutdown: &ShutdownWatch,
    ) -> bool {
        let (parts, body) = request.into_parts();
        if let Err(reason) = head::check(&parts) {
            tracing::debug!(%reason, "malformed HTTP/2 request");
            // A malformed request is an error of its stream alone (RFC 9113 §8.1.1).
            response.send_reset(Reason::PROTOCOL_ERROR);
            return false;
        }
        let stream =
            Arc::new(Http2Stream::new(body, response, self.origin, self.certificate.clone()));
        let session = Http2Session::new(parts, Arc::clone(&stream));
        let (app, shutdown, open) = (Arc::clone(&self.app), shutdown.clone(), streams.open());
        tokio::spawn(async move {
            let session = ServerSession::new_custom(Box::new(session));
            app.process_new_http(session, &shutdown).await;
            if stream.was_reset() {
                open.0.resets.fetch_add(1, Ordering::Relaxed);
            }
            drop(open);
        });
        true
    }

    fn note_end(&self, error: &h2::Error) {
        // `is_library`: h2 closed the connection because of a protocol error. Disconnects of the
        // client are not counted.
        if error.is_library() {
            tracing::debug!(%error, "closed an HTTP/2 connection");
            self.clients.close_reasons.note(CloseReason::Http2);
        }
    }
}

async fn next_request<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>) -> ConnectionEvent {
    match wire.accept().await {
        Some(Ok((request, response))) => {
            ConnectionEvent::Request(Box::new(Incoming { request, response }))
        }
        Some(Err(error)) => ConnectionEvent::Ended(Some(error)),
        None => ConnectionEvent::Ended(None),
    }
}

async fn shutdown_requested(watch: &mut ShutdownWatch) {
    while !*watch.borrow_and_update() {
        if watch.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Sends GOAWAY with ENHANCE_YOUR_CALM and closes.
async fn end_abruptly<S: AsyncRead + AsyncWrite + Unpin>(mut wire: Wire<S>) {
    wire.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    let closed = poll_fn(|cx| match wire.poll_closed(cx) {
        Poll::Ready(_ended) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    });
    if tokio::time::timeout(GOODBYE_TIMEOUT, closed).await.is_err() {
        tracing::debug!("client did not read the reason of its GOAWAY");
    }
}

/// Bounds work that costs the client nothing: malformed requests, and streams that it resets.
struct AbuseLimit {
    malformed: u32,
    max_resets: u32,
    window_start: Timestamp,
    resets_before_window: u32,
}

impl AbuseLimit {
    fn new(max_resets: u32) -> Self {
        Self { malformed: 0, max_resets, window_start: now(), resets_before_window: 0 }
    }

    fn is_exceeded(&mut self, streams: &StreamCounters) -> bool {
        let now = now();
        let resets = streams.resets.load(Ordering::Relaxed);
        if now.since(self.window_start) > RESET_WINDOW {
            self.window_start = now;
            self.resets_before_window = resets;
        }
        self.malformed >= MAX_MALFORMED || resets - self.resets_before_window > self.max_resets
    }
}

/// The fields of HTTP/2 settings have 32 bits.
fn to_u32(size: ByteSize) -> u32 {
    u32::try_from(size.0).unwrap_or(u32::MAX)
}

fn builder(limits: &Http2Limits) -> Builder {
    let resets = usize::try_from(limits.resets).unwrap_or(usize::MAX);
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(to_u32(MAX_HEADER_LIST))
        .initial_window_size(to_u32(limits.window))
        .initial_connection_window_size(to_u32(limits.connection_window))
        .max_frame_size(to_u32(MAX_FRAME))
        .max_send_buffer_size(MAX_SEND_BUFFER.to_usize())
        // Streams reset before they were accepted, and those that h2 had to reset.
        .max_pending_accept_reset_streams(resets.min(20))
        .max_local_error_reset_streams(Some(resets))
        .max_concurrent_reset_streams(50);
    builder
}
