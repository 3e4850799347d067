//! What is known about the length of a request that may be shortened (context shift).

use http::header::HeaderName;

use crate::dialect::ContextRefusal;
use crate::fleet::{BackendId, BackendSet, ContextLimit, Serving};
use crate::routing::RoutingDecision;
use crate::upstream::failure::HeldResponse;

/// In a response: how many messages were dropped. In a request: `off` for a conversation that is to be
/// refused rather than shortened.
pub(crate) const CONTEXT_SHIFT: HeaderName = HeaderName::from_static("x-penstock-context-shift");

/// The scale of an engine that counts as many tokens as are estimated.
pub(super) const UNIT: u32 = 1000;

/// An engine's refusal of a prompt for its length, held back.
pub(crate) struct TooLong {
    /// What the engine sent, in the client's dialect.
    pub(crate) held: HeldResponse,
    pub(crate) refusal: ContextRefusal,
}

/// How one request may be shortened, and what is known about its length.
#[derive(Default)]
pub(crate) struct ContextShift {
    pub(super) drops_tools: bool,
    /// Tokens of an engine per thousand estimated ones, as an engine counted this request.
    pub(super) scale: Option<u32>,
    /// Whose context that refused it last, and its length.
    pub(super) refused_by: Option<(BackendId, u32)>,
    /// Tokens that an engine reserved for the response.
    pub(super) output: u32,
    /// How often it was shortened.
    pub(super) shifts: u32,
    /// The messages that were dropped.
    pub(super) dropped: u32,
    /// How often it was refused after that.
    pub(super) refusals: u32,
    /// The backends that were passed over because of their context.
    pub(super) too_small: BackendSet,
    /// The last refusal, and the decision it followed.
    pub(super) last: Option<(HeldResponse, RoutingDecision)>,
    /// Nothing can be dropped: what an engine sends is passed on.
    pub(super) gave_up: bool,
}

impl ContextShift {
    /// Whether a refusal with this status is worth reading.
    pub(crate) fn reads(&self, status: u16) -> bool {
        matches!(status, 400 | 413 | 422) && !self.gave_up
    }

    /// What is known of a backend's context, and of how it counts this request. Its declared length is in
    /// the estimate's own tokens unless an engine has counted the request.
    pub(super) fn limit_of(&self, serving: &Serving) -> Option<ContextLimit> {
        let learned = serving.latency.context.limit();
        let declared = serving.context_length.map(|length| length.0);
        let refused = self.refused_by.filter(|(id, _)| *id == serving.id).map(|(_, limit)| limit);
        let known = [refused, learned.map(|learned| learned.tokens), declared];
        let tokens = known.into_iter().flatten().min()?;
        let counted = self.scale.or(learned.map(|learned| learned.scale));
        Some(ContextLimit { tokens, scale: counted.unwrap_or(UNIT) })
    }

    /// The tokens that `estimated` ones are to an engine, with room for its response.
    pub(super) fn needed(&self, estimated: u32, scale: u32) -> u64 {
        (u64::from(estimated) * u64::from(scale)).div_ceil(UNIT.into()) + u64::from(self.output)
    }

    pub(super) fn is_too_small(&self, serving: &Serving, estimated: u32) -> bool {
        // A declared length is the router's business until an engine has counted.
        let is_counted = self.scale.is_some() || serving.latency.context.limit().is_some();
        let limit = self.limit_of(serving).filter(|_| is_counted);
        limit.is_some_and(|limit| self.needed(estimated, limit.scale) > limit.tokens.into())
    }
}
