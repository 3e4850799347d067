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

use penstock_api::Capabilities;
use penstock_core::fleet::Serving;
use penstock_core::routing::{RouteError, RoutingDecision};

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::conversion::WayBack;
use crate::proxy::disposition::ResponseTerms;
use crate::proxy::flow::Flow;
use crate::proxy::request::{RequestEdit, RequestView, RewriteKinds, ScannedRequest};
use crate::proxy::shift_state::TooLong;
use crate::upstream::failure::HeldResponse;
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

/// A kind of request that needs more than a plain one. Its steps are listed in the order in which a
/// request takes them; each has a default that changes nothing.
pub(crate) trait Rewrite: Sync {
    /// Returns whether the request is of this kind, and keeps in it what the other steps need.
    fn applies(&self, flow: &Flow<'_>, request: &mut ScannedRequest) -> bool;

    /// Returns whether the request is of this kind at one backend, although not at every one.
    fn applies_at(&self, _request: &ScannedRequest, _serving: &Serving) -> bool {
        false
    }

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

    /// Removes what the engine's model cannot use. Returns whether there was such a thing.
    fn remove_unsupported(&self, _edit: &mut RequestEdit<'_>, _what: Capabilities) -> bool {
        false
    }

    /// Learns that an engine has no room for the prompt. Returns whether another attempt may
    /// follow.
    fn too_long(
        &self,
        _edit: &mut RequestEdit<'_>,
        _decision: &RoutingDecision,
        _refused: &mut Option<TooLong>,
    ) -> bool {
        false
    }

    /// Takes the engine's refusal that explains best why the request is not served, and the
    /// decision that led to it.
    fn take_refusal(
        &self,
        _request: &mut ScannedRequest,
    ) -> Option<(HeldResponse, RoutingDecision)> {
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

    /// Makes the monitor of a response watch for what [`Self::learn_end`] reads.
    fn watch(&self, _monitor: &mut ResponseMonitor) {}

    /// Learns from a response that has been read to its end.
    fn learn_end(&self, _request: &ScannedRequest, _serving: &Serving, _monitor: &ResponseMonitor) {
    }
}

/// Makes one list of kinds the table of them and the tests of a request against each. The tests
/// name the kinds, so that a plain request makes no dynamic call.
macro_rules! rewrites {
    ($($kind:ident),+ $(,)?) => {
        /// Every kind, in the order in which they are looked at.
        const REWRITES: &[&dyn Rewrite] = &[$(&$kind),+];

        /// The kinds that a request is of, at whatever backend.
        pub(crate) fn kinds_of(flow: &Flow<'_>, request: &mut ScannedRequest) -> RewriteKinds {
            to_kinds([$($kind.applies(flow, request)),+])
        }

        /// The kinds that a request is of at one backend.
        pub(crate) fn kinds_at(request: &ScannedRequest, serving: &Serving) -> RewriteKinds {
            let here = to_kinds([$($kind.applies_at(request, serving)),+]);
            RewriteKinds(request.kinds.0 | here.0)
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

fn to_kinds<const COUNT: usize>(applies: [bool; COUNT]) -> RewriteKinds {
    const { assert!(COUNT <= u8::BITS as usize, "a set of kinds is a byte") };
    let bits = applies.iter().enumerate();
    RewriteKinds(bits.fold(0, |set, (position, applies)| set | u8::from(*applies) << position))
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
        let all = to_kinds([true; REWRITES.len()]);
        assert_eq!(rewrites(all).count(), REWRITES.len());
        let some = to_kinds([false, true, false, true]);
        assert_eq!((some.0, rewrites(some).count()), (0b1010, 2));
    }
}
