//! The framing of a response to a request for a stream. If its type is missing or wrong, its first
//! bytes show the framing.

use penstock_api::{ErrorCode, StreamFraming};

use super::Reply;
use crate::proxy::request::ScannedRequest;
use crate::upstream::disposition::MAX_HELD;

/// The number of bytes that show the framing of events.
const MIN_START: usize = 8;

/// Returns the framing of the operation's streams if that of the response is open: a stream was
/// requested, and the type is not that of such a stream.
fn expected(request: &ScannedRequest, reply: &Reply<'_>) -> Option<StreamFraming> {
    let head = &reply.head;
    let framing = reply.attempt.sent_operation(request).row().dialect.row().framing;
    let is_open = request.profile.streaming
        && matches!(head.status, 200..=299)
        && !head.is_encoded
        && head.stream != Some(framing);
    is_open.then_some(framing)
}

/// Takes the framing of a response from its first bytes, if they have come and its type is not that
/// of the stream that was requested.
pub(crate) fn learn_framing(request: &ScannedRequest, reply: &mut Reply<'_>) {
    let Some(expected) = expected(request, reply) else { return };
    let shown = StreamFraming::of_content(reply.started.payload());
    // A line of JSON may be a whole response, unless the API streams in lines.
    if let Some(framing) =
        shown.filter(|framing| [StreamFraming::Events, expected].contains(framing))
    {
        reply.head.stream = Some(framing);
        reply.head.is_json = false;
    }
}

/// Waits for the first bytes of a response that cannot be passed on without its framing: a
/// converted one, and a stream of another type than the API has.
pub(super) async fn await_framing(request: &ScannedRequest, reply: &mut Reply<'_>) {
    let Some(expected) = expected(request, reply) else { return };
    if reply.attempt.conversion.is_none() && reply.head.stream.is_none() {
        return;
    }
    let is_enough = |payload: &[u8]| {
        let is_line = || payload.contains(&b'\n') || payload.len() >= MAX_HELD;
        payload.len() >= MIN_START && (expected == StreamFraming::Events || is_line())
    };
    let Reply { exchange, started, .. } = reply;
    // Whatever ends the read ends the relay, too.
    _ = exchange.read_until(started, is_enough).await;
    learn_framing(request, reply);
}

/// Switches to `timeouts.response` if the backend sends a whole response to a request for a stream.
pub(super) fn expect_whole(request: &ScannedRequest, reply: &mut Reply<'_>) {
    if request.profile.streaming && reply.head.stream.is_none() {
        let limit = reply.attempt.serving.timeouts.response;
        let deadline = &mut reply.exchange.interrupts.deadline;
        deadline.set(reply.attempt.started, limit, ErrorCode::ResponseTimeout);
    }
}
