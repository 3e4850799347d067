//! Requests as probes of backends that may have recovered.

use super::{Considered, Router};
use crate::fleet::{BreakerState, Probe, Serving};
use crate::routing::filters::{self, RejectReason, Verdict};
use crate::routing::recorder::Recorder;
use crate::routing::{RouteInput, RoutingDecision};

impl Router {
    /// Lets one request at a time probe the backend whose cooldown ends first, while every
    /// candidate is in cooldown after its own 429 or 503. The strategy does not decide.
    pub(super) fn pick_next_probe<R: Recorder>(
        &self,
        name: &str,
        input: &RouteInput<'_>,
        recorder: &mut R,
    ) -> Option<RoutingDecision> {
        let Considered { model, id, strategy, .. } = self.consider(input, name)?;
        let rejected = filters::rejections(input, model);
        let rejected = rejected.filter_map(|(row, verdict)| Some((row, verdict.err()?)));
        // Reasons are collected only for a recorder: an ordinary decision allocates nothing.
        let filters::NextProbe { row, is_known } = if R::RECORDS {
            let rejected: Vec<(u32, RejectReason)> = rejected.collect();
            let probe = filters::next_probe(rejected.iter().copied())?;
            recorder.start_pass(id);
            for (row, reason) in rejected {
                recorder.filtered(row, R::Verdict::reject(|| reason));
            }
            probe
        } else {
            filters::next_probe(rejected)?
        };
        let serving = input.fleet.serving(id, row)?;
        let scope = serving.cooldown_scope(input.requester);
        let cooldown = serving.state.cooldowns.covering(scope, input.now)?;
        (!cooldown.is_probed()).then_some(RoutingDecision {
            strategy,
            is_assumed: !is_known,
            probe: Probe::Cooldown,
            ..RoutingDecision::direct(serving.id, id, row)
        })
    }
}

/// Returns the probe slot that a request to a backend needs.
pub(super) fn probe_of(backend: &Serving, input: &RouteInput<'_>) -> Probe {
    match backend.evidence_against(input.requester, input.now) {
        _ if !backend.state.breaker.is_closed() => Probe::Breaker,
        _ if backend.state.freeze(input.now) == BreakerState::HalfOpen => Probe::Frozen,
        BreakerState::HalfOpen => Probe::Evidence,
        BreakerState::Open | BreakerState::Closed => Probe::None,
    }
}
