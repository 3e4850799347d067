//! Removes tools or images from a request that an engine has refused because its model cannot use
//! them, if `routing.retry_without` allows that. The request is then sent again without it, once
//! for each capability.

use penstock_api::Capabilities;
use penstock_dialect::without;

use crate::proxy::flow::RequestContext;
use crate::proxy::request::ScannedRequest;

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
