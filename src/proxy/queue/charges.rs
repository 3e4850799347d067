//! What the owners of requests that have waited are charged for: first by what is expected, then by what came.

use crate::admission::queue::{Charge, Cost};
use crate::proxy::Proxy;
use crate::proxy::context::{ModelCharge, RequestRecord};

/// The owner of a request was charged for it in the queue of `model`.
pub(super) fn charge_owner(
    proxy: &Proxy,
    record: &mut RequestRecord,
    model: Box<str>,
    charge: Option<Charge>,
) {
    let charge = charge.map(|charge| Box::new(ModelCharge { model, charge }));
    // No engine has started on a request that waits again.
    if let Some(before) = std::mem::replace(&mut record.charge, charge) {
        proxy.queues.of_model(&before.model).settle(&before.charge, Cost::default());
    }
}

/// Charges the owner of a request with the output that its response had, as far as that is known.
pub(crate) fn settle_charge(proxy: &Proxy, record: &mut RequestRecord) {
    let Some(charged) = record.charge.take() else { return };
    let counted = record.usage.and_then(|usage| usage.completion_tokens);
    if record.is_streaming || counted.is_some() || record.status >= 400 {
        let output = counted.unwrap_or(record.token_events);
        let cost = Cost { output, ..charged.charge.cost };
        proxy.queues.of_model(&charged.model).settle(&charged.charge, cost);
    }
}
