//! What some requests need and most do not: changes of the request, at admission, for a backend, or
//! after a refusal; responses that penstock makes with a backend's help; changes of a response. The
//! set of a plain request is empty: it makes no step of this list.

pub(crate) mod context_shift;
pub(crate) mod conversions;
pub(crate) mod residency;
pub(crate) mod token_count;
pub(crate) mod unsupported;
pub(crate) mod usage_filter;

use std::iter::from_fn;
use std::pin::Pin;

use penstock_api::{Capabilities, Operation};
use penstock_config::RequestUsage;
use penstock_core::fleet::Serving;
use penstock_core::routing::{RouteError, ShiftTerms, forbids_shift};
use penstock_scan::RequestProfile;

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::conversion::WayBack;
use crate::proxy::flow::Flow;
use crate::proxy::request::{RequestEdit, RequestView, RewriteKinds, ScannedRequest};
use crate::proxy::shift_state::ShiftState;
use crate::upstream::disposition::ResponseTerms;
use crate::upstream::relay::Transform;
use crate::upstream::response_head::ResponseHead;
use crate::upstream::response_monitor::ResponseMonitor;
use crate::upstream::splice::BodyParts;
use context_shift::ContextShifts;
use conversions::Conversions;
use residency::ResidencyChanges;
use token_count::TokenCounts;
use unsupported::UnsupportedParts;
use usage_filter::UsageFilters;

/// A future that takes no room in requests that do not need it.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The change of a response on its way to the client.
pub(crate) enum ResponseChange {
    /// Changes its payload, as it passes.
    Payload(Box<dyn Transform>),
    /// Converts all of it before the client gets a byte.
    Whole(WayBack),
}

/// A kind of request that needs more than a plain one; [`kinds_of`] and [`kinds_at`] say which
/// requests are of it. Its steps are listed in the order in which a request takes them; each has a
/// default that changes nothing.
pub(crate) trait Rewrite: Sync {
    /// Looks at the request before each decision.
    fn before(&self, _edit: &mut RequestEdit<'_>) {}

    /// Changes a request that no backend can take. Returns whether another decision may follow.
    fn unroutable(&self, _edit: &mut RequestEdit<'_>, _error: &RouteError) -> bool {
        false
    }

    /// Prepares the request for the attempt's backend. Returns the end of an attempt in which that
    /// backend does not get the request.
    fn prepare<'a>(
        &self,
        _flow: &'a mut Flow<'_>,
        _request: &'a mut ScannedRequest,
        _attempt: &'a mut Attempt<'_>,
    ) -> Option<Boxed<'a, AttemptEnd>> {
        None
    }

    /// The body for the attempt's backend, in place of the client's. `name`: the model's name in
    /// its written form, if the client's is to be replaced.
    fn body<'a>(
        &self,
        _request: &'a ScannedRequest,
        _name: Option<&'a str>,
    ) -> Option<BodyParts<'a>> {
        None
    }

    /// Adds what an engine's error of this `status` may lead to.
    fn on_error(&self, _view: RequestView<'_>, _status: u16, _terms: &mut ResponseTerms<'_>) {}

    /// Changes the head of a response, and returns the change of its payload.
    ///
    /// # Errors
    /// When the head cannot be written.
    fn response(
        &self,
        _flow: &Flow<'_>,
        _request: &mut ScannedRequest,
        _head: &mut ResponseHead,
    ) -> pingora::Result<Option<ResponseChange>> {
        Ok(None)
    }

    /// Makes the monitor of a response watch for what [`Self::learn_end`] reads.
    fn watch(&self, _monitor: &mut ResponseMonitor) {}

    /// Learns from a response that has been read to its end.
    fn learn_end(&self, _request: &ScannedRequest, _serving: &Serving, _monitor: &ResponseMonitor) {
    }
}

/// Makes one list of kinds the table of them and their positions in a set.
macro_rules! rewrites {
    ($($kind:ident),+ $(,)?) => {
        /// Every kind, in the order in which they are looked at.
        const REWRITES: &[&dyn Rewrite] = &[$(&$kind),+];

        /// A kind, by its position in the table.
        #[derive(Debug, Clone, Copy)]
        enum Kind {
            $($kind),+
        }
    };
}

rewrites![
    ContextShifts,
    // These respond in place of backends that would need a conversion.
    ResidencyChanges,
    TokenCounts,
    Conversions,
    // A converted request has its usage in the response.
    UsageFilters,
    UnsupportedParts,
];

impl RewriteKinds {
    fn with(self, kind: Kind, applies: bool) -> Self {
        const { assert!(REWRITES.len() <= u8::BITS as usize, "a set of kinds is a byte") };
        Self(self.0 | u8::from(applies) << kind as u8)
    }
}

/// The kinds that a request is of, at whatever backend; keeps in the request what their steps need.
// The conditions of all kinds stand here, so that the way of a plain request ends in this file.
pub(crate) fn kinds_of(flow: &Flow<'_>, request: &mut ScannedRequest) -> RewriteKinds {
    // A call of an ensemble is sent as it is, or fails.
    if flow.client.takes_response() {
        request.shift = shift_of(flow, &request.profile);
    }
    let profile = &request.profile;
    RewriteKinds::default()
        .with(Kind::ContextShifts, request.shift.is_some())
        .with(Kind::ResidencyChanges, profile.residency_change.is_some())
        .with(Kind::TokenCounts, profile.operation == Operation::CountTokens)
        .with(Kind::UsageFilters, adds_usage(flow, profile))
        .with(Kind::UnsupportedParts, !removable(request.view(flow.ctx)).is_empty())
}

/// The kinds that a request is of at one backend.
pub(crate) fn kinds_at(request: &ScannedRequest, serving: &Serving) -> RewriteKinds {
    // After an attempt at a backend that needed a conversion, there is one to drop.
    let is_converted =
        request.conversion.is_some() || serving.conversion(request.profile.operation).is_some();
    request.kinds.with(Kind::Conversions, is_converted)
}

/// The rules for shortening a request, if it may be shortened.
fn shift_of(flow: &Flow<'_>, profile: &RequestProfile) -> Option<Box<ShiftState>> {
    let (ctx, headers) = (&*flow.ctx, &flow.client.head().headers);
    let config = &ctx.generation.config;
    let terms = ShiftTerms {
        operation: profile.operation,
        model: ctx.record.routing.model.as_deref().and_then(|name| config.models.get(name)),
        of_client: ctx.identity.as_ref().and_then(|client| client.context_shift),
        context: profile.context_length,
    };
    let known = terms.shift()?;
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let may_shift = !forbids_shift(headers);
    may_shift.then(|| Box::new(ShiftState { known, ..ShiftState::default() }))
}

/// Returns whether a stream is to end with usage, although its client did not request that.
fn adds_usage(flow: &Flow<'_>, profile: &RequestProfile) -> bool {
    let ctx = &*flow.ctx;
    let ledger = &ctx.generation.config.ledger;
    // A limit of tokens should count those that the engine counts.
    let may_add = ledger.request_usage != RequestUsage::Never;
    profile.streaming
        && profile.usage_edit.is_some()
        && matches!(profile.operation, Operation::Chat | Operation::Completions)
        && (ledger.requests_usage()
            || (may_add && ctx.rate.as_ref().is_some_and(|rate| rate.counts_tokens())))
        && flow.client.takes_response()
}

/// The capabilities that may be removed from the request.
fn removable(RequestView { ctx, request }: RequestView<'_>) -> Capabilities {
    let operation = request.profile.operation;
    if operation != Operation::OllamaGenerate && operation.row().messages_member().is_none() {
        return Capabilities::NONE;
    }
    let allowed = ctx.generation.config.routing.retry_without;
    let needs = request.profile.needs;
    let kept = needs.without(allowed);
    needs.without(kept)
}

/// The kinds of a request, in order.
#[inline]
pub(crate) fn rewrites(kinds: RewriteKinds) -> impl Iterator<Item = &'static dyn Rewrite> {
    let mut left = kinds.0;
    from_fn(move || {
        // An empty set has 8 trailing zeros: a position past the table.
        let position = usize::try_from(left.trailing_zeros()).ok()?;
        // Without its lowest bit.
        left &= left.wrapping_sub(1);
        REWRITES.get(position).copied()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_of_kinds_leads_to_as_many_rewrites() {
        assert!(rewrites(RewriteKinds::default()).next().is_none(), "a plain request has none");
        let all = RewriteKinds((1 << REWRITES.len()) - 1);
        assert_eq!(rewrites(all).count(), REWRITES.len());
        let some = RewriteKinds::default()
            .with(Kind::ResidencyChanges, true)
            .with(Kind::TokenCounts, false)
            .with(Kind::Conversions, true);
        assert_eq!((some.0, rewrites(some).count()), (0b1010, 2));
    }
}
