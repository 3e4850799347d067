//! Responses penstock makes itself, and the fields every response carries.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::Proxy;
use super::context::{RequestContext, Served};
use super::failure::OwnError;
use super::target::Target;
use crate::api::error_body;
use crate::config::Cors;
use crate::downstream::body::BodyLength;
use crate::downstream::http1::RefusedHead;
use crate::downstream::response_writer::drain;
use crate::upstream::failure::HeldResponse;
use crate::upstream::headers::REQUEST_ID;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A complete response.
pub(crate) struct OwnResponse {
    pub(crate) head: ResponseHeader,
    pub(crate) body: Bytes,
    /// Whether the connection ends with it.
    pub(crate) closes: bool,
}

/// Responds with an error of our own, in the client's dialect.
pub(crate) async fn send_error(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    error: OwnError,
) -> Served {
    let response = error_response(ctx, &error)?;
    send(proxy, session, ctx, response).await
}

/// Responds to a request whose head was refused; nothing after such a head can be trusted.
pub(crate) async fn send_refusal(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    refused: RefusedHead,
) -> Served {
    ctx.record.refused = Some(Box::new(refused.requested));
    ctx.request_id = proxy.seeds.next_request_id();
    ctx.dialect = refused.dialect;
    let error = OwnError::new(refused.error.code(), refused.error.to_string());
    send_error(proxy, session, ctx, error.closing()).await
}

/// Responds to a method that the path does not take.
pub(crate) async fn send_wrong_method(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    target: Target<'_>,
    error: OwnError,
) -> Served {
    let mut response = error_response(ctx, &error)?;
    let with_cors = !matches!(ctx.generation.config.server.cors, Cors::Off);
    let methods = target.methods();
    let allowed = if with_cors { methods } else { methods.trim_end_matches(", OPTIONS") };
    response.head.insert_header(header::ALLOW, allowed)?;
    send(proxy, session, ctx, response).await
}

/// Sends a backend's refusal that was held back, with the backend's own `Retry-After`.
pub(crate) async fn send_held(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    held: HeldResponse,
) -> Served {
    ctx.record.status = held.status;
    let response = OwnResponse { head: *held.header, body: held.body, closes: false };
    send(proxy, session, ctx, response).await
}

/// Sends a complete response.
pub(crate) async fn send(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &RequestContext,
    OwnResponse { mut head, body, closes }: OwnResponse,
) -> Served {
    if head.headers.get(header::CONTENT_TYPE).is_none() && !body.is_empty() {
        head.insert_header(header::CONTENT_TYPE, JSON)?;
    }
    // Bytes of an unread body must not be taken for the next request.
    let closes = closes || (ctx.body_length != BodyLength::None && !ctx.body_is_read);
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    add_common_fields(&mut head, ctx)?;
    let downstream = session.as_downstream_mut();
    if closes {
        downstream.set_keepalive(None);
    }
    downstream.write_response_header(Box::new(head)).await?;
    downstream.write_response_body(body, true).await?;
    if closes && let Some(client) = &ctx.client {
        drain(client, &proxy.clients.refused_drains).await;
    }
    Ok(())
}

fn error_response(ctx: &mut RequestContext, error: &OwnError) -> pingora::Result<OwnResponse> {
    let row = error.code.row();
    ctx.record.status = row.status;
    ctx.record.code = Some(error.code);
    let mut head = ResponseHeader::build(row.status, Some(10))?;
    let should_retry = if row.retry { "true" } else { "false" };
    head.insert_header(SHOULD_RETRY, HeaderValue::from_static(should_retry))?;
    if let Some(wait) = error.retry_after {
        head.insert_header(header::RETRY_AFTER, to_retry_after(wait))?;
    }
    if row.status == 401 {
        head.insert_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))?;
    }
    let body = error_body(ctx.dialect, error.code, &error.message, error.param);
    Ok(OwnResponse { head, body: body.into(), closes: error.closes })
}

/// Request id and CORS.
pub(crate) fn add_common_fields(
    head: &mut ResponseHeader,
    ctx: &RequestContext,
) -> pingora::Result<()> {
    head.insert_header(REQUEST_ID, ctx.request_id.clone())?;
    if let Some(origin) = &ctx.cors_origin {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone())?;
        head.insert_header(header::VARY, HeaderValue::from_static("origin"))?;
        let exposed = HeaderValue::from_static("x-request-id, retry-after, x-penstock-backend");
        head.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed)?;
    }
    Ok(())
}

/// Whole seconds, rounded up: a client that retries too early is rejected again.
fn to_retry_after(wait: Duration) -> HeaderValue {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}
