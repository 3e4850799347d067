//! The failures that a test can inject into an engine, and that its client should survive.

use std::time::Duration;

use super::Gate;

/// One way for an engine to fail. Stream faults act on a plain response by its bytes: if a fault
/// counts events, half of the body is sent. A count beyond the end of a stream leaves the response
/// complete, except with `ShortLength`.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Closes a new connection at once. If the request has already arrived, the kernel turns the
    /// FIN into an RST. Applies to the next new connection, including that of a health check.
    CloseOnAccept,
    /// Resets a new connection at once. Applies to the next new connection.
    ResetOnAccept,
    /// Closes (an RST, on Linux) when the first bytes of the request arrive, without reading any.
    CloseUnread,
    /// Reads the whole request, then closes.
    CloseAfterRequest,
    /// Reads the whole request, then resets.
    ResetAfterRequest,
    /// Responds with another status.
    Status {
        status: u16,
        /// The verbatim value of `Retry-After`.
        retry_after: Option<String>,
        /// The body, sent as JSON.
        body: String,
        headers: Vec<(String, String)>,
    },
    /// Responds with this status as soon as the head arrives, without reading the body, and closes.
    EarlyStatus(u16),
    /// Reads the request and stays silent.
    HangBeforeHead,
    /// Sends the head and stays silent.
    HangAfterHead,
    /// Ends the stream after `after_events` events.
    CutStream {
        /// The number of complete events sent first.
        after_events: u32,
        how: Cut,
    },
    /// Sends half of the response's body; of a stream, the first event.
    CutResponse {
        how: Cut,
    },
    /// Stays silent after `after_events` events.
    HangMidStream {
        /// The number of complete events sent first.
        after_events: u32,
    },
    /// Sends only keep-alive pings after `after_events` events.
    PingsOnly {
        every: Duration,
        /// The number of complete events sent first.
        after_events: u32,
    },
    /// Sends the part before the first token (the role), then stays silent.
    RoleOnlyThenHang,
    /// Reports an error within the stream after `after_events` events, and ends it without
    /// `[DONE]`.
    ErrorEventMidStream {
        /// The number of complete events sent first.
        after_events: u32,
    },
    /// Responds with bytes that are not HTTP, and closes.
    Garbage,
    /// Responds with a body without a head, and closes.
    Http09,
    /// Switches protocols without a request to, and sends bytes of the other protocol.
    Switching101,
    /// Declares both `Content-Length` and `Transfer-Encoding: chunked`.
    TwoLengths,
    /// Sends a second response directly after the first, in the same write.
    QueuedSecondResponse,
    /// Sends `count` responses `103 Early Hints` before the final one.
    Informational {
        /// The number of early responses.
        count: u32,
    },
    /// Pads the head of the response with `bytes` bytes of header values, at most 4000 in each.
    BigHead {
        bytes: usize,
    },
    /// Closes directly after a response that promised keep-alive.
    CloseAfterResponse,
    SlowHead(Duration),
    /// Marks the end of the response by closing, without `Content-Length` or chunks.
    CloseDelimited,
    /// Waits at a gate before the head, then responds as usual.
    Gate(Gate),
    /// No fault: a script entry for a request that succeeds.
    Pass,
}

/// The way in which a response ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Fin,
    Reset,
    /// A chunk starts with invalid bytes; then the connection is closed.
    BadChunk,
    /// The connection is closed before `Content-Length` bytes were sent.
    ShortLength,
}

impl Fault {
    /// Creates a status fault with a short error body.
    pub fn status(status: u16) -> Self {
        let body = format!(r#"{{"error":{{"message":"scripted","code":{status}}}}}"#);
        Self::Status { status, retry_after: None, body, headers: Vec::new() }
    }

    /// Creates a status fault with a `Retry-After` header.
    pub fn status_with_retry(status: u16, retry_after: &str) -> Self {
        let body = format!(r#"{{"error":{{"message":"scripted","code":{status}}}}}"#);
        let retry_after = Some(retry_after.to_owned());
        Self::Status { status, retry_after, body, headers: Vec::new() }
    }

    // They need no request, and so must not wait in the queue of those that do.
    pub(super) fn is_at_accept(&self) -> bool {
        matches!(self, Self::CloseOnAccept | Self::ResetOnAccept)
    }
}
