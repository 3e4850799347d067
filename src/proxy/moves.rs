//! Moves: a stream that waits for its first token is sent elsewhere, once, if less than half of its
//! remaining wait is predicted there (`routing.move_waiting`).
//!
//! The permit elsewhere is taken first, so that no request gives up a place for none. Then the
//! first attempt is dropped with its connection, which frees its engine, and the second one is
//! sent. The head is held back until the first byte of the body, because some engines send it
//! before they have computed anything.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use penstock_api::Work;
use penstock_api::units::to_micros;
use penstock_clock::now;
use penstock_core::routing::rest_of_wait;
use penstock_predict::Prediction;

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::decision::reserve_better;
use crate::proxy::exchange::Reply;
use crate::proxy::flow::Flow;
use crate::proxy::request::{RequestView, Reserved, ScannedRequest};
use crate::upstream::failure::AttemptFailure;

/// The interval at which a waiting request looks for a better backend.
const INTERVAL: Duration = Duration::from_millis(250);
/// The least remaining wait that is worth a move.
const MIN_REMAINING: Duration = Duration::from_millis(250);

/// A request that may be moved.
pub(super) struct Movable {
    predicted: Prediction,
}

impl Movable {
    /// Returns the request as movable if its prediction is trusted, and it was not moved before.
    pub(super) fn of(
        RequestView { ctx, request }: RequestView<'_>,
        attempt: &Attempt<'_>,
    ) -> Option<Self> {
        let predicted = ctx.record.routing.prediction?;
        // One move per request: each wastes what an engine has computed. What continues a stored
        // response stays with its holder.
        if ctx.record.routing.is_moved || request.preferred.is_some() {
            return None;
        }
        let profile = &request.profile;
        // A whole response comes with its last token: much of it may be computed while it seems to
        // wait.
        let is_stream = profile.streaming && profile.operation.row().work == Work::Generation;
        if !is_stream {
            return None;
        }
        // Not the current estimate: if the engine is silent, this request is the one that tries it.
        let is_trusted = attempt.serving.model_state.predictor().is_trusted();
        is_trusted.then_some(Self { predicted })
    }

    /// Reserves a place elsewhere if less than half of the remaining wait is predicted there.
    fn find(
        &self,
        flow: &Flow<'_>,
        request: &ScannedRequest,
        attempt: &Attempt<'_>,
    ) -> Option<Reserved> {
        let elapsed = to_micros(now().since(attempt.started));
        let remaining_us = rest_of_wait(&self.predicted, elapsed as f64);
        // While requests wait for a backend with room, those that have one stay there.
        if remaining_us < MIN_REMAINING.as_secs_f64() * 1e6 || flow.proxy.has_waiting() {
            return None;
        }
        reserve_better(flow, request, attempt.decision, remaining_us)
    }

    /// Waits for the first byte of the response's body, or until there is a better place.
    ///
    /// # Errors
    /// The end of the attempt, if it has failed or the request moves.
    pub(super) async fn wait<'a>(
        self,
        flow: &Flow<'_>,
        request: &ScannedRequest,
        attempt: &'a Attempt<'a>,
        reply: impl Future<Output = Result<Reply<'a>, AttemptFailure>>,
    ) -> Result<Reply<'a>, AttemptEnd> {
        let mut reply = pin!(with_body(reply));
        let mut timer = pin!(tokio::time::sleep(INTERVAL));
        poll_fn(|cx| {
            if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
                return Poll::Ready(reply.map_err(AttemptEnd::Failed));
            }
            // A loop, because the new timer wakes this task only after it has been polled.
            while timer.as_mut().poll(cx).is_ready() {
                if let Some(reserved) = self.find(flow, request, attempt) {
                    return Poll::Ready(Err(AttemptEnd::Moved(Box::new(reserved))));
                }
                timer.set(tokio::time::sleep(INTERVAL));
            }
            Poll::Pending
        })
        .await
    }
}

async fn with_body<'a>(
    reply: impl Future<Output = Result<Reply<'a>, AttemptFailure>>,
) -> Result<Reply<'a>, AttemptFailure> {
    let mut reply = reply.await?;
    let is_stream = reply.head.status == 200 && reply.head.stream.is_some();
    if is_stream && reply.exchange.connection.read.is_empty() {
        // The relay sees the end of the body, or the client's departure, once more.
        let _seen_again = reply.exchange.read_more().await;
    }
    Ok(reply)
}
