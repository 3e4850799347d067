//! The end of a stream that comes to nothing after its client got the head in a queue
//! (`queue.keep_alive`): the status and the body of the error become an event in the client's
//! dialect.

use penstock_api::{ErrorCode, unstarted_error_event};
use penstock_dialect::convert_error_event;
use pingora_proxy::Session;

use super::context::{RequestContext, Served};
use super::failure::{OwnError, code_of_status};
use super::observers::own_outcome;
use super::rate_limits::settle_unserved;
use crate::upstream::failure::HeldResponse;

/// Ends the stream with an error of our own.
pub(crate) async fn end_with_error(
    session: &mut Session,
    ctx: &mut RequestContext,
    error: &OwnError,
) -> Served {
    let event =
        ctx.operation.map(|operation| unstarted_error_event(operation, error.code, &error.message));
    end(session, ctx, error.code, event).await
}

/// Ends the stream with a backend's error.
pub(crate) async fn end_with_held(
    session: &mut Session,
    ctx: &mut RequestContext,
    held: &HeldResponse,
) -> Served {
    let code = code_of_status(held.status);
    let event = ctx
        .operation
        .map(|operation| convert_error_event(operation, code, held.status, &held.body));
    end(session, ctx, code, event).await
}

async fn end(
    session: &mut Session,
    ctx: &mut RequestContext,
    code: ErrorCode,
    event: Option<Vec<u8>>,
) -> Served {
    debug_assert!(event.is_some(), "a stream that waits has an operation");
    ctx.record.code = Some(code);
    let outcome = || own_outcome(Some(code), code.row().status);
    ctx.record.outcome.get_or_insert_with(outcome);
    settle_unserved(ctx);
    let downstream = session.as_downstream_mut();
    downstream.set_keepalive(None);
    downstream.write_response_body(event.unwrap_or_default().into(), true).await
}
