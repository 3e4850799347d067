//! `server-timing`: the duration of a request beside its prediction, for clients that request it,
//! if the configuration exposes decisions.

use std::fmt::Write as _;

use penstock_api::TIMING;

use crate::proxy::flow::Flow;
use crate::upstream::relay::Timing;

/// The timing known before the first token, if the client requests it: the wait in the queue, and
/// the prediction.
pub(super) fn requested(flow: &Flow<'_>) -> Option<Timing> {
    if !flow.client.head().headers.contains_key(&TIMING) {
        return None;
    }
    let mut known = String::new();
    if let Some(wait) = flow.ctx.record.queue.wait {
        add(&mut known, "queue", wait.as_secs_f64() * 1000.0);
    }
    if let Some(predicted) = &flow.ctx.record.routing.prediction {
        add(&mut known, "predicted-ttft", predicted.ttft_us / 1000.0);
        add(&mut known, "predicted-ttft-p90", predicted.ttft_p90_us / 1000.0);
        add(&mut known, "predicted-tpot", predicted.tpot_us / 1000.0);
        add(&mut known, "predicted-tpot-p90", predicted.tpot_p90_us / 1000.0);
    }
    Some(Timing { since: flow.ctx.arrived_at, known })
}

fn add(metrics: &mut String, name: &str, millis: f64) {
    // Writing to a string does not fail.
    let _written = write!(metrics, "{name};dur={millis:.1}, ");
}
