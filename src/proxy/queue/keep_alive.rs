//! The bytes that the client of a stream gets while its request waits long (`queue.keep_alive`):
//! the head of the response, and now and then bytes that it ignores. From then on the status is
//! 200: a backend's stream continues it, and everything else ends in an event with the error.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use penstock_api::units::Timestamp;
use penstock_api::{Operation, Work};
use penstock_clock::now;
use penstock_config::QueueConfig;
use pingora::http::ResponseHeader;

use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::{add_common_fields, add_stream_fields, frame_open_end};
use crate::proxy::queue::shared::QueuePlace;
use crate::proxy::request::ScannedRequest;
use crate::proxy::response_fields::add_edits;
use crate::upstream::relay::ResponseSink;

/// The longest time that a client may take to read the bytes once it is its request's turn: the
/// others wait behind it.
const MAX_GRACE: Duration = Duration::from_secs(1);

/// The reason why bytes were not sent: the client has left, or does not read.
pub(super) struct KeepAliveFailure;

/// The schedule of the bytes for the client of one request.
pub(super) struct KeepAlive {
    operation: Operation,
    interval: Duration,
    due: Timestamp,
}

impl KeepAlive {
    /// The schedule of a request that waits since `since`; `None` if its client gets nothing.
    pub(super) fn of(
        config: &QueueConfig,
        flow: &Flow<'_>,
        request: &ScannedRequest,
        since: Timestamp,
    ) -> Option<Self> {
        let is_client = flow.client.takes_response();
        let interval = config.keep_alive.filter(|_| is_client && may_keep_alive(request))?;
        let operation = request.profile.operation;
        Some(Self { operation, interval, due: since.after(interval) })
    }

    /// The time of the next bytes.
    pub(super) fn due(&self) -> Timestamp {
        self.due
    }

    pub(super) async fn send(
        &mut self,
        flow: &mut Flow<'_>,
        place: &QueuePlace,
    ) -> Result<(), KeepAliveFailure> {
        let is_first = !flow.ctx.record.queue.is_kept_alive;
        let began = now();
        self.due = began.after(self.interval);
        let client = flow.ctx.client.clone();
        let mut sending = pin!(send_waiting(flow, self.operation));
        let mut grace = None;
        let sent = poll_fn(|cx| {
            if let Poll::Ready(sent) = sending.as_mut().poll(cx) {
                return Poll::Ready(sent.map_err(|_gone| KeepAliveFailure));
            }
            if client.as_ref().is_some_and(|client| client.poll_gone(cx).is_ready()) {
                return Poll::Ready(Err(KeepAliveFailure));
            }
            // From its turn on, a slow client holds up the requests behind it.
            if grace.is_none() && place.poll(cx).is_ready() {
                let taken = now().since(began);
                grace = Some(Box::pin(tokio::time::sleep(MAX_GRACE.saturating_sub(taken))));
            }
            let Some(grace) = &mut grace else { return Poll::Pending };
            grace.as_mut().poll(cx).map(|()| Err(KeepAliveFailure))
        })
        .await;
        if is_first && sent.is_ok() {
            place.count_kept_alive();
        }
        sent
    }
}

/// Returns whether the client may get the head before there is a response: only the head of a token
/// stream is known.
fn may_keep_alive(request: &ScannedRequest) -> bool {
    let profile = &request.profile;
    // Requests that load or unload a model get a whole response.
    let is_stream = profile.streaming && profile.residency_change.is_none();
    is_stream && profile.operation.row().work == Work::Generation
}

/// Sends the head, unless the client has it, and then bytes that the client ignores.
async fn send_waiting(flow: &mut Flow<'_>, operation: Operation) -> Served {
    let dialect = operation.row().dialect.row();
    if !flow.ctx.record.queue.is_kept_alive {
        let mut head = ResponseHeader::build(200, Some(8))?;
        let content_type = HeaderValue::from_static(dialect.framing.content_type());
        head.insert_header(header::CONTENT_TYPE, content_type)?;
        add_common_fields(&mut head, flow.ctx)?;
        add_stream_fields(&mut head)?;
        add_edits(&mut head, &flow.ctx.record.edits)?;
        frame_open_end(&mut head, &mut flow.client)?;
        // Before the write: if that fails half-way, no error may send a second head.
        flow.ctx.record.queue.is_kept_alive = true;
        flow.ctx.record.response.status = 200;
        flow.client.write_head(Box::new(head)).await?;
    }
    let bytes = Bytes::from_static(dialect.waiting.as_bytes());
    flow.client.write_body(bytes, false).await?;
    // No other part follows soon that would flush them.
    if let Some(client) = &flow.ctx.client {
        let flushed = poll_fn(|cx| client.poll_flush(cx)).await;
        if flushed.is_err() {
            return flow.ctx.end_cancelled();
        }
    }
    Ok(())
}
