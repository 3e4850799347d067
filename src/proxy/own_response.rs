//! Responses penstock makes itself, and the fields every response carries.

use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http::header::{self, HeaderName, HeaderValue};
use penstock_api::content_coding::ACCEPTED;
use penstock_api::units::whole_seconds;
use penstock_api::{ErrorCode, ErrorReport, error_body, unstarted_error_event};
use penstock_dialect::convert_error_event;
use pingora::http::ResponseHeader;

use crate::downstream::body::{BodyError, BodyLength};
use crate::downstream::http1::RefusedHead;
use crate::downstream::response_writer::drain;
use crate::proxy::budgets;
use crate::proxy::failure::{OwnError, code_of_status};
use crate::proxy::flow::{ClientSide, Flow, RequestContext, Served, own_outcome};
use crate::proxy::rate_limits::{add_rate_fields, settle_rate, settle_unserved};
use crate::upstream::failure::HeldResponse;
use crate::upstream::headers::REQUEST_ID;
use crate::upstream::relay::ResponseSink;

/// The decision behind a response, with `routing.expose_decision`.
pub(super) const DECISION: HeaderName = HeaderName::from_static("x-penstock-decision");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The backend's `x-request-id`, under the name the client gets it by.
const UPSTREAM_REQUEST_ID: HeaderName = HeaderName::from_static("x-upstream-request-id");
/// The field Anthropic's clients read the request id from.
const DIALECT_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// The fields of a response that web pages may read (`server.cors`): request ids, penstock's own
/// fields, and the rate limits and times that OpenAI and Anthropic send. A browser takes no pattern
/// here if credentials are involved.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, request-id, x-upstream-request-id, retry-after, retry-after-ms, x-should-retry, \
     x-penstock-backend, x-penstock-decision, x-penstock-context-shift, \
     x-penstock-retried-without, x-penstock-ensemble, x-penstock-tier, x-penstock-budget, \
     x-penstock-budget-model, openai-processing-ms, openai-organization, openai-version, \
     x-ratelimit-limit-requests, x-ratelimit-limit-tokens, \
     x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, \
     x-ratelimit-reset-tokens, anthropic-organization-id, anthropic-ratelimit-requests-limit, \
     anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, \
     anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, \
     anthropic-ratelimit-tokens-reset, anthropic-ratelimit-input-tokens-limit, \
     anthropic-ratelimit-input-tokens-remaining, anthropic-ratelimit-input-tokens-reset, \
     anthropic-ratelimit-output-tokens-limit, anthropic-ratelimit-output-tokens-remaining, \
     anthropic-ratelimit-output-tokens-reset",
);
/// The longest wait after which a client should try again, although every backend has been tried.
const MAX_SHORT_WAIT: Duration = Duration::from_secs(10);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub(crate) struct OwnResponse {
    pub(crate) head: ResponseHeader,
    pub(crate) body: Bytes,
    /// True if the connection ends with the response.
    pub(crate) closes: bool,
}

/// Adds fields that keep proxies from buffering a stream.
pub(crate) fn add_stream_fields(header: &mut ResponseHeader) -> pingora::Result<()> {
    header.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))?;
    header.insert_header(ACCEL_BUFFERING, HeaderValue::from_static("no"))
}

/// Frames a body whose length is not known.
pub(crate) fn frame_open_end(
    header: &mut ResponseHeader,
    client: &mut ClientSide<'_>,
) -> pingora::Result<()> {
    match client.head().version {
        Version::HTTP_11 => {
            let chunked = HeaderValue::from_static("chunked");
            header.insert_header(header::TRANSFER_ENCODING, chunked)?;
        }
        // HTTP/1.0 has no chunks: such a body ends with the connection, and the head must say so.
        Version::HTTP_10 => client.close_after(),
        // HTTP/2 frames its bodies itself.
        _ => {}
    }
    Ok(())
}

/// Responds with an error of our own, in the client's dialect.
pub(crate) async fn send_error(flow: &mut Flow<'_>, error: OwnError) -> Served {
    if flow.ctx.record.queue.is_kept_alive {
        let event = flow
            .ctx
            .operation
            .map(|operation| unstarted_error_event(operation, error.code, &error.message));
        return end_stream(flow, error.code, event).await;
    }
    let response = error_response(flow.ctx, &error)?;
    send(flow, response).await
}

/// Responds to a request whose body could not be read.
pub(crate) async fn send_body_error(flow: &mut Flow<'_>, error: &BodyError) -> Served {
    let Some(own) = OwnError::from_body(error) else { return flow.ctx.end_cancelled() };
    let mut response = error_response(flow.ctx, &own)?;
    if matches!(error, BodyError::Coding(_)) {
        // RFC 9110 §15.5.16: what the client may send instead.
        response.head.insert_header(header::ACCEPT_ENCODING, ACCEPTED)?;
    }
    send(flow, response).await
}

/// Responds to a request whose head was refused; nothing after such a head can be trusted.
pub(crate) async fn send_refusal(flow: &mut Flow<'_>, refused: RefusedHead) -> Served {
    flow.ctx.refused = Some(Box::new(refused.requested));
    flow.ctx.request_id = flow.proxy.seeds.next_request_id();
    flow.ctx.dialect = refused.dialect;
    let error = OwnError::new(refused.error.code(), refused.error.to_string());
    send_error(flow, error.closing()).await
}

/// Sends a backend's refusal that was held back, with the backend's own `Retry-After`.
pub(crate) async fn send_held(flow: &mut Flow<'_>, held: HeldResponse) -> Served {
    if flow.ctx.record.queue.is_kept_alive {
        let code = code_of_status(held.status);
        let event = flow
            .ctx
            .operation
            .map(|operation| convert_error_event(operation, code, held.status, &held.body));
        return end_stream(flow, code, event).await;
    }
    flow.ctx.record.response.status = held.status;
    let mut head = *held.header;
    keep_upstream_id(&mut head, flow.ctx)?;
    let response = OwnResponse { head, body: held.body, closes: false };
    send(flow, response).await
}

/// Advises against an early retry of a refused request: it would try the same backends again. A
/// short wait and the backend's own `x-should-retry` say more.
pub(crate) fn advise_against_retry(held: &mut HeldResponse) -> pingora::Result<()> {
    let waits_shortly = held.retry_after.is_some_and(|wait| wait <= MAX_SHORT_WAIT);
    if !waits_shortly && !held.header.headers.contains_key(SHOULD_RETRY) {
        held.header.insert_header(SHOULD_RETRY, HeaderValue::from_static("false"))?;
    }
    Ok(())
}

/// Ends a stream that comes to nothing after its client got the head in a queue
/// (`queue.keep_alive`): the status and the body of the error are an event in the client's dialect.
async fn end_stream(flow: &mut Flow<'_>, code: ErrorCode, event: Option<Vec<u8>>) -> Served {
    debug_assert!(event.is_some(), "a stream that waits has an operation");
    let response = &mut flow.ctx.record.response;
    response.code = Some(code);
    // An outcome that an attempt has set says more than the code.
    response.outcome.get_or_insert_with(|| own_outcome(Some(code), code.row().status));
    settle_unserved(flow.ctx);
    flow.client.close_after();
    flow.client.write_body(event.unwrap_or_default().into(), true).await
}

pub(crate) async fn send(flow: &mut Flow<'_>, response: OwnResponse) -> Served {
    // Boxed: no request that is forwarded, or waits in a queue, should carry room for it.
    Box::pin(write(flow, response)).await
}

async fn write(flow: &mut Flow<'_>, OwnResponse { mut head, body, closes }: OwnResponse) -> Served {
    debug_assert!(!flow.ctx.record.queue.is_kept_alive, "a client that has a head gets no other");
    // Before the write: a client may send its next request as soon as it has the response.
    if flow.ctx.holds_limits() {
        settle_rate(flow.ctx);
    }
    if head.headers.get(header::CONTENT_TYPE).is_none() && !body.is_empty() {
        head.insert_header(header::CONTENT_TYPE, JSON)?;
    }
    // Bytes of an unread body must not be taken for the next request.
    let closes = closes || (flow.ctx.body_length != BodyLength::None && !flow.ctx.body_is_read);
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    add_common_fields(&mut head, flow.ctx)?;
    let client = &mut flow.client;
    if closes || flow.proxy.is_stopping() {
        client.close_after();
    }
    client.write_head(Box::new(head)).await?;
    client.write_body(body, true).await?;
    // A close with unread bytes resets the connection, and the client may lose the response (RFC
    // 9112 §9.6).
    if closes && let Some(client) = &flow.ctx.client {
        drain(client, &flow.proxy.clients.refused_drains).await;
    }
    Ok(())
}

/// A response with an error of our own.
pub(crate) fn error_response(
    ctx: &mut RequestContext,
    error: &OwnError,
) -> pingora::Result<OwnResponse> {
    let row = error.code.row();
    ctx.record.response.status = row.status;
    ctx.record.response.code = Some(error.code);
    let mut head = ResponseHeader::build(row.status, Some(10))?;
    let should_retry = if row.retry && !error.is_final { "true" } else { "false" };
    head.insert_header(SHOULD_RETRY, HeaderValue::from_static(should_retry))?;
    if let Some(wait) = error.retry_after {
        head.insert_header(header::RETRY_AFTER, to_retry_after(wait))?;
    }
    if row.status == 426 {
        // A 426 names what the server does take (RFC 9110 §15.5.22).
        head.insert_header(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"))?;
    }
    // A 401 names the scheme that is missing (RFC 9110 §15.5.2).
    if row.status == 401 {
        head.insert_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))?;
    }
    let is_exposed = ctx.generation.config.routing.expose_decision;
    if let Some(rejections) = ctx.record.routing.rejections.as_deref().filter(|_| is_exposed) {
        head.insert_header(DECISION, format!("none;rejected={rejections}"))?;
    }
    let report = ErrorReport {
        code: error.code,
        message: &error.message,
        param: error.param,
        request_id: Some(ctx.request_id()),
    };
    let body = error_body(ctx.dialect, &report);
    Ok(OwnResponse { head, body: body.into(), closes: error.closes })
}

/// Request id, rate limits and CORS.
pub(crate) fn add_common_fields(
    head: &mut ResponseHeader,
    ctx: &RequestContext,
) -> pingora::Result<()> {
    head.insert_header(REQUEST_ID, ctx.request_id.clone())?;
    if let Some(name) = ctx.dialect.row().request_id_header
        && !head.headers.contains_key(name)
    {
        head.insert_header(name, ctx.request_id.clone())?;
    }
    if let Some(rate) = &ctx.rate {
        add_rate_fields(head, &rate.status)?;
    }
    if let Some(budget) = &ctx.budget {
        budgets::add_fields(head, budget, ctx)?;
    }
    if let Some(origin) = &ctx.cors_origin {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone())?;
        // Otherwise a cache could give the response to a page of another origin.
        head.insert_header(header::VARY, HeaderValue::from_static("origin"))?;
        head.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED)?;
    }
    Ok(())
}

/// Renames the backend's own request id, because `x-request-id` has penstock's: a hosted API's
/// support asks for it. An engine that returns ours has none.
pub(crate) fn keep_upstream_id(
    head: &mut ResponseHeader,
    ctx: &mut RequestContext,
) -> pingora::Result<()> {
    let Some(id) = head.remove_header(&REQUEST_ID).filter(|id| *id != ctx.request_id) else {
        ctx.record.response.upstream_request_id = head.headers.get(DIALECT_REQUEST_ID).cloned();
        return Ok(());
    };
    head.insert_header(UPSTREAM_REQUEST_ID, id.clone())?;
    ctx.record.response.upstream_request_id = Some(id);
    Ok(())
}

/// Whole seconds, rounded up: a client that retries too early is rejected again.
pub(crate) fn to_retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(whole_seconds(wait).as_secs().max(1))
}
