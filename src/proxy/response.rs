//! What penstock adds to an answer it relays: fields of its own in the head, and a visible end where
//! the backend broke off.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use pingora_proxy::Session;

use super::answer::add_common_fields;
use super::attempt::Attempt;
use super::context::{Call, RequestContext};
use super::failure::timeout_message;
use super::retry::Served;
use crate::api::{ErrorCode, error_event};
use crate::upstream::response_head::{Framing, ResponseHead};
use crate::upstream::response_monitor::ResponseMonitor;

const BACKEND: HeaderName = HeaderName::from_static("x-penstock-backend");
const DECISION: HeaderName = HeaderName::from_static("x-penstock-decision");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Adds to an answer's head what penstock has to say.
pub(crate) fn finish_head(
    head: &mut ResponseHead,
    ctx: &RequestContext,
    session: &Session,
    (call, attempt): (&Call, &Attempt<'_>),
) -> pingora::Result<()> {
    let header = &mut head.header;
    add_common_fields(header, ctx)?;
    if head.is_event_stream {
        header.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))?;
        header.insert_header(ACCEL_BUFFERING, HeaderValue::from_static("no"))?;
    }
    if ctx.generation.config.routing.expose_decision {
        header.insert_header(BACKEND, &*attempt.serving.state.name)?;
        if let Some(decision) = &call.decision {
            let mut code = format!(
                "{};candidates={};attempt={}{}{}",
                decision.strategy.name(),
                decision.candidates,
                ctx.ending.attempts,
                if decision.is_fallback { ";fallback" } else { "" },
                if decision.is_assumed { ";assumed" } else { "" },
            );
            if let Some(weighted) = ctx.generation.router.weighted() {
                code.extend(decision.card.map(|card| weighted.to_text(&card)));
            }
            header.insert_header(DECISION, code)?;
        }
    }
    let is_open_ended = matches!(head.framing, Framing::Chunked | Framing::UntilClose);
    if is_open_ended && session.req_header().version == http::Version::HTTP_11 {
        let chunked = HeaderValue::from_static("chunked");
        header.insert_header(header::TRANSFER_ENCODING, chunked)?;
    }
    Ok(())
}

/// Ends an answer that broke off: a stream with an error event in the client's dialect, anything
/// else with framing that no client takes for a whole answer.
pub(crate) async fn break_off(
    session: &mut Session,
    ctx: &RequestContext,
    (code, monitor): (ErrorCode, &ResponseMonitor),
) -> Served {
    let message = timeout_message(code);
    let broken = || {
        let cut = pingora::ErrorType::ConnectionClosed;
        pingora::Error::e_explain(cut, "the backend's answer broke off")
    };
    let Some(ending) = monitor.is_stream().then_some(ctx.operation).flatten() else {
        return broken();
    };
    let mut event = Vec::new();
    if !monitor.is_between_events() {
        // Whatever half-sent event there is must end before the error can be read.
        event.extend_from_slice(b"\n\n");
    }
    event.extend_from_slice(&error_event(ending.row().stream_ending, code, message));
    let downstream = session.as_downstream_mut();
    downstream.set_keepalive(None);
    downstream.write_response_body(Bytes::from(event), true).await
}
