//! Responses that are held rather than relayed: refusals, and errors that a better backend may
//! spare the client.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use penstock_scan::FirstEvent;

use crate::proxy::Proxy;
use crate::proxy::conversion::convert_held;
use crate::proxy::exchange::Reply;
use crate::proxy::request::ScannedRequest;
use crate::upstream::disposition::MAX_HELD;
use crate::upstream::failure::{HeldResponse, HoldReason};
use crate::upstream::own_key::OwnKey;

/// The longest wait for the rest of an error, in which the backend's key is masked: its beginning
/// has been waited for.
const MAX_MASK_WAIT: Duration = Duration::from_millis(250);

/// Holds back a response with the part of it that has been read, in the client's dialect.
/// `refusal`: the reason why another backend may do better; `None` if the response is meant for the
/// client.
pub(crate) fn held_of(
    proxy: &Proxy,
    request: &ScannedRequest,
    mut reply: Reply<'_>,
    refusal: Option<HoldReason>,
) -> HeldResponse {
    let (attempt, stream) = (reply.attempt, reply.head.stream);
    let body = reply.started.take_payload();
    // If an error is too large or broke off, the client gets the status alone.
    let mut claim = proxy.claim_response();
    let is_kept = (reply.started.is_whole() || stream.is_some()) && claim.grow_to(body.len());
    let body = if is_kept { body } else { Bytes::new() };
    let body = match OwnKey::of(&attempt.backend.config) {
        Some(key) => key.mask(body),
        None => body,
    };
    let mut held = HeldResponse::new(reply.head.header.clone(), body, claim);
    keep_connection(proxy, reply);
    // LM Studio sends it with a 200.
    if refusal == Some(HoldReason::OperationMissing) && held.status < 400 {
        held.status = StatusCode::NOT_FOUND.as_u16();
        _ = held.header.set_status(StatusCode::NOT_FOUND);
    }
    // A refusal without a body has nothing to convert.
    let sent = attempt.converted_to().filter(|_| refusal.is_none() || !held.body.is_empty());
    let Some(sent) = sent else { return held };
    if let Some(FirstEvent::Failed(place) | FirstEvent::Foreign(place)) =
        stream.map(|stream| FirstEvent::read_to_output(sent, stream, &held.body, true))
    {
        held.body = held.body.slice(place);
    }
    if refusal.is_some() {
        held.set_status_of_error(attempt.sent_model(request), request.body());
    }
    convert_held(held, request.profile.operation)
}

/// Masks the backend's key in the beginning of an error that the client gets as it comes.
pub(super) async fn mask_error(key: OwnKey<'_>, reply: &mut Reply<'_>) {
    if reply.head.is_encoded {
        return;
    }
    // Whatever ends the read ends the relay, too.
    let Reply { exchange, started, .. } = reply;
    let read = exchange.read_until(started, |payload| payload.len() >= MAX_HELD);
    _ = tokio::time::timeout(MAX_MASK_WAIT, read).await;
    started.change(|payload| key.mask(payload));
}

/// Keeps the connection of a response that has been read whole.
pub(crate) fn keep_connection(proxy: &Proxy, reply: Reply<'_>) {
    let Reply { exchange, head, attempt, started, .. } = reply;
    if started.is_whole() && !started.is_closed() && head.keeps_alive {
        proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
}
