//! Collects the bytes of a request head until it is whole and checked, within its limits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use memchr::memmem;
use penstock_api::slices::split_at;
use pingora::protocols::Stream;
use tokio::time::Sleep;

use super::super::head_check;
use super::super::head_check::HeadError;
use super::super::limits::HeadLimits;
use crate::wire::poll_read_into;

/// The size of a read: most heads and the start of the body fit.
pub(super) const HEAD_READ: usize = 4096;
/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

/// Reads the next head and keeps the state of the search for its end.
pub(super) struct HeadReader {
    limits: HeadLimits,
    /// The size of the next read.
    pub(super) next_read: usize,
    /// The bytes that were searched and checked before: a head that arrives byte by byte must not
    /// cost its length squared.
    searched: usize,
    /// True while an empty line may precede the head (RFC 9112 §2.2).
    may_skip_line: bool,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl HeadReader {
    pub(super) fn new(limits: HeadLimits) -> Self {
        let next_read = HEAD_READ;
        Self { limits, next_read, searched: 0, may_skip_line: true, deadline: None }
    }

    /// Resets the state for the next head.
    pub(super) fn start_next(&mut self) {
        (self.searched, self.may_skip_line, self.deadline) = (0, true, None);
    }

    /// Takes the next head off `ahead`, or returns its error and keeps its bytes. `None` when the
    /// client closed: half a head gets no response.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        ahead: &mut BytesMut,
    ) -> Poll<Option<Result<BytesMut, HeadError>>> {
        loop {
            if self.may_skip_line && ahead.starts_with(b"\r\n") {
                ahead.advance(2);
                (self.searched, self.may_skip_line) = (0, false);
            }
            match self.find_end(ahead) {
                Ok(Some(end)) => return Poll::Ready(Some(Ok(take_head(ahead, end)))),
                Ok(None) => self.searched = ahead.len(),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            ahead.reserve(self.next_read);
            match poll_read_into(Pin::new(&mut *stream), cx, ahead, self.next_read) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(self.poll_deadline(cx, ahead));
                    return Poll::Ready(Some(Err(HeadError::TimedOut)));
                }
            }
        }
    }

    /// The end of the head at the start of `ahead`, once it is whole and passes the check.
    fn find_end(&self, ahead: &BytesMut) -> Result<Option<usize>, HeadError> {
        let end = head_end(ahead, self.searched);
        // Also without an end: otherwise a client could send a head forever.
        if end.unwrap_or(ahead.len()) > self.limits.max_size {
            return Err(HeadError::TooLarge);
        }
        match end {
            Some(end) => {
                let (head, _body) = split_at(ahead, end);
                head_check::check(head, self.limits.max_fields).map(|()| Some(end))
            }
            // A CR at the very front may be half of an empty line.
            None if **ahead == *b"\r" => Ok(None),
            None => head_check::check_partial(ahead, self.searched).map(|()| None),
        }
    }

    /// Ready when a head that has started is late. A connection without a head is idle, which is
    /// for `HeadWait` to limit.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, ahead: &mut BytesMut) -> Poll<()> {
        if ahead.is_empty() {
            if self.next_read > HEAD_READ {
                // Many connections may be idle for long, and must not keep large buffers.
                *ahead = BytesMut::new();
            }
            return Poll::Pending;
        }
        let timeout = self.limits.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(cx)
    }
}

// Copied: Pingora's header fields point into it until the response has ended, and must not keep the
// memory of a body that was read along with them.
fn take_head(ahead: &mut BytesMut, end: usize) -> BytesMut {
    let (head, _body) = split_at(ahead, end);
    let head = BytesMut::from(head);
    ahead.advance(head.len());
    head
}

/// The end of the first head. All of it but the last byte may lie in the `searched` bytes.
fn head_end(bytes: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(END.len() - 1);
    memmem::find(bytes.get(from..)?, END).map(|at| from + at + END.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_end_is_found_wherever_a_read_splits_it() {
        let bytes = b"GET / HTTP/1.1\r\nhost: x\r\n\r\nrest";
        let end = bytes.len() - 4;
        for searched in 0..end {
            assert_eq!(head_end(&bytes[..end], searched), Some(end));
        }
        assert_eq!(head_end(&bytes[..end - 1], 0), None);
    }
}
