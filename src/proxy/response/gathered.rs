//! Responses that become text, for an ensemble: read whole, and converted if the backend serves
//! another API.

use penstock_api::ErrorCode;
use penstock_clock::now;
use penstock_dialect::response_text;

use crate::proxy::attempt::{AttemptEnd, HeldText};
use crate::proxy::conversion::{Converter, WayBack};
use crate::proxy::failure::{OwnError, timeout_message};
use crate::proxy::flow::Flow;
use crate::proxy::request::ScannedRequest;
use crate::proxy::response::Reply;
use crate::proxy::response::converted::claim_conversion;
use crate::proxy::rewrite::conversions::converter;
use crate::upstream::failure::{ExchangeError, Failure};
use crate::upstream::relay::{ReadWholeError, Transform};

/// Reads a whole response as text. `way_back`: its conversion.
pub(crate) async fn gather(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reply: Reply<'_>,
    way_back: Option<WayBack>,
) -> AttemptEnd {
    let operation = request.profile.operation;
    let Reply { mut exchange, head, attempt, started, .. } = reply;
    let limit = flow.ctx.generation.config.limits.converted_response.to_usize();
    let mut claim = flow.proxy.claim_response();
    let body = match exchange.read_whole(started, limit, &mut claim).await {
        Ok(body) => body,
        Err(ReadWholeError::Broken(ExchangeError::ClientGone)) => {
            return AttemptEnd::Failed(Failure::ClientGone);
        }
        Err(error) => return unread(error),
    };
    let sent = way_back.as_ref().map_or(operation, WayBack::operation);
    let mut monitor = request.monitor(sent, None);
    monitor.observe(&body, true);
    flow.ctx.record.response.usage = monitor.usage();
    if head.keeps_alive {
        flow.proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
    if !claim_conversion(&mut claim, body.len()) {
        return unread(ReadWholeError::MemoryFull);
    }
    let body = match way_back {
        None => body,
        Some(way_back) => {
            let mut converter = converter(way_back, request.view(flow.ctx));
            match converter.apply(body, true, now()) {
                Ok(body) => body,
                Err(code) => return unreadable(&converter, code),
            }
        }
    };
    match response_text(operation, &body) {
        Some(text) => {
            claim.shrink_to(text.len());
            AttemptEnd::Text(HeldText { text, _claim: claim })
        }
        None => {
            let message = "The backend's response to a call of the ensemble has no text";
            AttemptEnd::Unreadable(OwnError::new(ErrorCode::BadUpstreamResponse, message))
        }
    }
}

fn unread(error: ReadWholeError) -> AttemptEnd {
    AttemptEnd::Unreadable(OwnError::from_unread(error))
}

fn unreadable(converter: &Converter, code: ErrorCode) -> AttemptEnd {
    let message = converter.failure().unwrap_or_else(|| timeout_message(code).to_owned());
    AttemptEnd::Unreadable(OwnError::new(code, message))
}
