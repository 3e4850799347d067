//! Clients that speak HTTP/2: the `h2` crate's connections, each of its streams handed to the same
//! proxy as a request over HTTP/1.1. Everything a connection may hold or do is bounded here.

pub(crate) mod frame_deadline;
pub(crate) mod half;
pub(crate) mod head;
pub(crate) mod refusal;
pub(crate) mod session;

pub(crate) use half::ClientHalf;
pub(crate) use refusal::turn_away;

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
use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::close_reasons::ClosedFor;
use super::guard::Origin;
use crate::clock::now;
use crate::config::Http2Limits;
use crate::proxy::Proxy;
use crate::proxy::context::Counted;
use crate::units::{ByteSize, Timestamp};
use frame_deadline::{Due, Patience, Watched};
use session::Http2Session;

/// Requests that break the rules of HTTP/2 or of our own strictness, after which a connection is
/// not worth keeping.
const MALFORMED_LIMIT: u32 = 32;
/// `limits.http2.resets` are allowed within this time.
const RESET_WINDOW: Duration = Duration::from_secs(10);
/// How long the last bytes of a connection that is ending may take.
const GOODBYE: Duration = Duration::from_secs(5);

type Accepted = (Request<RecvStream>, SendResponse<Bytes>);
type Wire<S> = h2::server::Connection<S, Bytes>;

/// A connection on which a client speaks HTTP/2.
pub(crate) struct Connection {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) origin: Origin,
    /// Cancelled once the certificate its client has shown is worth nothing any more.
    pub(crate) distrusted: Option<CancellationToken>,
}

/// What the streams of a connection tell it.
#[derive(Debug, Default)]
struct Streams {
    open: AtomicUsize,
    resets: AtomicU32,
    changed: Notify,
}

/// A stream of the connection, for as long as it is at work.
struct OpenStream(Arc<Streams>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

impl Streams {
    fn open(self: &Arc<Self>) -> OpenStream {
        self.open.fetch_add(1, Ordering::AcqRel);
        OpenStream(Arc::clone(self))
    }

    /// Ends once there has been no stream at work for so long.
    async fn idle_for(&self, time: Duration) {
        loop {
            let quiet = async {
                while self.open.load(Ordering::Acquire) > 0 {
                    self.changed.notified().await;
                }
                tokio::time::sleep(time).await;
            };
            quiet.await;
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}

/// What happens next on a connection.
enum Next {
    Request(Box<Accepted>),
    /// The other side closed, or broke the rules.
    Ended(Option<h2::Error>),
    Idle,
    /// The client does not end what it has begun.
    Late,
    Distrusted,
    Stop,
}

impl Connection {
    /// Serves requests until the connection ends.
    pub(crate) async fn serve<A, S>(self, app: &Arc<A>, stream: S, shutdown: &ShutdownWatch)
    where
        A: HttpServerApp + Send + Sync + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let generation = self.proxy.generation();
        let limits = &generation.config.limits;
        let due =
            Due::new(Patience { head: limits.header_timeout, body: limits.body_read_timeout });
        let watched = Watched::new(stream, Arc::clone(&due));
        let greeted = builder(&limits.http2).handshake(watched);
        match tokio::time::timeout(limits.header_timeout, greeted).await {
            Ok(Ok(wire)) => {
                drop(generation);
                self.run(app, (wire, &due), shutdown).await;
            }
            Ok(Err(error)) => self.note_end(&error),
            Err(_elapsed) => self.proxy.closings.note(ClosedFor::TooSlow),
        }
    }

    async fn run<A, S>(
        &self,
        app: &Arc<A>,
        (mut wire, due): (Wire<S>, &Due),
        shutdown: &ShutdownWatch,
    ) where
        A: HttpServerApp + Send + Sync + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let streams = Arc::new(Streams::default());
        let mut watch = shutdown.clone();
        let (resets, mut patience) = {
            let config = &self.proxy.generation().config;
            (config.limits.http2.resets, config.server.keep_alive)
        };
        let mut judge = Judge::new(resets);
        // Held once the process is to end: it waits for what this connection still has to deliver.
        let mut finishing = None;
        let mut is_leaving = false;
        let mut late = pin!(due.passed());
        let mut distrusted = pin!(self.distrusted());
        let mut is_trusted = true;
        let mut idle = pin!(streams.idle_for(patience));
        loop {
            let stop = (&mut watch, finishing.is_none());
            let distrusted = (distrusted.as_mut(), is_trusted);
            let clocks = (idle.as_mut(), late.as_mut());
            match next(&mut wire, clocks, (stop, distrusted)).await {
                // The client may send it again on a new connection, where it is asked who it is.
                Next::Request(mut accepted) if !is_trusted => {
                    accepted.1.send_reset(Reason::REFUSED_STREAM);
                    // What is refused takes no part in its idleness: it would never end.
                    continue;
                }
                Next::Request(accepted) => {
                    if judge.is_too_much(&streams) {
                        self.proxy.closings.note(ClosedFor::Http2);
                        return end_abruptly(wire).await;
                    }
                    if !self.begin(app, *accepted, (&streams, shutdown)) {
                        judge.malformed += 1;
                    }
                }
                Next::Ended(Some(error)) => return self.note_end(&error),
                Next::Ended(None) => return,
                Next::Stop => {
                    finishing = Some(Counted::new(&self.proxy.in_flight));
                    wire.graceful_shutdown();
                    (is_leaving, patience) = (true, GOODBYE);
                }
                Next::Late => {
                    self.proxy.closings.note(ClosedFor::TooSlow);
                    return end_abruptly(wire).await;
                }
                Next::Distrusted => {
                    self.proxy.closings.note(ClosedFor::Distrusted);
                    wire.graceful_shutdown();
                    (is_trusted, is_leaving, patience) = (false, true, GOODBYE);
                }
                Next::Idle if is_leaving => return,
                Next::Idle => {
                    wire.graceful_shutdown();
                    (is_leaving, patience) = (true, GOODBYE);
                }
            }
            idle.set(streams.idle_for(patience));
        }
    }

    async fn distrusted(&self) {
        match &self.distrusted {
            Some(distrusted) => distrusted.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Lets the proxy answer a request; says whether it is one that can be answered.
    fn begin<A>(
        &self,
        app: &Arc<A>,
        (request, mut answer): Accepted,
        (streams, shutdown): (&Arc<Streams>, &ShutdownWatch),
    ) -> bool
    where
        A: HttpServerApp + Send + Sync + 'static,
    {
        let (parts, body) = request.into_parts();
        if let Err(reason) = head::check(&parts) {
            tracing::debug!(%reason, "a malformed request over HTTP/2");
            answer.send_reset(Reason::PROTOCOL_ERROR);
            return false;
        }
        let half = Arc::new(ClientHalf::new(body, answer, self.origin));
        let session = Http2Session::new(parts, Arc::clone(&half));
        let (app, shutdown, open) = (Arc::clone(app), shutdown.clone(), streams.open());
        tokio::spawn(async move {
            let session = ServerSession::new_custom(Box::new(session));
            app.process_new_http(session, &shutdown).await;
            if half.was_reset() {
                open.0.resets.fetch_add(1, Ordering::Relaxed);
            }
            drop(open);
        });
        true
    }

    fn note_end(&self, error: &h2::Error) {
        // Ours: the client broke a rule. Its own leaving, in whatever way, is nobody's fault.
        if error.is_library() {
            tracing::debug!(%error, "closed a connection over HTTP/2");
            self.proxy.closings.note(ClosedFor::Http2);
        }
    }
}

async fn next<S>(
    wire: &mut Wire<S>,
    (idle, late): (impl Future<Output = ()>, impl Future<Output = ()>),
    ((watch, may_stop), (distrusted, is_trusted)): (
        (&mut ShutdownWatch, bool),
        (impl Future<Output = ()>, bool),
    ),
) -> Next
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stop = async {
        while !*watch.borrow_and_update() {
            if watch.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        biased;
        () = stop, if may_stop => Next::Stop,
        () = distrusted, if is_trusted => Next::Distrusted,
        // Drives the whole connection, its answers included.
        accepted = wire.accept() => match accepted {
            Some(Ok(accepted)) => Next::Request(Box::new(accepted)),
            Some(Err(error)) => Next::Ended(Some(error)),
            None => Next::Ended(None),
        },
        () = late => Next::Late,
        () = idle => Next::Idle,
    }
}

/// Tells the client to calm down, and leaves.
async fn end_abruptly<S: AsyncRead + AsyncWrite + Unpin>(mut wire: Wire<S>) {
    wire.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    let told = poll_fn(|cx| match wire.poll_closed(cx) {
        Poll::Ready(_ended) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    });
    if tokio::time::timeout(GOODBYE, told).await.is_err() {
        tracing::debug!("a client over its limits did not read why");
    }
}

/// Counts what a client may do only so often.
struct Judge {
    malformed: u32,
    resets: u32,
    since: Timestamp,
    resets_before: u32,
}

impl Judge {
    fn new(resets: u32) -> Self {
        Self { malformed: 0, resets, since: now(), resets_before: 0 }
    }

    fn is_too_much(&mut self, streams: &Streams) -> bool {
        let now = now();
        let resets = streams.resets.load(Ordering::Relaxed);
        if now.since(self.since) > RESET_WINDOW {
            self.since = now;
            self.resets_before = resets;
        }
        self.malformed >= MALFORMED_LIMIT || resets - self.resets_before > self.resets
    }
}

fn builder(limits: &Http2Limits) -> Builder {
    let size = |size: ByteSize| u32::try_from(size.0).unwrap_or(u32::MAX);
    let resets = usize::try_from(limits.resets).unwrap_or(usize::MAX);
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(size(limits.header_list))
        .initial_window_size(size(limits.window))
        .initial_connection_window_size(size(limits.connection_window))
        .max_frame_size(size(limits.frame))
        .max_send_buffer_size(limits.send_buffer.to_usize())
        // Streams that are reset before they were looked at, and those we had to reset ourselves.
        .max_pending_accept_reset_streams(resets.min(20))
        .max_local_error_reset_streams(Some(resets))
        .max_concurrent_reset_streams(50);
    builder
}
