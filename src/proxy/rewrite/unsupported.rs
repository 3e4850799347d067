//! Removes tools or images from a request that an engine has refused because its model cannot use
//! them, if `routing.retry_without` allows that. The request is then sent once more; another
//! refusal goes to the client.

use penstock_api::{Capabilities, Operation};
use penstock_dialect::without;

use crate::proxy::context::{RequestContext, ScannedRequest};

/// The capabilities that may be removed from the request after a response with this status.
pub(crate) fn droppable(
    ctx: &RequestContext,
    request: &ScannedRequest,
    status: u16,
) -> Capabilities {
    let has_messages = matches!(
        request.profile.operation,
        Operation::Chat
            | Operation::Messages
            | Operation::Responses
            | Operation::OllamaChat
            | Operation::OllamaGenerate
    );
    if !has_messages || !matches!(status, 400 | 422 | 500 | 501) {
        return Capabilities::NONE;
    }
    let allowed = ctx.generation.config.routing.retry_without;
    let needs = request.profile.needs;
    let kept = needs.without(allowed);
    needs.without(kept)
}

/// Removes `what` from the request; returns whether there was such a thing.
pub(crate) fn take_out(
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    what: Capabilities,
) -> bool {
    let changed = without(request.profile.operation, request.body(), what);
    let is_changed = changed.and_then(|changed| request.replace_body(ctx, changed)).is_some();
    if is_changed {
        ctx.record.edits.retried_without = ctx.record.edits.retried_without.union(what);
    }
    is_changed
}
