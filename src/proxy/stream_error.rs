//! The end of a stream that comes to nothing after its client got the head in a queue
//! (`queue.keep_alive`): the status and the body of the error become an event in the client's
//! dialect.

use penstock_api::{ErrorCode, unstarted_error_event};
use penstock_dialect::convert_error_event;

use crate::proxy::failure::{OwnError, code_of_status};
use crate::proxy::flow::{Flow, Served, own_outcome};
use crate::proxy::rate_limits::settle_unserved;
use crate::upstream::failure::HeldResponse;
use crate::upstream::relay::ResponseSink;

/// Ends the stream with an error of our own.
pub(crate) async fn end_with_error(flow: &mut Flow<'_>, error: &OwnError) -> Served {
    let event = flow
        .ctx
        .operation
        .map(|operation| unstarted_error_event(operation, error.code, &error.message));
    end(flow, error.code, event).await
}

/// Ends the stream with a backend's error.
pub(crate) async fn end_with_held(flow: &mut Flow<'_>, held: &HeldResponse) -> Served {
    let code = code_of_status(held.status);
    let event = flow
        .ctx
        .operation
        .map(|operation| convert_error_event(operation, code, held.status, &held.body));
    end(flow, code, event).await
}

async fn end(flow: &mut Flow<'_>, code: ErrorCode, event: Option<Vec<u8>>) -> Served {
    debug_assert!(event.is_some(), "a stream that waits has an operation");
    flow.ctx.record.response.code = Some(code);
    let outcome = || own_outcome(Some(code), code.row().status);
    // An outcome that an attempt has set says more than the code.
    flow.ctx.record.response.outcome.get_or_insert_with(outcome);
    settle_unserved(flow.ctx);
    let client = &mut flow.client;
    client.close_after();
    client.write_body(event.unwrap_or_default().into(), true).await
}
