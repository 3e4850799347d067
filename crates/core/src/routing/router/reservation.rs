//! Takes the permit that goes with a decision.

use penstock_api::Work;
use penstock_scoring::Objectives;

use super::Router;
use crate::fleet::{InflightGuard, PermitRequest, RequestTokens};
use crate::routing::{RouteInput, RoutingDecision};

impl Router {
    /// Takes the permit of a decision about `input`, and counts the work of the request with it:
    /// the next decision sees this work before the engine reports it. `objectives` are those of the
    /// request since its arrival. Returns `None` if another request took the last permit.
    pub fn reserve(
        &self,
        decision: &RoutingDecision,
        input: &RouteInput<'_>,
        objectives: &Objectives,
    ) -> Option<InflightGuard> {
        let RouteInput { request, requester, now, .. } = *input;
        let serving = decision.serving(input.fleet)?;
        let mut permit = serving.try_reserve(&PermitRequest {
            probe: decision.probe,
            scope: serving.cooldown_scope(requester),
            client: requester.client,
            now,
            limits: decision.permit_limits(),
            owner: Some(requester.owner),
            is_sheddable: objectives.is_sheddable(),
        })?;
        let (streaming, limit) = (request.streaming, request.max_tokens);
        let expected = serving.latency.expect(streaming, limit);
        let uncached = decision.uncached_tokens(request);
        if request.operation.row().work != Work::Text {
            let wait = serving.expected_wait(uncached.into(), streaming, limit, now);
            permit.watch_progress(wait, now);
        }
        let prompt = request.prefill_tokens().0;
        permit.count_tokens(RequestTokens { prompt, uncached, output: expected.tokens.0 });
        permit.estimate_drain(expected, now);
        if self.predicts() {
            decision.predict(request, serving, &mut permit, objectives, now);
        }
        Some(permit)
    }
}
