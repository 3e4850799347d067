//! One request and its answer's head on one connection, with three things watched at once: the
//! backend, the client, and the clock.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora::protocols::Stream;
use tokio::io::AsyncWrite;

use super::deadline::Deadline;
use super::pool::{Connection, READ_CHUNK};
use super::response_head::{AnswerHead, BadAnswer, HeadReader};
use crate::api::ErrorCode;
use crate::downstream::client::Client;
use crate::wire::poll_read_into;

/// The longest single read of an answer.
const READ_MAX: usize = 64 * 1024;

/// Why an exchange stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The client closed its connection.
    ClientGone,
    /// A clock ran out.
    TimedOut(ErrorCode),
    /// The backend closed before the whole request was written.
    ClosedWhileSending,
    /// The backend closed behind the whole request, before or within its answer.
    Closed,
    /// The answer is not one to relay.
    Bad(BadAnswer),
}

/// A connection in use for one request.
pub(crate) struct Exchange<'a> {
    pub(crate) connection: Connection,
    pub(crate) client: &'a Client,
    pub(crate) deadline: &'a mut Deadline,
    next_read: usize,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        connection: Connection,
        client: &'a Client,
        deadline: &'a mut Deadline,
    ) -> Self {
        Self { connection, client, deadline, next_read: READ_CHUNK }
    }

    /// Sends head and body, in as few writes as the socket takes, and reads the answer's head. An
    /// engine may answer before it has read everything; its connection is of no further use then.
    pub(crate) async fn ask(&mut self, request: [&[u8]; 4]) -> Result<AnswerHead, Stop> {
        match self.send(request).await {
            Ok(()) => self.read_head().await,
            Err(Stop::ClosedWhileSending) => {
                let early = self.read_head().await.map_err(|stop| match stop {
                    Stop::ClientGone | Stop::TimedOut(_) | Stop::Bad(_) => stop,
                    Stop::Closed | Stop::ClosedWhileSending => Stop::ClosedWhileSending,
                })?;
                Ok(AnswerHead { keeps_alive: false, ..early })
            }
            Err(stop) => Err(stop),
        }
    }

    async fn read_head(&mut self) -> Result<AnswerHead, Stop> {
        let mut reader = HeadReader::default();
        loop {
            if !self.connection.read.is_empty() {
                let parsed = reader.parse(&mut self.connection.read).map_err(Stop::Bad)?;
                if let Some(head) = parsed {
                    return Ok(head);
                }
            }
            if self.read_more().await? == 0 {
                let is_cut = !self.connection.read.is_empty();
                return Err(if is_cut { Stop::Bad(BadAnswer::NotHttp) } else { Stop::Closed });
            }
        }
    }

    async fn send(&mut self, request: [&[u8]; 4]) -> Result<(), Stop> {
        let Self { connection, client, deadline, .. } = self;
        let mut rest = request;
        let sent = poll_fn(|cx| {
            let sent = poll_send(&mut connection.stream, cx, &mut rest);
            or_interrupted(sent, client, deadline, cx)
        })
        .await?;
        sent.map_err(|_closed| Stop::ClosedWhileSending)
    }

    /// Reads what the backend has to say next; zero bytes mean it closed.
    pub(crate) async fn read_more(&mut self) -> Result<usize, Stop> {
        let limit = self.next_read;
        let Self { connection, client, deadline, .. } = self;
        connection.read.reserve(limit.min(READ_CHUNK));
        let Connection { stream, read, .. } = connection;
        let count = poll_fn(|cx| {
            let received = poll_read_into(Pin::new(&mut *stream), cx, read, limit);
            or_interrupted(received, client, deadline, cx)
        })
        .await?
        .map_err(|_reset| Stop::Closed)?;
        // An engine that fills a whole read has more to say: take it in bigger bites.
        self.next_read = if count == limit { READ_MAX } else { READ_CHUNK };
        if self.next_read == READ_MAX {
            self.connection.read.reserve(READ_MAX);
        }
        Ok(count)
    }
}

/// The backend's progress first; else whether the client left or the clock ran out.
pub(crate) fn or_interrupted<T>(
    progress: Poll<T>,
    client: &Client,
    deadline: &mut Deadline,
    cx: &mut Context<'_>,
) -> Poll<Result<T, Stop>> {
    if let Poll::Ready(value) = progress {
        return Poll::Ready(Ok(value));
    }
    if client.poll_gone(cx).is_ready() {
        return Poll::Ready(Err(Stop::ClientGone));
    }
    deadline.poll(cx).map(|code| Err(Stop::TimedOut(code)))
}

fn poll_send(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    rest: &mut [&[u8]; 4],
) -> Poll<io::Result<()>> {
    loop {
        if rest.iter().all(|part| part.is_empty()) {
            return Pin::new(stream).poll_flush(cx);
        }
        let slices = rest.map(IoSlice::new);
        let mut written =
            std::task::ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        for part in rest.iter_mut() {
            let count = written.min(part.len());
            *part = part.get(count..).unwrap_or_default();
            written -= count;
        }
    }
}
