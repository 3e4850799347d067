//! The state of a context shift: how often a request was shortened and refused.

use penstock_core::routing::{ContextShift, RoutingDecision};
use penstock_dialect::ContextRefusal;

use crate::upstream::failure::HeldResponse;

/// An engine's refusal of a prompt for its length, held back.
pub(crate) struct TooLong {
    /// The engine's response, in the client's dialect.
    pub(crate) held: HeldResponse,
    pub(crate) refusal: ContextRefusal,
}

/// The context shift of one request that may be shortened.
#[derive(Default)]
pub(crate) struct ShiftState {
    /// Its rules, and what is known about its length.
    pub(crate) known: ContextShift,
    /// The number of times the request was shortened.
    pub(crate) shifts: u32,
    /// The number of messages that were dropped.
    pub(crate) dropped: u32,
    /// The number of refusals after that.
    pub(crate) refusals: u32,
    /// The last refusal, and the decision it followed.
    pub(crate) last: Option<(HeldResponse, RoutingDecision)>,
    /// True if nothing can be dropped: an engine's response is then passed on.
    pub(crate) gave_up: bool,
}

impl ShiftState {
    /// Returns whether a refusal with this status is worth reading.
    pub(crate) fn reads(&self, status: u16) -> bool {
        matches!(status, 400 | 413 | 422) && !self.gave_up
    }
}
