//! Waits for the next request head of a connection.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::Http1Connection;

/// The time for which a connection stays open after a response when the process ends: its last
/// response allowed another request, and the client may be about to send it.
pub(crate) const IDLE_GRACE: Duration = Duration::from_millis(500);

/// Waits for heads until the idle timeout, until the client's CA is revoked, or until a shutdown
/// closes idle connections.
pub(crate) struct HeadWait<'a, C> {
    /// Resolves when idle connections are to be closed.
    closing: Pin<&'a mut C>,
    is_closing: bool,
    ca_revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    is_ca_revoked: bool,
    /// Keeps running while requests are served, and is reset only when it fires: most waits are far
    /// shorter, and a reset per request is not free.
    idle: Pin<&'a mut Sleep>,
    idle_timeout: Duration,
}

impl<'a, C: Future> HeadWait<'a, C> {
    /// Waits with `idle`, which must have been created with `idle_timeout`.
    pub(crate) fn new(
        closing: Pin<&'a mut C>,
        idle: Pin<&'a mut Sleep>,
        idle_timeout: Duration,
    ) -> Self {
        let (ca_revoked, is_ca_revoked, is_closing) = (None, false, false);
        Self { closing, is_closing, ca_revoked, is_ca_revoked, idle, idle_timeout }
    }

    /// Ends the wait, between two requests, when `token` is cancelled.
    pub(crate) fn end_with(&mut self, token: Option<CancellationToken>) {
        self.ca_revoked = token.map(|token| Box::pin(token.cancelled_owned()));
    }

    /// Waits for the next head; `None` when no more heads follow.
    pub(crate) async fn next_head(&mut self, client: &Http1Connection) -> Option<BytesMut> {
        let since = Instant::now();
        poll_fn(|cx| {
            // Checked before the next request: its client is no longer authenticated.
            if let Some(ca_revoked) = &mut self.ca_revoked
                && ca_revoked.as_mut().poll(cx).is_ready()
            {
                self.is_ca_revoked = true;
                return Poll::Ready(None);
            }
            // Before the timeouts: a head that has arrived is served even if the process stops.
            if let Poll::Ready(head) = client.poll_head(cx) {
                return Poll::Ready(head);
            }
            self.is_closing = self.is_closing || self.closing.as_mut().poll(cx).is_ready();
            let limit = match self.is_closing {
                true => self.idle_timeout.min(IDLE_GRACE),
                false if client.is_idle() => self.idle_timeout,
                // A head has started: its deadline is `HeadReader`'s.
                false => return Poll::Pending,
            };
            self.poll_idle(cx, since + limit).map(|()| None)
        })
        .await
    }

    /// Returns whether the wait ended because the client's CA was revoked.
    pub(crate) fn is_ca_revoked(&self) -> bool {
        self.is_ca_revoked
    }

    /// Sets the limit of the next waits.
    pub(crate) fn set_idle_timeout(&mut self, idle_timeout: Duration) {
        self.idle_timeout = idle_timeout;
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>, end: Instant) -> Poll<()> {
        if self.is_closing && self.idle.deadline() > end {
            self.idle.as_mut().reset(end);
        }
        loop {
            ready!(self.idle.as_mut().poll(cx));
            if Instant::now() >= end {
                return Poll::Ready(());
            }
            self.idle.as_mut().reset(end);
        }
    }
}
