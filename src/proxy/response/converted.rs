//! Responses that are converted whole: nothing goes to the client before the whole response is
//! read, so that a failed conversion becomes an error instead of a broken response.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use penstock_clock::now;
use penstock_core::fleet::Outcome;
use penstock_scan::reports_failed_result;

use crate::downstream::body::BodyClaim;
use crate::proxy::attempt::Attempt;
use crate::proxy::conversion::{Converter, WayBack, convert_held};
use crate::proxy::exchange::Reply;
use crate::proxy::failure::{OwnError, timeout_message, unreadable_outcome};
use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::{send_error, send_held};
use crate::proxy::request::ScannedRequest;
use crate::proxy::response::{RelayProgress, expect_end, finish_head};
use crate::proxy::rewrite::conversions::{converter, describe};
use crate::upstream::failure::{ExchangeError, HeldResponse};
use crate::upstream::own_key::OwnKey;
use crate::upstream::relay::{ReadWholeError, RelayObserver, ResponseSink, Transform};
use crate::upstream::response_head::BodyEnd;

/// Reads a response, converts it and sends it.
pub(super) async fn relay_whole(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reply: Reply<'_>,
    way_back: WayBack,
) -> Served {
    let Reply { mut exchange, mut head, attempt, permit, started, result } = reply;
    let limit = flow.ctx.generation.config.limits.converted_response.to_usize();
    let mut claim = flow.proxy.claim_response();
    let body = match exchange.read_whole(started, limit, &mut claim).await {
        Ok(body) => body,
        Err(ReadWholeError::Broken(ExchangeError::ClientGone)) => return flow.ctx.end_cancelled(),
        Err(error) => return fail(flow, OwnError::from_unread(error)).await,
    };
    let mut monitor = request.monitor(attempt.sent_operation(request), None);
    expect_end(&head, result, &mut monitor);
    monitor.observe(&body, true);
    flow.ctx.record.response.usage = monitor.usage();
    let has_failed = reports_failed_result(&body);
    let body = match OwnKey::of(&attempt.backend.config) {
        Some(key) if has_failed || monitor.has_reported_error() => key.mask(body),
        Some(_) | None => body,
    };
    if has_failed {
        if head.keeps_alive {
            let state = &attempt.serving.state;
            flow.proxy.pool.keep(state, exchange.connection, head.keep_alive);
        }
        let held = HeldResponse::new(head.header, body, claim);
        return send_failed(flow, request, attempt, held).await;
    }
    if !claim_conversion(&mut claim, body.len()) {
        return fail(flow, OwnError::from_unread(ReadWholeError::MemoryFull)).await;
    }
    let mut converter = converter(way_back, request.view(flow.ctx));
    let body = match convert(&mut converter, body) {
        Ok(body) => body,
        Err(error) => return fail(flow, error).await,
    };
    // Before the write: the backend is free, however slow the client is.
    RelayProgress::new(flow.proxy, request.view(flow.ctx), attempt, permit, &head)
        .response_read(&monitor);
    if head.keeps_alive {
        flow.proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
    describe(&mut head, converter.content_type())?;
    // The gathered parts are not needed while a slow client takes the response.
    drop(converter);
    claim.shrink_to(body.len());
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    head.framing = BodyEnd::Length(length);
    head.header.insert_header(header::CONTENT_LENGTH, HeaderValue::from(length))?;
    finish_head(flow, &mut head, request, attempt)?;
    let client = &mut flow.client;
    // A client that has waited may have the head of its stream.
    let has_head =
        flow.ctx.record.queue.is_kept_alive || client.write_head(head.header).await.is_ok();
    match has_head && client.write_body(body, true).await.is_ok() {
        true => Ok(()),
        false => flow.ctx.end_cancelled(),
    }
}

/// Responds with the error that a whole response reports beside its result, or in it.
async fn send_failed(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
    mut held: HeldResponse,
) -> Served {
    held.set_status_of_error(attempt.sent_model(request), request.body());
    flow.ctx.record.response.outcome = Some(Outcome::Fault);
    send_held(flow, convert_held(held, request.profile.operation)).await
}

/// The memory for the conversion of a response, as a multiple of its size: as it came, split off,
/// its text, what is gathered, and the result.
const CONVERSION_SHARE: usize = 5;

/// Claims memory for the conversion of a response of `bytes`. At most the whole budget, so that one
/// conversion alone always fits.
pub(crate) fn claim_conversion(claim: &mut BodyClaim, bytes: usize) -> bool {
    claim.grow_to(bytes.saturating_mul(CONVERSION_SHARE).min(claim.limit()))
}

/// Converts a whole response.
pub(crate) fn convert(converter: &mut Converter, body: Bytes) -> Result<Bytes, OwnError> {
    converter.apply(body, true, now()).map_err(|code| {
        let message = converter.failure().unwrap_or_else(|| timeout_message(code).to_owned());
        OwnError::new(code, message)
    })
}

/// Responds with an error for a backend's response that cannot be read or converted.
async fn fail(flow: &mut Flow<'_>, error: OwnError) -> Served {
    flow.ctx.record.response.outcome = Some(unreadable_outcome(error.code));
    send_error(flow, error).await
}
