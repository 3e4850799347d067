//! Answers penstock gives itself, and the fields every answer carries.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::Proxy;
use super::context::RequestContext;
use super::failure::OwnError;
use crate::api::error_body;
use crate::downstream::body::BodyLength;
use crate::downstream::response_writer::drain;
use crate::upstream::failure::HeldResponse;
use crate::upstream::headers::REQUEST_ID;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl Proxy {
    /// Answers with an error of our own, in the client's dialect.
    pub(crate) async fn answer_error(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        error: OwnError,
    ) -> pingora::Result<()> {
        let row = error.code.row();
        ctx.ending.status = row.status;
        ctx.ending.code = Some(error.code);
        let body = error_body(ctx.dialect, error.code, &error.message, error.param);
        let mut head = ResponseHeader::build(row.status, Some(10))?;
        let should_retry = if row.retry { "true" } else { "false" };
        head.insert_header(SHOULD_RETRY, HeaderValue::from_static(should_retry))?;
        if let Some(wait) = error.retry_after {
            head.insert_header(header::RETRY_AFTER, retry_after(wait))?;
        }
        if row.status == 401 {
            let bearer = HeaderValue::from_static("Bearer");
            head.insert_header(header::WWW_AUTHENTICATE, bearer)?;
        }
        self.answer(session, ctx, (head, body.into(), error.closes)).await
    }

    /// Answers with a complete body; `closes` ends the connection behind it.
    pub(crate) async fn answer(
        &self,
        session: &mut Session,
        ctx: &RequestContext,
        (mut head, body, closes): (ResponseHeader, Bytes, bool),
    ) -> pingora::Result<()> {
        if head.headers.get(header::CONTENT_TYPE).is_none() && !body.is_empty() {
            head.insert_header(header::CONTENT_TYPE, JSON)?;
        }
        // Bytes of a body nobody read must not be taken for the next request.
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
            drain(client, &self.clients.refused_drains).await;
        }
        Ok(())
    }

    /// Relays a refusal that was held back, with its own wait.
    pub(crate) async fn answer_held(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        held: HeldResponse,
    ) -> pingora::Result<()> {
        ctx.ending.status = held.status;
        self.answer(session, ctx, (*held.header, held.body, false)).await
    }
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

/// Whole seconds, rounded up: a client that comes back early is turned away again.
fn retry_after(wait: Duration) -> HeaderValue {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}
