//! Predictions for the request of a decision.

use penstock_api::Work;
use penstock_api::units::Timestamp;
use penstock_predict::{Estimate, RequestShape};
use penstock_scan::RequestProfile;
use penstock_scoring::{Objectives, PredictedLatency, PromptSize, WARM};

use super::{RouteInput, RoutingDecision};
use crate::fleet::{InflightGuard, Model, Serving};
use crate::prefix::Chain;

/// Describes the request to an engine that has `cached` tokens of its prompt cached.
pub(super) fn shape(request: &RequestProfile, cached: u32) -> RequestShape {
    let generates = request.operation.row().work == Work::Generation;
    let limit = request.max_tokens.map_or(f64::INFINITY, |most| f64::from(most.0));
    RequestShape {
        prompt_tokens: f64::from(request.prefill_tokens().0.max(1)),
        cached_tokens: f64::from(cached),
        // Without generation the response ends with the prefill.
        max_output_tokens: if generates { limit.max(1.0) } else { 1.0 },
        is_whole: !request.streaming,
    }
}

/// A request for predictions on many backends, which differ in what they have cached.
#[derive(Debug, Clone, Copy)]
pub(super) struct PredictedRequest {
    uncached: RequestShape,
    size: Option<PromptSize>,
    now: Timestamp,
}

impl PredictedRequest {
    /// The request of a decision.
    pub(super) fn of(input: &RouteInput<'_>) -> Self {
        Self {
            uncached: shape(input.request, 0),
            size: input.prompt.map(|chain| chain.size(input.request.prefill_tokens().0)),
            now: input.now,
        }
    }

    /// Describes the request to an engine that has the first `matched` blocks cached.
    #[inline(always)]
    fn with_cached(&self, matched: u32) -> RequestShape {
        let cached = self.size.filter(|_| matched > 0).map_or(0, |size| size.tokens_in(matched));
        RequestShape { cached_tokens: f64::from(cached), ..self.uncached }
    }

    /// Predicts the request on a backend that has the first `matched` blocks cached.
    #[inline(always)]
    pub(super) fn on(&self, serving: &Serving, matched: u32) -> PredictedLatency {
        let sheddable = serving.model_state.sheddable() as f32;
        PredictedLatency {
            sheddable,
            ..serving.estimate(&self.with_cached(matched), self.now).into()
        }
    }
}

/// Returns the number of blocks of the prompt that a backend is believed to have cached.
pub(super) fn matched_blocks(input: &RouteInput<'_>, model: &Model, serving: &Serving) -> u32 {
    let chain = input.prompt.filter(|chain| chain.blocks() > 0);
    chain.map_or(0, |chain| model.prefixes.matched(serving.slot, chain.hashes()))
}

/// Returns whether a backend has most of the prompt cached: elsewhere the request would be much
/// more work, and here it adds little to the backlog and to the KV cache.
pub(super) fn has_prompt(input: &RouteInput<'_>, model: &Model, serving: &Serving) -> bool {
    let blocks = input.prompt.map_or(0, Chain::blocks);
    let matched = matched_blocks(input, model, serving);
    blocks > 0 && f64::from(matched) >= WARM * f64::from(blocks)
}

/// Describes the request to a backend, with the tokens that it is believed to have cached.
pub(super) fn shape_on(input: &RouteInput<'_>, model: &Model, serving: &Serving) -> RequestShape {
    let matched = matched_blocks(input, model, serving);
    PredictedRequest::of(input).with_cached(matched)
}

impl RoutingDecision {
    /// Returns the tokens of the prompt that the picked backend is believed to have cached.
    pub fn cached_tokens(&self) -> u32 {
        self.scores.map_or(0, |scores| scores.cached_tokens)
    }

    /// Returns the tokens of the prompt that the picked backend is not believed to have cached.
    pub fn uncached_tokens(&self, request: &RequestProfile) -> u32 {
        let prompt = request.prefill_tokens().0;
        prompt.saturating_sub(self.cached_tokens())
    }

    /// Describes the request to the picked backend.
    pub(super) fn shape(&self, request: &RequestProfile) -> RequestShape {
        shape(request, self.cached_tokens())
    }

    /// Returns the estimate for the request on the picked backend.
    pub fn estimate(
        &self,
        request: &RequestProfile,
        serving: &Serving,
        now: Timestamp,
    ) -> Estimate {
        serving.estimate(&self.shape(request), now)
    }

    /// Predicts the request on the picked backend, and counts it there while the permit is held.
    pub fn predict(
        &self,
        request: &RequestProfile,
        serving: &Serving,
        permit: &mut InflightGuard,
        objectives: &Objectives,
        now: Timestamp,
    ) {
        let shape = self.shape(request);
        let estimate = serving.estimate(&shape, now);
        let tpot_objective_us = objectives.tpot_ms.map(|ms| ms * 1000.0);
        let predictor = serving.model_state.predictor();
        let ticket = predictor.send(shape, estimate.prediction, tpot_objective_us, now.0 as f64);
        permit.predict(ticket, objectives.is_sheddable());
    }
}
