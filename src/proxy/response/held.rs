//! Responses that are held rather than relayed: refusals, and errors that a better backend may
//! spare the client.

use bytes::Bytes;
use penstock_dialect::ErrorMeaning;
use penstock_scan::FirstEvent;

use super::Reply;
use crate::proxy::Proxy;
use crate::proxy::conversion::convert_held;
use crate::proxy::request::ScannedRequest;
use crate::upstream::failure::{HeldResponse, Refusal};
use crate::upstream::retry_after::retry_after;

/// Holds back a response with the part of it that has been read, in the client's dialect.
/// `refusal`: the reason, if it is held for what it says.
pub(crate) fn held_of(
    proxy: &Proxy,
    request: &ScannedRequest,
    mut reply: Reply<'_>,
    refusal: Option<Refusal>,
) -> HeldResponse {
    let (mut status, stream) = (reply.head.status, reply.head.stream);
    let body = reply.started.take_payload();
    // If an error is too large or broke off, the client gets the status alone.
    let mut claim = proxy.claim_response();
    let is_kept = (reply.started.is_whole() || stream.is_some()) && claim.grow_to(body.len());
    let body = if is_kept { body } else { Bytes::new() };
    let header = reply.head.header.clone();
    let model = reply.attempt.upstream_name(request).unwrap_or(&request.model);
    // A refusal without a body has nothing to convert.
    let sent = reply.attempt.converted_to().filter(|_| refusal.is_none() || !body.is_empty());
    let Some(sent) = sent else {
        keep_connection(proxy, reply);
        return HeldResponse {
            retry_after: retry_after(&header),
            status,
            header,
            body,
            _claim: claim,
        };
    };
    let error = match stream.map(|stream| FirstEvent::read(sent, stream, &body, true)) {
        Some(FirstEvent::Failed(place)) => body.slice(place),
        Some(FirstEvent::Incomplete | FirstEvent::Missing | FirstEvent::Good) | None => body,
    };
    // SDKs go by the status: with the engine's 200 they would take the error for a response.
    if refusal.is_some() && status < 400 {
        status = ErrorMeaning::read(&error, model, request.body()).status();
    }
    keep_connection(proxy, reply);
    let retry_after = retry_after(&header);
    let held = HeldResponse { retry_after, status, header, body: error, _claim: claim };
    convert_held(held, request.profile.operation)
}

/// Keeps the connection of a response that has been read whole.
pub(crate) fn keep_connection(proxy: &Proxy, reply: Reply<'_>) {
    let Reply { exchange, head, attempt, started, .. } = reply;
    if started.is_whole() && !started.is_closed() && head.keeps_alive {
        proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
}
