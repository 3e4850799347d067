//! Takes tools or images out of a request that an engine has refused because its model cannot do it, where
//! `routing.retry_without` allows that. The request is then sent once more; what another refusal says
//! goes to the client.

use super::context::{RequestContext, ScannedRequest};
use crate::api::{Capabilities, Operation};
use crate::dialect::{read_unsupported, without};

/// Whether a response with this status is worth reading.
pub(super) fn reads(ctx: &RequestContext, request: &ScannedRequest, status: u16) -> bool {
    let has_messages = matches!(
        request.profile.operation,
        Operation::Chat
            | Operation::Messages
            | Operation::Responses
            | Operation::OllamaChat
            | Operation::OllamaGenerate
    );
    matches!(status, 400 | 422 | 500 | 501) && has_messages && !droppable(ctx, request).is_empty()
}

/// Takes out what the engine's error says that its model cannot do; returns whether there was such a thing.
pub(super) fn take_out(
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    error: &[u8],
) -> bool {
    let what = read_unsupported(error);
    if what.is_empty() || !droppable(ctx, request).contains(what) {
        return false;
    }
    let changed = without(request.profile.operation, request.body(), what);
    let is_changed = changed.and_then(|changed| request.replace_body(ctx, changed)).is_some();
    if is_changed {
        ctx.record.retried_without = ctx.record.retried_without.union(what);
    }
    is_changed
}

/// What the request has and may lose.
fn droppable(ctx: &RequestContext, request: &ScannedRequest) -> Capabilities {
    let allowed = ctx.generation.config.routing.retry_without;
    let needs = request.profile.needs;
    let kept = needs.without(allowed);
    needs.without(kept)
}
