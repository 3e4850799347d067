//! Both directions of one HTTP/2 stream: the proxy reads the body and watches for a reset, while
//! Pingora's session writes the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use bytes::{Buf, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use parking_lot::Mutex;
use penstock_api::slices::split_at;

use super::super::certificate::CertificateNames;
use super::super::origin::Origin;

/// One stream of a client connection. If dropped before its response is complete, it resets the
/// stream after the bytes sent so far, so that a truncated response never looks complete. One task
/// at a time uses it, so the lock is never contended; it is never held across an await.
pub(crate) struct Http2Stream {
    wire: Mutex<WireState>,
    origin: Origin,
    certificate: Option<Arc<CertificateNames>>,
    was_reset: AtomicBool,
}

struct WireState {
    body: RecvStream,
    /// The unread bytes of a frame that was longer than the last read.
    rest: Bytes,
    response: ResponseState,
}

/// The part of the response that `h2` has.
enum ResponseState {
    Nothing(SendResponse<Bytes>),
    Head(SendStream<Bytes>),
    Complete,
}

/// The client has reset the stream, or its connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl Http2Stream {
    pub(crate) fn new(
        body: RecvStream,
        response: SendResponse<Bytes>,
        origin: Origin,
        certificate: Option<Arc<CertificateNames>>,
    ) -> Self {
        let wire =
            WireState { body, rest: Bytes::new(), response: ResponseState::Nothing(response) };
        Self { wire: Mutex::new(wire), origin, certificate, was_reset: AtomicBool::new(false) }
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn certificate(&self) -> Option<&Arc<CertificateNames>> {
        self.certificate.as_ref()
    }

    /// Returns whether no body follows the head.
    pub(crate) fn is_body_done(&self) -> bool {
        let wire = self.wire.lock();
        wire.rest.is_empty() && wire.body.is_end_stream()
    }

    /// Returns whether the client was seen to reset the stream.
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
        let WireState { body, rest, .. } = &mut *wire;
        // An empty DATA frame is not the end of the body.
        while rest.is_empty() {
            match ready!(body.poll_data(cx)) {
                Some(Ok(data)) => *rest = data,
                Some(Err(error)) => {
                    self.note_reset();
                    return Poll::Ready(Err(io::Error::other(error)));
                }
                None => return Poll::Ready(Ok(0)),
            }
        }
        let count = rest.len().min(limit);
        into.extend_from_slice(split_at(rest, count).0);
        rest.advance(count);
        // The budget of bodies bounds the bytes that have been read; the window bounds the others.
        let released = body.flow_control().release_capacity(count);
        Poll::Ready(released.map(|()| count).map_err(io::Error::other))
    }

    /// Ready once the client has reset the stream or its connection is gone.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.wire.lock().response {
            ResponseState::Nothing(response) => response.poll_reset(cx),
            ResponseState::Head(body) => body.poll_reset(cx),
            ResponseState::Complete => return Poll::Pending,
        };
        reset.map(|_why| self.note_reset())
    }

    /// Sends an interim response (1xx).
    pub(crate) fn send_interim(&self, head: Response<()>) -> Result<(), h2::Error> {
        match &mut self.wire.lock().response {
            ResponseState::Nothing(response) => response.send_informational(head),
            ResponseState::Head(_) | ResponseState::Complete => Ok(()),
        }
    }

    /// Sends the response's head; `is_last` if no body follows.
    pub(crate) fn send_head(&self, head: Response<()>, is_last: bool) -> Result<(), h2::Error> {
        let mut wire = self.wire.lock();
        let ResponseState::Nothing(response) = &mut wire.response else { return Ok(()) };
        let body = response.send_response(head, is_last).inspect_err(|_reset| self.note_reset())?;
        wire.response = if is_last { ResponseState::Complete } else { ResponseState::Head(body) };
        Ok(())
    }

    /// Sends as much of `data` as the client's window has room for; ready when all of it is sent.
    /// With `is_last`, ends the stream after it.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
        is_last: bool,
    ) -> Poll<Result<(), Gone>> {
        let mut wire = self.wire.lock();
        let ResponseState::Head(body) = &mut wire.response else { return Poll::Ready(Err(Gone)) };
        while !data.is_empty() {
            body.reserve_capacity(data.len());
            match ready!(body.poll_capacity(cx)) {
                Some(Ok(room)) => {
                    let part = data.split_to(room.min(data.len()));
                    let is_end = is_last && data.is_empty();
                    body.send_data(part, is_end).map_err(|_reset| self.gone())?;
                    if is_end {
                        wire.response = ResponseState::Complete;
                        return Poll::Ready(Ok(()));
                    }
                }
                Some(Err(_)) | None => return Poll::Ready(Err(self.gone())),
            }
        }
        if is_last {
            body.send_data(Bytes::new(), true).map_err(|_reset| self.gone())?;
            wire.response = ResponseState::Complete;
        }
        Poll::Ready(Ok(()))
    }

    fn gone(&self) -> Gone {
        self.note_reset();
        Gone
    }

    /// Resets the stream, unless its response is complete.
    pub(crate) fn reset(&self, reason: Reason) {
        match &mut self.wire.lock().response {
            ResponseState::Nothing(response) => response.send_reset(reason),
            ResponseState::Head(body) => body.send_reset(reason),
            ResponseState::Complete => {}
        }
    }

    /// Returns whether `h2` has the whole response.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.wire.lock().response, ResponseState::Complete)
    }
}

impl fmt::Debug for Http2Stream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Http2Stream")
    }
}
