//! The bytes that the client of a stream gets while its request waits long (`queue.keep_alive`).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use penstock_api::Operation;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_config::QueueConfig;

use crate::proxy::flow::Flow;
use crate::proxy::kept_alive::{may_keep_alive, send_waiting};
use crate::proxy::queue::place::QueuePlace;
use crate::proxy::request::ScannedRequest;

/// The longest time that a client may take to read the bytes once it is its request's turn: the
/// others wait behind it.
const GRACE: Duration = Duration::from_secs(1);

/// The client has left, or does not read.
pub(super) struct Unsent;

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

    /// Sends the bytes now.
    pub(super) async fn send(
        &mut self,
        flow: &mut Flow<'_>,
        place: &QueuePlace,
    ) -> Result<(), Unsent> {
        let is_first = !flow.ctx.record.queue.is_kept_alive;
        let began = now();
        self.due = began.after(self.interval);
        let client = flow.ctx.client.clone();
        let mut sending = pin!(send_waiting(flow, self.operation));
        let mut grace = None;
        let sent = poll_fn(|cx| {
            if let Poll::Ready(sent) = sending.as_mut().poll(cx) {
                return Poll::Ready(sent.map_err(|_gone| Unsent));
            }
            if client.as_ref().is_some_and(|client| client.poll_gone(cx).is_ready()) {
                return Poll::Ready(Err(Unsent));
            }
            // From its turn on, a slow client holds up the requests behind it.
            if grace.is_none() && place.poll(cx).is_ready() {
                let taken = now().since(began);
                grace = Some(Box::pin(tokio::time::sleep(GRACE.saturating_sub(taken))));
            }
            let Some(grace) = &mut grace else { return Poll::Pending };
            grace.as_mut().poll(cx).map(|()| Err(Unsent))
        })
        .await;
        if is_first && sent.is_ok() {
            place.count_kept_alive();
        }
        sent
    }
}
