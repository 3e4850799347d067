//! The context shift: whether a request may lose its oldest messages, what is known about its
//! length in the tokens of each engine, and the length that fits. The proxy cuts the conversation
//! and sends it; a dry run shows the cut.

use http::header::HeaderName;
use penstock_api::Operation;
use penstock_api::units::TokenCount;
use penstock_config::ModelConfig;
use penstock_dialect::room_in;
use penstock_scan::{RequestProfile, Usage};

use crate::fleet::{BackendId, BackendSet, ContextLimit, Serving};

/// In a response: the number of dropped messages. In a request: `off` for a conversation that is to
/// be refused rather than shortened.
pub const CONTEXT_SHIFT: HeaderName = HeaderName::from_static("x-penstock-context-shift");

const UNIT: u32 = ContextLimit::UNIT;

/// Returns whether the client's headers forbid shortening its request.
pub fn forbids_shift<'a>(mut headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> bool {
    headers.any(|(name, value)| {
        name.eq_ignore_ascii_case(CONTEXT_SHIFT.as_str()) && value.eq_ignore_ascii_case(b"off")
    })
}

/// The terms that decide whether a request may be shortened, besides its headers.
pub struct ShiftTerms<'a> {
    pub operation: Operation,
    /// The configuration of its model.
    pub model: Option<&'a ModelConfig>,
    /// The setting of the client's key, before that of the model.
    pub of_client: Option<bool>,
    /// The context length that the request names.
    pub context: Option<TokenCount>,
}

impl ShiftTerms<'_> {
    /// The rules for shortening the request, if it may be shortened.
    pub fn shift(&self) -> Option<ContextShift> {
        let has_messages = self.operation.row().messages_member().is_some();
        let by_model = self.model.is_some_and(|model| model.context_shift);
        let is_on = self.of_client.unwrap_or(by_model);
        let drops_tools = self.model.is_some_and(|model| model.context_shift_drops_tools);
        let shift = ContextShift { drops_tools, context: self.context, ..Default::default() };
        (has_messages && is_on).then_some(shift)
    }
}

/// The rules for shortening one request, and what is known about its length.
#[derive(Debug, Default)]
pub struct ContextShift {
    /// True if its tools may be dropped, too.
    pub drops_tools: bool,
    /// The context length that the request names.
    pub context: Option<TokenCount>,
    /// Tokens of an engine per thousand estimated ones, as an engine counted this request.
    pub scale: Option<u32>,
    /// The backend that refused it last, and the length of its context.
    pub refused_by: Option<(BackendId, u32)>,
    /// Tokens that an engine reserved for the response.
    pub output: u32,
    /// The backends that were passed over because of their context.
    pub too_small: BackendSet,
}

impl ContextShift {
    /// The known limit of a backend's context, and the scale by which it counts this request. Its
    /// declared length is in the estimate's own tokens unless an engine has counted the request.
    pub fn limit_of(&self, serving: &Serving) -> Option<ContextLimit> {
        let learned = serving.latency.context.limit();
        let declared = serving.context_for(self.context).map(|length| length.0);
        let refused = self.refused_by.filter(|(id, _)| *id == serving.id).map(|(_, limit)| limit);
        let known = [refused, learned.map(|learned| learned.tokens), declared];
        // The least of them: a prompt within it fits, whichever is right.
        let tokens = known.into_iter().flatten().min()?;
        let counted = self.scale.or(learned.map(|learned| learned.scale));
        Some(ContextLimit { tokens, scale: counted.unwrap_or(UNIT) })
    }

    /// Converts `estimated` tokens to those of an engine, with room for its response.
    pub fn needed(&self, estimated: u32, scale: u32) -> u64 {
        (u64::from(estimated) * u64::from(scale)).div_ceil(UNIT.into()) + u64::from(self.output)
    }

    /// The number of estimated tokens that a prompt of `estimated` ones may keep, by the largest of
    /// the contexts that are too short for it; `None` if there is none. `to_fit`: the tokens that
    /// the router compares with declared lengths.
    pub fn target<'a>(
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

    /// Returns whether a prompt of `estimated` tokens is known not to fit a backend's context.
    pub fn is_too_small(&self, serving: &Serving, estimated: u32) -> bool {
        // A declared length is the router's business until an engine has counted.
        let is_counted = self.scale.is_some() || serving.latency.context.limit().is_some();
        let limit = self.limit_of(serving).filter(|_| is_counted);
        limit.is_some_and(|limit| self.needed(estimated, limit.scale) > limit.tokens.into())
    }

    /// Learns from the usage of a complete response, streamed or not. It may have filled the
    /// context if it ended for its length although its client set no limit. That counts only if no
    /// length is declared or discovered, since an engine may have another limit.
    pub fn learn_end(
        profile: &RequestProfile,
        serving: &Serving,
        usage: Usage,
        is_ended_by_length: bool,
    ) {
        let (Some(prompt), Some(output)) = (usage.prompt_tokens, usage.completion_tokens) else {
            return;
        };
        // Several responses share no context.
        if profile.choices > 1 {
            return;
        }
        let sum = prompt.saturating_add(output);
        let learned = &serving.latency.context;
        let may_fill_context =
            is_ended_by_length && profile.max_tokens.is_none() && serving.context_length.is_none();
        match may_fill_context {
            true => learned.fill(prompt, sum, scale_of(prompt, profile.prompt_tokens.0)),
            false => learned.hold(sum),
        }
    }
}

/// The tokens that an engine counts for every thousand estimated ones.
pub fn scale_of(counted: u32, estimated: u32) -> u32 {
    let scale = (u64::from(counted) * u64::from(UNIT)).div_ceil(u64::from(estimated.max(1)));
    u32::try_from(scale).unwrap_or(u32::MAX)
}
