//! The contexts of the backends that may hold a request, if one of them finds it too long.

use penstock_api::units::TokenCount;
use penstock_core::fleet::{BackendSet, Model, Serving};
use penstock_dialect::ContextRefusal;
use penstock_scan::RequestProfile;

/// The context of a backend, and the longest one of the others that may serve the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contexts {
    /// `None` if unknown.
    pub(crate) own: Option<TokenCount>,
    pub(crate) longest_elsewhere: TokenCount,
}

impl Contexts {
    /// Returns the contexts for a request that was sent to `serving`; `None` if no other backend is
    /// left, or none of a known context.
    pub(crate) fn of(
        model: &Model,
        serving: &Serving,
        request: &RequestProfile,
        tried: &BackendSet,
    ) -> Option<Self> {
        let longest_elsewhere = model.longest_context_elsewhere(request, serving, tried)?;
        Some(Self { own: serving.context_for(request.context_length), longest_elsewhere })
    }

    /// Returns the backend's context, by the words of its engine, if a longer one elsewhere may
    /// hold the request.
    pub(super) fn exceeded(self, refusal: &ContextRefusal) -> Option<TokenCount> {
        let own = refusal.limit.map(TokenCount).or(self.own)?;
        let longest = self.longest_elsewhere;
        let prompt = refusal.prompt.unwrap_or_default();
        let needed = TokenCount(prompt.saturating_add(refusal.output));
        (longest > own && longest >= needed).then_some(own)
    }
}
