//! The events that end an attempt early: the client leaves, or the deadline passes.

use std::io;
use std::task::{Context, Poll};

use super::deadline::Deadline;
use super::failure::ExchangeError;

/// Watches the client of an attempt. Implemented by the owner of the client's connection, so that
/// this module does not know it.
pub(crate) trait ClientWatch: Sync {
    /// Ready once the client has closed its connection or reset its stream.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends bytes that were written to the client and are still buffered, if any.
    ///
    /// # Errors
    /// When the client's connection is broken.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The client and the deadline of one attempt.
pub(crate) struct Interrupts<'a> {
    client: &'a dyn ClientWatch,
    pub(crate) deadline: Deadline,
}

impl<'a> Interrupts<'a> {
    pub(crate) fn new(client: &'a dyn ClientWatch, deadline: Deadline) -> Self {
        Self { client, deadline }
    }

    /// Returns the backend's progress if there is any, else whether the attempt is over. Progress
    /// comes first: a response that has arrived beats a deadline that passed between two polls.
    pub(crate) fn or_interrupted<T>(
        &mut self,
        progress: Poll<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, ExchangeError>> {
        if let Poll::Ready(value) = progress {
            return Poll::Ready(Ok(value));
        }
        if self.client.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(ExchangeError::ClientGone));
        }
        self.deadline.poll(cx).map(|code| Err(ExchangeError::TimedOut(code)))
    }

    /// Like `or_interrupted`, for a read of the response. While the backend sends nothing, the
    /// client gets the bytes so far: a response that arrives whole is written at once, one that
    /// pauses is not delayed.
    pub(super) fn or_flushed<T>(
        &mut self,
        received: Poll<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, ExchangeError>> {
        if received.is_pending() && matches!(self.client.poll_flush(cx), Poll::Ready(Err(_))) {
            return Poll::Ready(Err(ExchangeError::ClientGone));
        }
        self.or_interrupted(received, cx)
    }
}
