//! One attempt: what is fixed when it starts, and how it ends.

use parking_lot::Mutex;

use super::context::{RequestContext, Served};
use super::seeds::Seeds;
use crate::api::TraceContext;
use crate::clock::now;
use crate::downstream::client::Client;
use crate::fleet::{Backend, InflightGuard, Serving, Topology};
use crate::routing::RoutingDecision;
use crate::units::Timestamp;
use crate::upstream::failure::Failure;

/// How an attempt ended.
pub(crate) enum AttemptEnd {
    /// A response went to the client, whole or visibly broken.
    Relayed(Served),
    /// Not a byte went to the client.
    Failed(Failure),
}

/// The fixed parts of one attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) decision: &'a RoutingDecision,
    pub(crate) fleet: &'a Topology,
    pub(crate) serving: &'a Serving,
    pub(crate) backend: &'a Backend,
    pub(crate) client: &'a Client,
    pub(crate) started: Timestamp,
    /// 1 for the first one.
    pub(crate) number: u32,
    /// The request's trace, and the attempt's own span in it.
    pub(crate) trace: Option<(TraceContext, u64)>,
    /// The in-flight permit; gone once the backend's part is over.
    pub(crate) permit: Mutex<Option<InflightGuard>>,
}

impl<'a> Attempt<'a> {
    /// An attempt at a decision; `None` when the decision does not fit the fleet it was made on.
    pub(crate) fn start(
        ctx: &RequestContext,
        decision: &'a RoutingDecision,
        fleet: &'a Topology,
        client: &'a Client,
        permit: InflightGuard,
        seeds: &Seeds,
    ) -> Option<Self> {
        let serving = decision.serving(fleet)?;
        Some(Self {
            decision,
            fleet,
            serving,
            backend: fleet.backends.get(usize::from(serving.backend))?,
            client,
            started: now(),
            number: ctx.record.attempts,
            trace: ctx.trace.map(|trace| (trace, seeds.next().max(1))),
            permit: Mutex::new(Some(permit)),
        })
    }

    /// The engine has computed the prompt: its tokens no longer count as waiting.
    pub(crate) fn prompt_done(&self) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.end_prefill();
        }
    }
}
