//! The framing of a response to a request for a stream. If its type is missing or wrong, its first
//! bytes show the framing.

use penstock_api::{ErrorCode, StreamFraming};

use crate::proxy::exchange::Reply;
use crate::upstream::disposition::MAX_HELD;

/// The number of bytes that show the framing of events.
const MIN_START: usize = 8;

/// Takes the framing of a response from its first bytes, if they have come. `expected`: the framing
/// that its type leaves open ([`Reply::open_framing`]).
pub(crate) fn learn_framing(expected: StreamFraming, reply: &mut Reply<'_>) {
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
pub(super) async fn await_framing(expected: StreamFraming, reply: &mut Reply<'_>) {
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
    learn_framing(expected, reply);
}

/// Switches to `timeouts.response` for a whole response to a request for a stream.
pub(super) fn expect_whole(reply: &mut Reply<'_>) {
    let limit = reply.attempt.serving.timeouts.response;
    let deadline = &mut reply.exchange.interrupts.deadline;
    deadline.set(reply.attempt.started, limit, ErrorCode::ResponseTimeout);
}
