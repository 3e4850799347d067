//! Relays a response to the client: as it arrives, unbuffered and, without a [`Transform`],
//! unchanged. Counts the tokens on the way and makes every broken end visible.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::HeaderName;
use penstock_api::ErrorCode;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_config::TimeoutsConfig;
use pingora::http::ResponseHeader;

use super::beginning::Beginning;
use super::failure::ExchangeError;
use super::http1::Exchange;
use super::own_key::OwnKey;
use super::response_monitor::ResponseMonitor;
use crate::wire::body_budget::BodyClaim;

/// The end of the relay of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayEnd {
    Complete,
    /// Complete by the last event of a stream, after which the backend has not ended the body.
    Unterminated,
    /// The client left, after the last event of a stream.
    LeftAfterEnd,
    ClientGone,
    /// The backend broke off, fell silent, or sent something that cannot be relayed.
    Cut(ErrorCode),
}

/// Receives the progress of a relay.
pub(crate) trait RelayObserver: Send {
    /// `events` with tokens are about to be written to the client.
    fn tokens_passed(&mut self, is_first: bool, events: u32, now: Timestamp);
    /// Bytes without tokens have come from the backend.
    fn bytes_passed(&mut self, now: Timestamp);
    /// The client does not read, so that the relay waits; or, if false, it waits no longer.
    fn client_waits(&mut self, waits: bool);
    /// The response has been read to its end, and its last part is about to be written: the backend
    /// is free from now on.
    fn response_read(&mut self, monitor: &ResponseMonitor);
}

/// Changes the payload of a response on its way to the client.
pub(crate) trait Transform: Send {
    /// Returns the bytes for the client in place of a part of the payload; may be empty. `is_last`:
    /// the response ends with this part.
    ///
    /// # Errors
    /// When the response cannot be continued; [`Transform::cut`] ends it.
    fn apply(&mut self, payload: Bytes, is_last: bool, now: Timestamp) -> Result<Bytes, ErrorCode>;

    /// Returns the bytes that end the response as a visible failure, so that the client does not
    /// take it for complete.
    fn cut(&mut self, code: ErrorCode, message: &str) -> Bytes;
}

/// The parameters of the relay of one response.
pub(crate) struct RelayTerms<'a> {
    /// The part of the body that has been read.
    pub(crate) started: Beginning,
    pub(crate) timeouts: &'a TimeoutsConfig,
    pub(crate) observer: &'a mut dyn RelayObserver,
    pub(crate) output: RelayOutput<'a>,
}

/// The changes of a response on its way to the client.
pub(crate) struct RelayOutput<'a> {
    pub(crate) transform: Option<&'a mut (dyn Transform + 'static)>,
    /// The head of the response, if the client gets it with the first token.
    pub(crate) held: Option<&'a mut HeldHead>,
    /// The backend's key, which is masked in what follows a reported error.
    pub(crate) key: Option<OwnKey<'a>>,
}

impl RelayOutput<'_> {
    /// Writes a part of the payload, which may be empty, after the held head.
    async fn write(
        &mut self,
        client: &mut impl ResponseSink,
        payload: Bytes,
        first_token: Option<Timestamp>,
        is_last: bool,
    ) -> Result<(), RelayEnd> {
        let mut payload = payload;
        let mut is_changed = self.transform.is_some();
        if let Some(held) = self.held.as_deref_mut() {
            payload = held.pass(payload);
            let is_due = first_token.is_some() || is_last || payload.len() >= MAX_HELD;
            is_changed = true;
            match held.header.take() {
                Some(header) if !is_due => {
                    (held.header, held.payload) = (Some(header), payload.into());
                    return Ok(());
                }
                Some(mut header) => {
                    held.timing.describe(&mut header, first_token);
                    let written = client.write_head(header).await;
                    written.map_err(|_gone| RelayEnd::ClientGone)?;
                }
                None => {}
            }
        }
        if payload.is_empty() && is_changed && !is_last {
            return Ok(());
        }
        let written = client.write_body(payload, is_last).await;
        written.map_err(|_gone| RelayEnd::ClientGone)
    }

    /// Masks the backend's key in a payload in or after which an error was reported.
    fn masked(&self, payload: Bytes, monitor: &ResponseMonitor) -> Bytes {
        match self.key.filter(|_| monitor.has_reported_error()) {
            Some(key) => key.mask(payload),
            None => payload,
        }
    }

    fn transform(&mut self, payload: Bytes, is_last: bool) -> Result<Bytes, ErrorCode> {
        match &mut self.transform {
            None => Ok(payload),
            Some(transform) => transform.apply(payload, is_last, now()),
        }
    }
}

/// The way of a response to its client, whichever front door the request came through.
pub(crate) trait ResponseSink {
    /// Writes the head.
    ///
    /// # Errors
    /// When the client is gone.
    fn write_head(
        &mut self,
        head: Box<ResponseHeader>,
    ) -> impl Future<Output = pingora::Result<()>> + Send;

    /// Writes a part of the body; the last one if `is_end`.
    ///
    /// # Errors
    /// When the client is gone.
    fn write_body(
        &mut self,
        part: Bytes,
        is_end: bool,
    ) -> impl Future<Output = pingora::Result<()>> + Send;
}

/// The most payload bytes that are held before the first token.
const MAX_HELD: usize = 64 * 1024;

/// The longest wait for the end of a body after the last event of its stream: the client has all of
/// the response, and the backend should be free for the next request.
const MAX_LAST_WAIT: Duration = Duration::from_secs(1);

/// A head that is held until the first token, so that it can state its time, and the payload before
/// it.
pub(crate) struct HeldHead {
    header: Option<Box<ResponseHeader>>,
    payload: BytesMut,
    timing: ServerTiming,
}

impl HeldHead {
    pub(crate) fn new(header: Box<ResponseHeader>, timing: ServerTiming) -> Self {
        Self { header: Some(header), payload: BytesMut::new(), timing }
    }

    /// Writes the head and the held payload, unless the client already has them.
    pub(crate) async fn write(&mut self, client: &mut impl ResponseSink) -> pingora::Result<()> {
        let Some(header) = self.header.take() else { return Ok(()) };
        client.write_head(header).await?;
        client.write_body(std::mem::take(&mut self.payload).freeze(), false).await
    }

    /// Returns the held payload with the next part of it appended.
    fn pass(&mut self, payload: Bytes) -> Bytes {
        if self.payload.is_empty() {
            return payload;
        }
        let mut held = std::mem::take(&mut self.payload);
        held.extend_from_slice(&payload);
        held.freeze()
    }
}

/// The content of a `server-timing` field.
pub(crate) struct ServerTiming {
    /// The arrival of the request.
    pub(crate) since: Timestamp,
    /// The metrics that are known before the first token, each followed by a comma.
    pub(crate) known: String,
}

impl ServerTiming {
    /// Adds the field, with the time to the first token if it has passed.
    pub(crate) fn describe(&self, header: &mut ResponseHeader, first_token: Option<Timestamp>) {
        let mut text = self.known.clone();
        if let Some(at) = first_token {
            text += &format!("ttft;dur={:.1}", at.since(self.since).as_secs_f64() * 1000.0);
        }
        let text = text.trim_end_matches(", ");
        if !text.is_empty() && header.append_header(SERVER_TIMING, text).is_err() {
            debug_assert!(false, "metrics are printable");
        }
    }
}

/// Durations for clients, in milliseconds (W3C Server Timing).
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Waits for a write to the client, and reports if the client keeps it waiting.
async fn watch_write<T>(
    mut write: Pin<&mut impl Future<Output = T>>,
    observer: &mut dyn RelayObserver,
) -> T {
    let at_once = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await;
    if let Poll::Ready(written) = at_once {
        return written;
    }
    observer.client_waits(true);
    let written = write.await;
    observer.client_waits(false);
    written
}

/// The reason why a body could not be read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadWholeError {
    /// The body is larger than the limit.
    TooLarge,
    /// The memory for buffered responses is full (`limits.buffered_responses`).
    MemoryFull,
    /// The body ended early.
    Broken(ExchangeError),
}

impl Exchange<'_> {
    /// Relays the body of a response whose head the client already has.
    pub(crate) async fn relay(
        &mut self,
        client: &mut impl ResponseSink,
        monitor: &mut ResponseMonitor,
        mut terms: RelayTerms<'_>,
    ) -> RelayEnd {
        let mut is_terminated = true;
        loop {
            // Before this part is observed: a client that misses the last event has left early.
            let had_ended = monitor.has_ended_stream();
            let was_over = monitor.is_over();
            let left = || if had_ended { RelayEnd::LeftAfterEnd } else { RelayEnd::ClientGone };
            let payload = match terms.started.take(&mut self.connection.read) {
                Ok(payload) => payload,
                Err(_bad) if was_over => {
                    is_terminated = false;
                    terms.started.end();
                    Bytes::new()
                }
                Err(_bad) => return RelayEnd::Cut(ErrorCode::BadUpstreamResponse),
            };
            let tokens = monitor.observe(&payload, terms.started.is_whole());
            // A response that ends with its connection may have lost its end. A stream that ends
            // before its last event has lost it in any case.
            let is_cut = terms.started.is_closed() && !monitor.has_ended()
                || terms.started.is_whole() && monitor.lacks_ending();
            let is_last = terms.started.is_whole() && !is_cut;
            if tokens > 0 {
                self.tokens_passed(monitor, &mut terms, tokens);
            } else if !payload.is_empty() {
                terms.observer.bytes_passed(now());
            }
            // A malformed chunk may follow good ones in the same read: the next iteration finds it.
            let is_more_read = !payload.is_empty() && !self.connection.read.is_empty();
            let payload = terms.output.masked(payload, monitor);
            let payload = match terms.output.transform(payload, is_last) {
                Ok(payload) => payload,
                Err(code) => return RelayEnd::Cut(code),
            };
            // After the change, which shows whether the response can be read at all, and before
            // the write: a slow client must not occupy the backend.
            if is_last {
                terms.observer.response_read(monitor);
            }
            let RelayTerms { output, observer, .. } = &mut terms;
            let write = output.write(client, payload, monitor.first_token, is_last);
            match watch_write(pin!(write), *observer).await {
                Ok(()) => {}
                Err(RelayEnd::ClientGone) => return left(),
                Err(end) => return end,
            }
            if is_last {
                return if is_terminated { RelayEnd::Complete } else { RelayEnd::Unterminated };
            }
            if is_cut {
                return RelayEnd::Cut(ErrorCode::UpstreamClosed);
            }
            if is_more_read {
                continue;
            }
            if monitor.is_over() && !was_over {
                let deadline = &mut self.interrupts.deadline;
                deadline.set(now(), MAX_LAST_WAIT, ErrorCode::BetweenTokensTimeout);
            }
            match self.read_part(monitor, &mut terms.started).await {
                Ok(is_sound) => is_terminated &= is_sound,
                Err(end) => return end,
            }
        }
    }

    /// Reads the next part of a body, or its end. Returns false if the backend has not ended it,
    /// although the last event of its stream has passed.
    async fn read_part(
        &mut self,
        monitor: &ResponseMonitor,
        started: &mut Beginning,
    ) -> Result<bool, RelayEnd> {
        match self.read_more().await {
            Ok(1..) => Ok(true),
            // Any close looks like the end here: the monitor knows whether it is one.
            Ok(0) if started.is_until_close() => {
                started.end();
                Ok(true)
            }
            Err(ExchangeError::ClientGone) if monitor.has_ended_stream() => {
                Err(RelayEnd::LeftAfterEnd)
            }
            Err(ExchangeError::ClientGone) => Err(RelayEnd::ClientGone),
            // A body of an announced length ends with its last byte for the client, too.
            _ if monitor.is_over() && !started.is_announced() => {
                started.end();
                Ok(false)
            }
            Ok(0) | Err(ExchangeError::Ended(_) | ExchangeError::ClosedWhileSending) => {
                Err(RelayEnd::Cut(ErrorCode::UpstreamClosed))
            }
            Err(ExchangeError::TimedOut(code)) => Err(RelayEnd::Cut(code)),
            Err(ExchangeError::BadResponse(_)) => {
                Err(RelayEnd::Cut(ErrorCode::BadUpstreamResponse))
            }
        }
    }

    fn tokens_passed(
        &mut self,
        monitor: &mut ResponseMonitor,
        terms: &mut RelayTerms<'_>,
        tokens: u32,
    ) {
        let now = now();
        let is_first = monitor.first_token.is_none();
        if is_first {
            monitor.first_token = Some(now);
        }
        // Only tokens move the deadline: pings and empty deltas do not keep a dead stream alive.
        let limit = terms.timeouts.between_tokens;
        self.interrupts.deadline.set(now, limit, ErrorCode::BetweenTokensTimeout);
        terms.observer.tokens_passed(is_first, tokens, now);
    }

    /// Reads the rest of a body that has `started`, of at most `limit` bytes in all, and claims
    /// memory for it as it arrives.
    pub(crate) async fn read_whole(
        &mut self,
        mut started: Beginning,
        limit: usize,
        claim: &mut BodyClaim,
    ) -> Result<Bytes, ReadWholeError> {
        started.expect_whole(limit);
        let mut is_full = false;
        let read = self.read_until(&mut started, |payload| {
            // Without memory the read stops at once: the rest of the body would only be dropped.
            is_full = !claim.grow_to(payload.len());
            is_full || payload.len() > limit
        });
        read.await.map_err(ReadWholeError::Broken)?;
        let length = started.payload().len();
        if length > limit {
            return Err(ReadWholeError::TooLarge);
        }
        match is_full || !claim.grow_to(length) {
            true => Err(ReadWholeError::MemoryFull),
            false => Ok(started.take_payload()),
        }
    }
}
