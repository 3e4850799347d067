//! One request and the head of its response on one connection, while the client and the deadline
//! are watched. HTTP/2 passes through here, too, behind a stream that speaks HTTP/1.1
//! (`http2/stream.rs`).

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pingora::protocols::Stream;
use tokio::io::AsyncWrite;

use super::connection::{Connection, READ_CHUNK};
use super::failure::{ConnectionEnd, ExchangeError};
use super::interrupt::Interrupts;
use super::request_writer::RequestParts;
use super::response_head::{InvalidResponse, ResponseHead, ResponseHeadReader};
use crate::wire::poll_read_into;

/// The longest single read of a response.
const MAX_READ_BYTES: usize = 64 * 1024;

/// A connection in use for one request.
pub(crate) struct Exchange<'a> {
    pub(crate) connection: Connection,
    pub(crate) interrupts: Interrupts<'a>,
    next_read: usize,
    /// True if the request may switch protocols, so that a 101 is its response.
    pub(crate) accepts_switch: bool,
    /// True if the response is converted, so that its payload must not be encoded.
    pub(crate) needs_payload: bool,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(connection: Connection, interrupts: Interrupts<'a>) -> Self {
        Self {
            connection,
            interrupts,
            next_read: READ_CHUNK,
            accepts_switch: false,
            needs_payload: false,
        }
    }

    /// Sends head and body in as few writes as the socket takes, and reads the head of the
    /// response. An engine may respond before it has read everything; its connection cannot be
    /// reused then.
    pub(crate) async fn request(
        &mut self,
        parts: RequestParts<'_>,
    ) -> Result<ResponseHead, ExchangeError> {
        // Before the first byte is written: a close that is seen here is safe to retry.
        if self.connection.is_reused && !self.connection.is_silent() {
            return Err(ExchangeError::ClosedWhileSending);
        }
        let length = parts.iter().map(|part| part.len()).sum();
        // Before the write: the kernel's count must not contain bytes of this request yet.
        self.connection.begin_request(length);
        match self.send(parts).await {
            Ok(()) => self.read_head().await,
            Err(ExchangeError::ClosedWhileSending) => {
                let early = self.read_head().await.map_err(|error| match error {
                    ExchangeError::ClientGone
                    | ExchangeError::TimedOut(_)
                    | ExchangeError::BadResponse(_) => error,
                    ExchangeError::Ended(_) | ExchangeError::ClosedWhileSending => {
                        ExchangeError::ClosedWhileSending
                    }
                })?;
                Ok(ResponseHead { keeps_alive: false, ..early })
            }
            Err(error) => Err(error),
        }
    }

    async fn read_head(&mut self) -> Result<ResponseHead, ExchangeError> {
        let mut reader = ResponseHeadReader::new(self.accepts_switch);
        loop {
            if !self.connection.read.is_empty() {
                let parsed = reader.parse(&mut self.connection.read);
                if let Some(head) = parsed.map_err(ExchangeError::BadResponse)? {
                    return self.check_coding(head).map_err(ExchangeError::BadResponse);
                }
            }
            if self.read_more().await? == 0 {
                // With a part of a head the backend has started to respond: only an end without a
                // byte may be retried.
                let is_cut = !self.connection.read.is_empty();
                return Err(match is_cut {
                    true => ExchangeError::BadResponse(InvalidResponse::NotHttp),
                    false => ExchangeError::Ended(ConnectionEnd::Closed),
                });
            }
        }
    }

    /// Refuses an encoded payload that must be read. For an error the status is enough.
    fn check_coding(&self, head: ResponseHead) -> Result<ResponseHead, InvalidResponse> {
        let must_be_plain = self.needs_payload && matches!(head.status, 200..=299);
        match head.coding().filter(|_| must_be_plain) {
            Some(coding) => Err(InvalidResponse::Encoded(coding)),
            None => Ok(head),
        }
    }

    async fn send(&mut self, parts: RequestParts<'_>) -> Result<(), ExchangeError> {
        let Self { connection, interrupts, .. } = self;
        let mut rest = parts;
        let sent = poll_fn(|cx| {
            let sent = poll_send(&mut connection.stream, cx, &mut rest);
            interrupts.or_interrupted(sent, cx)
        })
        .await?;
        sent.map_err(|_closed| ExchangeError::ClosedWhileSending)
    }

    /// Reads the next bytes of the response; 0 means that the backend closed.
    pub(crate) async fn read_more(&mut self) -> Result<usize, ExchangeError> {
        let limit = self.next_read;
        let Self { connection, interrupts, .. } = self;
        let Connection { stream, read, .. } = connection;
        read.reserve(limit.min(READ_CHUNK));
        let count = poll_fn(|cx| {
            let received = poll_read_into(Pin::new(&mut *stream), cx, read, limit);
            interrupts.or_flushed(received, cx)
        })
        .await?
        .map_err(|error| ExchangeError::Ended(end_of(&error)))?;
        // A read that fills its limit has more after it: the next one is larger.
        self.next_read = if count == limit { MAX_READ_BYTES } else { READ_CHUNK };
        if self.next_read == MAX_READ_BYTES {
            self.connection.read.reserve(MAX_READ_BYTES);
        }
        Ok(count)
    }
}

fn end_of(error: &io::Error) -> ConnectionEnd {
    match error.kind() {
        // A FIN without the end of the TLS session before it.
        io::ErrorKind::UnexpectedEof => ConnectionEnd::Closed,
        _ => ConnectionEnd::Reset,
    }
}

fn poll_send(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    rest: &mut RequestParts<'_>,
) -> Poll<io::Result<()>> {
    loop {
        if rest.iter().all(|part| part.is_empty()) {
            return Pin::new(stream).poll_flush(cx);
        }
        let slices = rest.map(IoSlice::new);
        let mut written = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        for part in rest.iter_mut() {
            let (done, left) = part.split_at(written.min(part.len()));
            *part = left;
            written -= done.len();
        }
    }
}
