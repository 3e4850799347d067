//! Both directions of one stream: the proxy reads the body and watches for a reset on the one,
//! while the session writes the answer on the other.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use parking_lot::Mutex;

use crate::downstream::guard::Origin;

/// The client's side of one stream. Dropped before the answer is whole, it resets the stream behind
/// what was handed over, so that what broke off never looks whole. Only one task ever uses it, so the lock is never contended.
pub(crate) struct ClientHalf {
    wire: Mutex<Wire>,
    origin: Origin,
    was_reset: AtomicBool,
}

struct Wire {
    body: RecvStream,
    /// A frame that was longer than the last read.
    rest: Bytes,
    answer: Answer,
}

enum Answer {
    Head(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
    /// Its last frame has been handed over.
    Whole,
}

impl ClientHalf {
    pub(crate) fn new(body: RecvStream, answer: SendResponse<Bytes>, origin: Origin) -> Self {
        let wire = Wire { body, rest: Bytes::new(), answer: Answer::Head(answer) };
        Self { wire: Mutex::new(wire), origin, was_reset: AtomicBool::new(false) }
    }

    /// Where the connection came from.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether no body follows the head.
    pub(crate) fn is_body_done(&self) -> bool {
        let wire = self.wire.lock();
        wire.rest.is_empty() && wire.body.is_end_stream()
    }

    /// Whether the client was seen to give the stream up.
    pub(crate) fn was_reset(&self) -> bool {
        self.was_reset.load(Ordering::Relaxed)
    }

    fn note_reset(&self) {
        self.was_reset.store(true, Ordering::Relaxed);
    }

    /// Reads up to `limit` bytes of the body to the end of `into`; zero bytes are its end.
    pub(crate) fn poll_body(
        &self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        let mut wire = self.wire.lock();
        let Wire { body, rest, .. } = &mut *wire;
        while rest.is_empty() {
            match std::task::ready!(body.poll_data(cx)) {
                Some(Ok(data)) => *rest = data,
                Some(Err(error)) => {
                    self.note_reset();
                    return Poll::Ready(Err(io::Error::other(error)));
                }
                None => return Poll::Ready(Ok(0)),
            }
        }
        let count = rest.len().min(limit);
        into.extend_from_slice(rest.get(..count).unwrap_or_default());
        rest.advance(count);
        // What is held in the body's buffer is bounded there; the window is for what is not yet.
        let released = body.flow_control().release_capacity(count);
        Poll::Ready(released.map(|()| count).map_err(io::Error::other))
    }

    /// Ready once the client has reset the stream or its connection is gone.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.wire.lock().answer {
            Answer::Head(answer) => answer.poll_reset(cx),
            Answer::Body(answer) => answer.poll_reset(cx),
            Answer::Whole => return Poll::Pending,
        };
        reset.map(|_why| self.note_reset())
    }

    /// Sends an interim answer.
    pub(crate) fn send_interim(&self, head: Response<()>) -> Result<(), h2::Error> {
        match &mut self.wire.lock().answer {
            Answer::Head(answer) => answer.send_informational(head),
            Answer::Body(_) | Answer::Whole => Ok(()),
        }
    }

    /// Sends the answer's head; `is_last` when no body follows.
    pub(crate) fn send_head(&self, head: Response<()>, is_last: bool) -> Result<(), h2::Error> {
        let mut wire = self.wire.lock();
        let Answer::Head(answer) = &mut wire.answer else { return Ok(()) };
        let body = answer.send_response(head, is_last).inspect_err(|_reset| self.note_reset())?;
        wire.answer = if is_last { Answer::Whole } else { Answer::Body(body) };
        Ok(())
    }

    /// Hands over as much of `data` as the client has room for; ready once all of it is, and the
    /// end with it.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
        is_last: bool,
    ) -> Poll<Result<(), Gone>> {
        let mut wire = self.wire.lock();
        let Answer::Body(answer) = &mut wire.answer else { return Poll::Ready(Err(Gone)) };
        while !data.is_empty() {
            answer.reserve_capacity(data.len());
            match std::task::ready!(answer.poll_capacity(cx)) {
                Some(Ok(room)) => {
                    let part = data.split_to(room.min(data.len()));
                    let is_end = is_last && data.is_empty();
                    answer.send_data(part, is_end).map_err(|_reset| self.gone())?;
                    if is_end {
                        wire.answer = Answer::Whole;
                        return Poll::Ready(Ok(()));
                    }
                }
                Some(Err(_)) | None => return Poll::Ready(Err(self.gone())),
            }
        }
        if is_last {
            answer.send_data(Bytes::new(), true).map_err(|_reset| self.gone())?;
            wire.answer = Answer::Whole;
        }
        Poll::Ready(Ok(()))
    }

    fn gone(&self) -> Gone {
        self.note_reset();
        Gone
    }

    /// Breaks the stream off, unless its answer is whole.
    pub(crate) fn reset(&self, reason: Reason) {
        match &mut self.wire.lock().answer {
            Answer::Head(answer) => answer.send_reset(reason),
            Answer::Body(answer) => answer.send_reset(reason),
            Answer::Whole => {}
        }
    }

    /// Whether the answer has been handed over to its end.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.wire.lock().answer, Answer::Whole)
    }
}

/// The client has given the stream up, or its connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl fmt::Debug for ClientHalf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientHalf")
    }
}
