//! Removes tools or images from a request that an engine has refused because its model cannot use
//! them, if `routing.retry_without` allows that. The request is then sent once more; another
//! refusal goes to the client.

use penstock_api::{Capabilities, Operation};
use penstock_dialect::without;

use crate::proxy::flow::RequestContext;
use crate::proxy::request::{RequestView, ScannedRequest};

/// The capabilities that may be removed from the request.
pub(crate) fn removable(RequestView { ctx, request }: RequestView<'_>) -> Capabilities {
    let operation = request.profile.operation;
    if operation != Operation::OllamaGenerate && operation.row().messages_member().is_none() {
        return Capabilities::NONE;
    }
    let allowed = ctx.generation.config.routing.retry_without;
    let needs = request.profile.needs;
    let kept = needs.without(allowed);
    needs.without(kept)
}

/// Removes what the engine's model cannot use. Returns whether there was such a thing.
pub(crate) fn remove_unsupported(
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
