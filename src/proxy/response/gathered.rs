//! Responses that become text, for an ensemble: read whole, and converted where the backend serves another API.

use super::Reply;
use super::converted::{converter, reason_of};
use crate::api::ErrorCode;
use crate::clock::now;
use crate::dialect::response_text;
use crate::proxy::Proxy;
use crate::proxy::attempt::AttemptEnd;
use crate::proxy::context::{RequestContext, ScannedRequest};
use crate::proxy::conversion::{Converter, WayBack};
use crate::proxy::failure::{OwnError, timeout_message};
use crate::upstream::failure::{ExchangeError, Failure};
use crate::upstream::relay::{ReadWholeError, Transform};

/// Reads a whole response as text. `way_back`: how it is converted.
pub(in crate::proxy) async fn gather(
    proxy: &Proxy,
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    reply: Reply<'_>,
    way_back: Option<WayBack>,
) -> AttemptEnd {
    let operation = request.profile.operation;
    let Reply { mut exchange, head, attempt, begun } = reply;
    let limit = ctx.generation.config.limits.converted_response.to_usize();
    let body = match exchange.read_whole(begun, limit).await {
        Ok(body) => body,
        Err(ReadWholeError::Broken(ExchangeError::ClientGone)) => {
            return AttemptEnd::Failed(Failure::ClientGone);
        }
        Err(error) => {
            let (code, message) = reason_of(error);
            return AttemptEnd::Unreadable(OwnError::new(code, message));
        }
    };
    let sent = way_back.as_ref().map_or(operation, WayBack::operation);
    let mut monitor = request.monitor(sent, None);
    monitor.observe(&body, true);
    ctx.record.usage = monitor.usage();
    if head.keeps_alive {
        proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
    let body = match way_back {
        None => body,
        Some(way_back) => {
            let mut converter = converter(way_back, ctx, request);
            match converter.apply(body, true, now()) {
                Ok(body) => body,
                Err(code) => return unreadable(&converter, code),
            }
        }
    };
    match response_text(operation, &body) {
        Some(text) => AttemptEnd::Text(text),
        None => {
            let message = "The backend's response to a call of the ensemble has no text";
            AttemptEnd::Unreadable(OwnError::new(ErrorCode::BadUpstreamResponse, message))
        }
    }
}

fn unreadable(converter: &Converter, code: ErrorCode) -> AttemptEnd {
    let message = converter.failure().unwrap_or_else(|| timeout_message(code).to_owned());
    AttemptEnd::Unreadable(OwnError::new(code, message))
}
