//! The charges to the owners of requests that have waited: first by the expected cost, then by the
//! actual one.

use penstock_core::admission::queue::{Charge, Cost};

use crate::proxy::Proxy;
use crate::proxy::flow::{ModelCharge, RequestContext};

/// Records that the owner of a request was charged for it in the queue of `model`.
pub(crate) fn charge_owner(
    proxy: &Proxy,
    ctx: &mut RequestContext,
    model: Box<str>,
    charge: Option<Charge>,
) {
    let charge = charge.map(|charge| Box::new(ModelCharge { model, charge }));
    // No engine has started on a request that waits again: its earlier charge is settled at no
    // cost.
    if let Some(before) = std::mem::replace(&mut ctx.charge, charge) {
        proxy.queues.of_model(&before.model).settle(&before.charge, Cost::default());
    }
}

/// Charges the owner of a request for the output of its response, as far as that is known.
pub(crate) fn settle_charge(proxy: &Proxy, ctx: &RequestContext, charged: &ModelCharge) {
    let counted = ctx.record.response.usage.and_then(|usage| usage.completion_tokens);
    // For a whole response without usage nothing better is known than the expected cost.
    if ctx.record.request.is_streaming || counted.is_some() || ctx.record.response.status >= 400 {
        let output = counted.unwrap_or(ctx.record.response.token_events);
        let cost = Cost { output, ..charged.charge.cost };
        proxy.queues.of_model(&charged.model).settle(&charged.charge, cost);
    }
}
