//! Removes tools or images from a request that an engine has refused because its model cannot use
//! them, if `routing.retry_without` allows that. The request is then sent once more; another
//! refusal goes to the client.

use penstock_api::Capabilities;
use penstock_dialect::without;

use super::{Rewrite, removable};
use crate::proxy::request::{RequestEdit, RequestView};
use crate::upstream::disposition::ResponseTerms;

/// Requests with parts that may be removed.
pub(crate) struct UnsupportedParts;

impl Rewrite for UnsupportedParts {
    fn on_error(&self, view: RequestView<'_>, status: u16, terms: &mut ResponseTerms<'_>) {
        if matches!(status, 400 | 422 | 500 | 501) {
            terms.may_drop = removable(view);
        }
    }
}

impl RequestEdit<'_> {
    /// Removes what the engine's model cannot use. Returns whether there was such a thing.
    pub(crate) fn remove_unsupported(&mut self, what: Capabilities) -> bool {
        let RequestEdit { ctx, request } = self;
        let changed = without(request.profile.operation, request.body(), what);
        let is_changed = changed.and_then(|changed| request.replace_body(ctx, changed)).is_some();
        if is_changed {
            ctx.record.edits.retried_without = ctx.record.edits.retried_without.union(what);
        }
        is_changed
    }
}
