//! What some requests need at a backend and most do not: another body, a response that penstock
//! makes with the backend's help, changes of the response. The set of a plain request is empty: it
//! makes no step of this list. Between two attempts a request may be shortened (`context_shift`),
//! or lose what an engine cannot use (`unsupported`).

pub(crate) mod context_shift;
pub(crate) mod conversions;
pub(crate) mod residency;
pub(crate) mod token_count;
pub(crate) mod unsupported;
pub(crate) mod usage_filter;

use std::iter::from_fn;
use std::pin::Pin;

use penstock_api::Operation;
use penstock_config::RequestUsage;
use penstock_core::fleet::Serving;
use penstock_core::routing::{ShiftTerms, forbids_shift};
use penstock_scan::RequestProfile;

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::conversion::WayBack;
use crate::proxy::flow::Flow;
use crate::proxy::request::{RewriteKinds, ScannedRequest};
use crate::proxy::shift_state::ShiftState;
use crate::upstream::relay::Transform;
use crate::upstream::response_head::ResponseHead;
use crate::upstream::splice::BodyParts;
use conversions::Conversions;
use residency::ResidencyChanges;
use token_count::TokenCounts;
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
    // These respond in place of backends that would need a conversion.
    ResidencyChanges,
    TokenCounts,
    Conversions,
    // A converted request has its usage in the response.
    UsageFilters,
];

impl RewriteKinds {
    fn with(self, kind: Kind, applies: bool) -> Self {
        const { assert!(REWRITES.len() <= u8::BITS as usize, "a set of kinds is a byte") };
        Self(self.0 | u8::from(applies) << kind as u8)
    }
}

/// The kinds that a request is of, at whatever backend.
// The conditions of all kinds stand here, so that the way of a plain request ends in this file.
pub(crate) fn kinds_of(flow: &Flow<'_>, profile: &RequestProfile) -> RewriteKinds {
    RewriteKinds::default()
        .with(Kind::ResidencyChanges, profile.residency_change.is_some())
        .with(Kind::TokenCounts, profile.operation == Operation::CountTokens)
        .with(Kind::UsageFilters, adds_usage(flow, profile))
}

/// The kinds that a request is of at one backend.
pub(crate) fn kinds_at(request: &ScannedRequest, serving: &Serving) -> RewriteKinds {
    // After an attempt at a backend that needed a conversion, there is one to drop.
    let is_converted =
        request.conversion.is_some() || serving.conversion(request.profile.operation).is_some();
    request.kinds.with(Kind::Conversions, is_converted)
}

/// The rules for shortening a request, if it may be shortened.
pub(crate) fn shift_of(flow: &Flow<'_>, profile: &RequestProfile) -> Option<Box<ShiftState>> {
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
        assert_eq!((some.0, rewrites(some).count()), (0b101, 2));
    }
}
