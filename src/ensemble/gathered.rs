//! Responses that become text, for an ensemble: read whole, and converted if the backend serves
//! another API.

use async_trait::async_trait;
use bytes::Bytes;
use penstock_api::ErrorCode;
use penstock_dialect::response_text;

use crate::downstream::body::BodyClaim;
use crate::proxy::attempt::{AttemptEnd, HeldText};
use crate::proxy::conversion::WayBack;
use crate::proxy::exchange::Reply;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::forward::{TakeResponse, judge};
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::proxy::response::{claim_conversion, convert, held_of, record_head};
use crate::proxy::rewrite::conversions::converter;
use crate::upstream::disposition::Disposition;
use crate::upstream::failure::{AttemptFailure, ExchangeError, HoldReason};
use crate::upstream::relay::ReadWholeError;

/// A call of an ensemble: it takes the text of its response.
pub(crate) struct TextCall;

#[async_trait]
impl TakeResponse for TextCall {
    async fn take(
        &self,
        flow: &mut Flow<'_>,
        request: &mut ScannedRequest,
        mut reply: Reply<'_>,
    ) -> Result<AttemptEnd, AttemptFailure> {
        let disposition = judge(request.view(flow.ctx), &mut reply, true).await?;
        record_head(flow.ctx, request, &mut reply);
        let (refusal, meaning) = match disposition {
            Disposition::Relay if matches!(reply.head.status, 200..=299) => {
                let way_back =
                    request.conversion.take().map(|conversion| conversion.into_way_back());
                return gather(flow, request, reply, way_back).await;
            }
            Disposition::Hold(refusal) => (refusal, Some(refusal)),
            _ if reply.head.status >= 500 => (HoldReason::ServerError, None),
            _ => (HoldReason::Client, None),
        };
        Err(AttemptFailure::Held(refusal, held_of(flow.proxy, request, reply, meaning)))
    }
}

/// Reads a whole response as text. `way_back`: its conversion.
async fn gather(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reply: Reply<'_>,
    way_back: Option<WayBack>,
) -> Result<AttemptEnd, AttemptFailure> {
    let operation = request.profile.operation;
    let Reply { mut exchange, head, attempt, started, .. } = reply;
    let limit = flow.ctx.generation.config.limits.converted_response.to_usize();
    let mut claim = flow.proxy.claim_response();
    let body = match exchange.read_whole(started, limit, &mut claim).await {
        Ok(body) => body,
        Err(ReadWholeError::Broken(ExchangeError::ClientGone)) => {
            return Err(AttemptFailure::ClientGone);
        }
        Err(error) => return Ok(AttemptEnd::Gathered(Err(OwnError::from_unread(error)))),
    };
    let sent = way_back.as_ref().map_or(operation, WayBack::operation);
    let mut monitor = request.monitor(sent, None);
    monitor.observe(&body, true);
    flow.ctx.record.response.usage = monitor.usage();
    if head.keeps_alive {
        flow.proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
    Ok(AttemptEnd::Gathered(to_text(request.view(flow.ctx), body, claim, way_back)))
}

fn to_text(
    view: RequestView<'_>,
    body: Bytes,
    mut claim: BodyClaim,
    way_back: Option<WayBack>,
) -> Result<HeldText, OwnError> {
    if !claim_conversion(&mut claim, body.len()) {
        return Err(OwnError::from_unread(ReadWholeError::MemoryFull));
    }
    let body = match way_back {
        None => body,
        Some(way_back) => convert(&mut converter(way_back, view), body)?,
    };
    let text = response_text(view.request.profile.operation, &body).ok_or_else(|| {
        let message = "The backend's response to a call of the ensemble has no text";
        OwnError::new(ErrorCode::BadUpstreamResponse, message)
    })?;
    claim.shrink_to(text.len());
    Ok(HeldText { text, _claim: claim })
}
