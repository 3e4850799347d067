//! Streams that wait long in a queue (`queue.keep_alive`): their clients get the head of the
//! response, and now and then bytes that they ignore. From then on the status is 200: a backend's
//! stream continues it, and everything else ends in `stream_error`.

use std::future::poll_fn;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use penstock_api::{Operation, Work};
use pingora::http::ResponseHeader;

use crate::proxy::flow::{Flow, Served};
use crate::proxy::own_response::add_common_fields;
use crate::proxy::request::ScannedRequest;
use crate::proxy::response::{add_edits, add_stream_fields, frame_open_end};
use crate::upstream::relay::ResponseSink;

/// Returns whether the client may get the head before there is a response: only the head of a token
/// stream is known.
pub(crate) fn may_keep_alive(request: &ScannedRequest) -> bool {
    let profile = &request.profile;
    // Requests that load or unload a model get a whole response.
    let is_stream = profile.streaming && profile.residency_change.is_none();
    is_stream && profile.operation.row().work == Work::Generation
}

/// Sends bytes that the client ignores, after the head if it has none.
pub(crate) async fn send_waiting(flow: &mut Flow<'_>, operation: Operation) -> Served {
    let dialect = operation.row().dialect.row();
    if !flow.ctx.record.queue.is_kept_alive {
        let mut head = ResponseHeader::build(200, Some(8))?;
        let content_type = HeaderValue::from_static(dialect.framing.content_type());
        head.insert_header(header::CONTENT_TYPE, content_type)?;
        add_common_fields(&mut head, flow.ctx)?;
        add_stream_fields(&mut head)?;
        add_edits(&mut head, &flow.ctx.record.edits)?;
        frame_open_end(&mut head, &mut flow.client)?;
        // Before the write: if that fails half-way, no error may send a second head.
        flow.ctx.record.queue.is_kept_alive = true;
        flow.ctx.record.response.status = 200;
        flow.client.write_head(Box::new(head)).await?;
    }
    let bytes = Bytes::from_static(dialect.waiting.as_bytes());
    flow.client.write_body(bytes, false).await?;
    // No other part follows soon that would flush them.
    if let Some(client) = &flow.ctx.client {
        let flushed = poll_fn(|cx| client.poll_flush(cx)).await;
        if flushed.is_err() {
            return flow.ctx.client_gone();
        }
    }
    Ok(())
}
