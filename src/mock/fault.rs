//! The ways in which a test can make an engine fail, and its client is meant to survive.

use std::time::Duration;

use super::Gate;

/// One way for an engine to fail. Faults of streams act on a plain response by its bytes: where a
/// fault counts events, half of the body is sent. A count beyond the end of a stream
/// leaves the response whole, unless it is cut by a `ShortLength`.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Closes a new connection at once. If the request is already there, the kernel turns the FIN
    /// into an RST. Applies to the next new connection, a health check's included.
    CloseOnAccept,
    /// Resets a new connection at once. Taken by the next new connection.
    ResetOnAccept,
    /// Closes (an RST, on Linux) when the request's first bytes are there, without reading any.
    CloseUnread,
    /// Reads the whole request, then closes.
    CloseAfterRequest,
    /// Reads the whole request, then resets.
    ResetAfterRequest,
    /// Responses something else.
    Status {
        /// The status.
        status: u16,
        /// The verbatim value of `Retry-After`.
        retry_after: Option<String>,
        /// The body, sent as JSON.
        body: String,
        /// Further headers.
        headers: Vec<(String, String)>,
    },
    /// Responses this status after the head, before it reads the body, and closes.
    EarlyStatus(u16),
    /// Reads the request and stays silent.
    HangBeforeHead,
    /// Sends the head and stays silent.
    HangAfterHead,
    /// Ends the stream after so many events.
    CutStream {
        /// How many whole events are sent before.
        after_events: u32,
        /// How it ends.
        how: Cut,
    },
    /// Sends half of the response's body. Of a stream, the first event.
    CutResponse {
        /// How it ends.
        how: Cut,
    },
    /// Stays silent after so many events.
    HangMidStream {
        /// How many whole events are sent before.
        after_events: u32,
    },
    /// Sends only keep-alive pings after this many events.
    PingsOnly {
        /// From each ping to the next.
        every: Duration,
        /// How many whole events are sent before.
        after_events: u32,
    },
    /// Sends what comes before the first token (the role), then stays silent.
    RoleOnlyThenHang,
    /// Reports an error within the stream after so many events, and ends it without `[DONE]`.
    ErrorEventMidStream {
        /// How many whole events are sent before.
        after_events: u32,
    },
    /// Responses bytes that are not HTTP, and closes.
    Garbage,
    /// Responses a body without a head, and closes.
    Http09,
    /// Switches protocols unasked, and sends bytes of that other protocol.
    Switching101,
    /// Declares both `Content-Length` and `Transfer-Encoding: chunked`.
    TwoLengths,
    /// Sends a second response directly after the first, in the same write.
    QueuedSecondResponse,
    /// Sends so many `103 Early Hints` before the response.
    Informational {
        /// How many.
        count: u32,
    },
    /// Pads the head of the response with so many bytes of header values, at most 4000 in each.
    BigHead {
        /// How many.
        bytes: usize,
    },
    /// Closes directly after a response that promised keep-alive.
    CloseAfterResponse,
    /// Waits before the head.
    SlowHead(Duration),
    /// Marks the end of the response by closing, without `Content-Length` or chunks.
    CloseDelimited,
    /// Waits at a gate before the head, then responds as usual.
    Gate(Gate),
    /// No fault: an entry of the script for a request that succeeds.
    Pass,
}

/// How a response ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The connection is closed.
    Fin,
    /// The connection is reset.
    Reset,
    /// Where a chunk should start there is something else; then the connection is closed.
    BadChunk,
    /// The connection is closed before as many bytes as `Content-Length` said.
    ShortLength,
}

impl Fault {
    /// A status with a short error body.
    pub fn status(status: u16) -> Self {
        let body = format!(r#"{{"error":{{"message":"scripted","code":{status}}}}}"#);
        Self::Status { status, retry_after: None, body, headers: Vec::new() }
    }

    /// A status with `Retry-After`.
    pub fn status_with_retry(status: u16, retry_after: &str) -> Self {
        let body = format!(r#"{{"error":{{"message":"scripted","code":{status}}}}}"#);
        let retry_after = Some(retry_after.to_owned());
        Self::Status { status, retry_after, body, headers: Vec::new() }
    }

    pub(super) fn is_at_accept(&self) -> bool {
        matches!(self, Self::CloseOnAccept | Self::ResetOnAccept)
    }
}
