//! Live usage on the data port (`server.compat`). The implementation lies above the data plane,
//! which only knows its trait.

use std::future::poll_fn;

use http::header::{self, HeaderValue};
use penstock_api::{ErrorCode, UsageCall};
use penstock_config::Compat;
use penstock_core::fleet::Outcome;
use pingora::http::ResponseHeader;

use crate::ollama::broadcast::may_manage;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::{
    OwnResponse, add_common_fields, add_stream_fields, frame_open_end, send, send_error,
};
use crate::proxy::usage_api::{EventSource, UsageRefusal, UsageRequest, UsageResponse};
use crate::upstream::relay::ResponseSink;

/// A page and its status.
pub(crate) struct RenderedPage {
    status: u16,
    body: Vec<u8>,
}

/// Responds to a request for usage.
pub(crate) async fn send_usage(flow: &mut Flow<'_>, call: UsageCall, body: &[u8]) -> Served {
    // The usage of all clients, and one call deletes some of it. Without keys there is one client.
    if flow.ctx.identity.is_some() && !may_manage(flow.ctx) {
        let message = "The usage of all clients is for keys with manage_models";
        let error = OwnError::new(ErrorCode::ManagementNotAllowed, message);
        return send_error(flow, error).await;
    }
    let Some(usage) = flow.proxy.usage.as_deref() else {
        let error = OwnError::new(ErrorCode::UsageUnavailable, "This process counts no usage");
        return send_error(flow, error).await;
    };
    let query = flow.client.head().uri.query().unwrap_or_default().to_owned();
    match usage.respond(UsageRequest { call, query: &query, body }).await {
        Ok(UsageResponse::Page(body)) => send_page(flow, RenderedPage { status: 200, body }).await,
        Ok(UsageResponse::Stream(events)) => send_events(flow, events).await,
        Err(UsageRefusal { code, message }) => send_error(flow, OwnError::new(code, message)).await,
    }
}

/// The public health page in the shape of the NOMYO Router; `None` if penstock's own shape is
/// served. Only clients that may use the port see the URLs of its backends.
pub(crate) fn health(flow: &Flow<'_>) -> Option<RenderedPage> {
    let config = &flow.ctx.generation.config;
    let usage = flow.proxy.usage.as_deref().filter(|_| config.server.compat == Compat::Nomyo)?;
    let (is_ok, body) =
        usage.health(flow.proxy.keys.is_open(config) || flow.ctx.identity.is_some());
    Some(RenderedPage { status: if is_ok { 200 } else { 503 }, body })
}

pub(crate) async fn send_page(flow: &mut Flow<'_>, page: RenderedPage) -> Served {
    flow.ctx.record.response.status = page.status;
    let head = ResponseHeader::build(page.status, Some(8))?;
    let response = OwnResponse { head, body: page.body.into(), closes: false };
    send(flow, response).await
}

/// Sends events until their end, or until the client leaves.
async fn send_events(flow: &mut Flow<'_>, mut events: Box<dyn EventSource>) -> Served {
    flow.ctx.record.response.status = 200;
    let mut head = ResponseHeader::build(200, Some(8))?;
    head.insert_header(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))?;
    add_stream_fields(&mut head)?;
    frame_open_end(&mut head, &mut flow.client)?;
    add_common_fields(&mut head, flow.ctx)?;
    let Some(client) = flow.ctx.client.clone() else { return flow.ctx.end_cancelled() };
    flow.client.write_head(Box::new(head)).await?;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = poll_fn(|cx| client.poll_gone(cx)) => {
                // The usual end of a stream that ends only at shutdown.
                let gone = flow.ctx.end_cancelled();
                flow.ctx.record.response.outcome = Some(Outcome::Ok);
                return gone;
            }
        };
        let is_last = event.is_none();
        let event = event.unwrap_or_default();
        if flow.client.write_body(event, is_last).await.is_err() {
            return flow.ctx.end_cancelled();
        }
        if is_last {
            return Ok(());
        }
    }
}
