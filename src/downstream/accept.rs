//! From an accepted connection to the HTTP it speaks.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use pingora::apps::HttpServerApp;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::close_reasons::ClosedFor;
use super::guard::{ClientStream, ConnectionLimits, GuardStream, Guarded};
use super::http2;
use super::listener::{Port, Rejoined, Unwelcome, Welcomed};

impl<A: HttpServerApp + Send + Sync + 'static> Guarded<A> {
    /// Serves one request after the other. Pingora comes in when a head is there: its part takes
    /// tens of kilobytes.
    pub(crate) async fn serve_http1(
        &self,
        mut welcomed: Welcomed,
        limits: ConnectionLimits,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let distrusted = welcomed.distrusted.take();
        let client = Arc::new(ClientStream::new(welcomed, limits));
        let mut stream: Stream = Box::new(GuardStream(Arc::clone(&client)));
        let closing = pin!(self.closing.cancelled());
        let idle = pin!(tokio::time::sleep(limits.idle));
        let mut waiting = Waiting::new(closing, idle, limits.idle);
        waiting.distrusted = distrusted.map(|token| Box::pin(token.cancelled_owned()));
        while let Some(head) = waiting.for_head(&client).await {
            let mut session = ServerSession::new_http1(stream);
            session.set_pipelined_prefix(head);
            (stream, _) = self.inner.process_new_http(session, shutdown).await?.consume();
        }
        if waiting.is_distrusted {
            self.proxy.closings.note(ClosedFor::Distrusted);
        }
        None
    }

    /// Serves a connection on which something comes before HTTP/1.1, or instead of it.
    pub(crate) async fn serve_welcomed(
        &self,
        stream: Stream,
        (port, limits): (&Port, ConnectionLimits),
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let generation = self.proxy.generation();
        let trusted = &generation.config.server.trusted_proxies;
        let welcomed = match port.welcome(stream, trusted, limits.head_time).await {
            Ok(welcomed) => welcomed,
            Err(reason) => {
                self.note_unwelcome(reason);
                return None;
            }
        };
        drop(generation);
        if !welcomed.is_http2 {
            return self.serve_http1(welcomed, limits, shutdown).await;
        }
        let Welcomed { stream, ahead, origin, distrusted, .. } = welcomed;
        let connection = http2::Connection { proxy: Arc::clone(&self.proxy), origin, distrusted };
        connection.serve(&self.inner, Rejoined { ahead, stream }, shutdown).await;
        None
    }

    fn note_unwelcome(&self, reason: Unwelcome) {
        let reason = match reason {
            Unwelcome::Silent => return,
            Unwelcome::TooSlow => ClosedFor::TooSlow,
            Unwelcome::ProxyHeader => ClosedFor::ProxyHeader,
            Unwelcome::Tls => ClosedFor::Tls,
        };
        self.proxy.closings.note(reason);
    }
}

/// Waits for the next head of a connection, as long as it may be idle and until all such
/// connections are closed.
pub(crate) struct Waiting<'a, C> {
    closing: Pin<&'a mut C>,
    /// The end of a connection whose client has shown a certificate.
    distrusted: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    is_distrusted: bool,
    /// Runs on while requests are served, and is set anew only when it runs out: most waits are far
    /// shorter than it is.
    idle: Pin<&'a mut Sleep>,
    limit: Duration,
}

impl<'a, C: Future> Waiting<'a, C> {
    /// Waits as long as `idle` lasts, or until `closing`.
    pub(crate) fn new(closing: Pin<&'a mut C>, idle: Pin<&'a mut Sleep>, limit: Duration) -> Self {
        Self { closing, distrusted: None, is_distrusted: false, idle, limit }
    }

    /// The next head; `None` when there will be none.
    pub(crate) async fn for_head(&mut self, client: &ClientStream) -> Option<BytesMut> {
        let mut since = None;
        poll_fn(|cx| {
            // Before the next request: it would be one of a client that is not known any more.
            if let Some(distrusted) = &mut self.distrusted
                && distrusted.as_mut().poll(cx).is_ready()
            {
                self.is_distrusted = true;
                return Poll::Ready(None);
            }
            if let Poll::Ready(head) = client.poll_head(cx) {
                return Poll::Ready(head);
            }
            if self.closing.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            if !client.is_idle() {
                return Poll::Pending;
            }
            let ends = *since.get_or_insert_with(Instant::now) + self.limit;
            self.poll_idle(cx, ends).map(|()| None)
        })
        .await
    }

    /// How long the next waits may last.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>, ends: Instant) -> Poll<()> {
        loop {
            ready!(self.idle.as_mut().poll(cx));
            if Instant::now() >= ends {
                return Poll::Ready(());
            }
            self.idle.as_mut().reset(ends);
        }
    }
}
