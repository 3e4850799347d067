//! The state of a context shift: the known length of a request that may be shortened.

use http::header::HeaderName;
use penstock_core::fleet::{BackendId, BackendSet, ContextLimit, Serving};
use penstock_core::routing::RoutingDecision;
use penstock_dialect::{ContextRefusal, room_in};
use penstock_scan::RequestProfile;

use crate::upstream::failure::HeldResponse;
use crate::upstream::response_monitor::ResponseMonitor;

/// In a response: the number of dropped messages. In a request: `off` for a conversation that is to
/// be refused rather than shortened.
pub(crate) const CONTEXT_SHIFT: HeaderName = HeaderName::from_static("x-penstock-context-shift");

/// The scale of an engine whose count equals the estimate.
const UNIT: u32 = 1000;

/// An engine's refusal of a prompt for its length, held back.
pub(crate) struct TooLong {
    /// The engine's response, in the client's dialect.
    pub(crate) held: HeldResponse,
    pub(crate) refusal: ContextRefusal,
}

/// The rules for shortening one request, and what is known about its length.
#[derive(Default)]
pub(crate) struct ContextShift {
    pub(crate) drops_tools: bool,
    /// Tokens of an engine per thousand estimated ones, as an engine counted this request.
    pub(crate) scale: Option<u32>,
    /// The backend that refused it last, and the length of its context.
    pub(crate) refused_by: Option<(BackendId, u32)>,
    /// Tokens that an engine reserved for the response.
    pub(crate) output: u32,
    /// The number of times the request was shortened.
    pub(crate) shifts: u32,
    /// The number of messages that were dropped.
    pub(crate) dropped: u32,
    /// The number of refusals after that.
    pub(crate) refusals: u32,
    /// The backends that were passed over because of their context.
    pub(crate) too_small: BackendSet,
    /// The last refusal, and the decision it followed.
    pub(crate) last: Option<(HeldResponse, RoutingDecision)>,
    /// True if nothing can be dropped: an engine's response is then passed on.
    pub(crate) gave_up: bool,
}

impl ContextShift {
    /// Returns whether a refusal with this status is worth reading.
    pub(crate) fn reads(&self, status: u16) -> bool {
        matches!(status, 400 | 413 | 422) && !self.gave_up
    }

    /// The known limit of a backend's context, and the scale by which it counts this request. Its
    /// declared length is in the estimate's own tokens unless an engine has counted the request.
    pub(crate) fn limit_of(&self, serving: &Serving) -> Option<ContextLimit> {
        let learned = serving.latency.context.limit();
        let declared = serving.context_length.map(|length| length.0);
        let refused = self.refused_by.filter(|(id, _)| *id == serving.id).map(|(_, limit)| limit);
        let known = [refused, learned.map(|learned| learned.tokens), declared];
        // The least of them: a prompt within it fits, whichever is right.
        let tokens = known.into_iter().flatten().min()?;
        let counted = self.scale.or(learned.map(|learned| learned.scale));
        Some(ContextLimit { tokens, scale: counted.unwrap_or(UNIT) })
    }

    /// Converts `estimated` tokens to those of an engine, with room for its response.
    pub(crate) fn needed(&self, estimated: u32, scale: u32) -> u64 {
        (u64::from(estimated) * u64::from(scale)).div_ceil(UNIT.into()) + u64::from(self.output)
    }

    /// The number of estimated tokens that a prompt of `estimated` ones may keep, by the largest of
    /// the contexts that are too short for it; `None` if there is none. `to_fit`: the tokens that
    /// the router compares with declared lengths.
    pub(crate) fn target<'a>(
        &self,
        rows: impl Iterator<Item = &'a Serving>,
        tried: &BackendSet,
        estimated: u32,
        to_fit: u32,
    ) -> Option<u64> {
        let targets = rows.filter_map(|serving| {
            let limit = self.limit_of(serving)?;
            let has_failed = tried.contains(serving.id) && !self.too_small.contains(serving.id);
            if has_failed {
                return None;
            }
            // The router compares a declared length with the estimate itself.
            let is_declared = serving.context_length.is_some();
            let scale = if is_declared { limit.scale.max(UNIT) } else { limit.scale };
            let by_router = if is_declared { to_fit.into() } else { 0 };
            let needed = self.needed(estimated, scale).max(by_router);
            let output = self.output.max(to_fit.saturating_sub(estimated));
            let room = u64::from(room_in(limit.tokens, output)) * u64::from(UNIT);
            (needed > limit.tokens.into()).then(|| room / u64::from(scale.max(1)))
        });
        targets.max()
    }

    pub(crate) fn is_too_small(&self, serving: &Serving, estimated: u32) -> bool {
        // A declared length is the router's business until an engine has counted.
        let is_counted = self.scale.is_some() || serving.latency.context.limit().is_some();
        let limit = self.limit_of(serving).filter(|_| is_counted);
        limit.is_some_and(|limit| self.needed(estimated, limit.scale) > limit.tokens.into())
    }

    /// Learns from a whole response: if it ended for its length although its client set no limit,
    /// it has filled the context. Learns only if no length is declared or discovered, since an
    /// engine may have another limit.
    pub(crate) fn learn_end(
        &self,
        profile: &RequestProfile,
        serving: &Serving,
        monitor: &ResponseMonitor,
    ) {
        let Some(usage) = monitor.usage() else { return };
        let (Some(prompt), Some(output)) = (usage.prompt_tokens, usage.completion_tokens) else {
            return;
        };
        let tokens = prompt.saturating_add(output);
        let learned = &serving.latency.context;
        learned.disprove(tokens);
        let fills_context = monitor.is_ended_by_length()
            && profile.max_tokens.is_none()
            && serving.context_length.is_none();
        if fills_context {
            let scale = scale_of(prompt, profile.prompt_tokens.0);
            learned.learn(ContextLimit { tokens, scale });
        }
    }
}

/// The tokens that an engine counts for every thousand estimated ones.
pub(crate) fn scale_of(counted: u32, estimated: u32) -> u32 {
    let scale = (u64::from(counted) * u64::from(UNIT)).div_ceil(u64::from(estimated.max(1)));
    u32::try_from(scale).unwrap_or(u32::MAX)
}
