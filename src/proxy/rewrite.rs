//! What some requests need and most do not: changes before an attempt or after a backend refused
//! one, and responses that penstock makes with a backend's help. A plain request has none of them.

pub(crate) mod context_shift;
pub(crate) mod residency;
pub(crate) mod shift_plan;
pub(crate) mod token_count;
pub(crate) mod unsupported;
pub(crate) mod usage_filter;

use std::pin::Pin;

use penstock_core::routing::{RouteError, RoutingDecision};

use super::attempt::{Attempt, AttemptEnd};
use super::context::{RequestContext, RewriteKinds, ScannedRequest};
use super::flow::Flow;
use super::shift_state::TooLong;
use crate::upstream::failure::HeldResponse;
use context_shift::ContextShifts;
use residency::ResidencyChanges;
use token_count::TokenCounts;

/// A future that takes no room in requests that do not need it.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A kind of request that needs more than a plain one. Each method has a default that changes
/// nothing.
pub(crate) trait Rewrite: Sync {
    /// Returns whether the request is of this kind.
    fn applies(&self, request: &ScannedRequest) -> bool;

    /// Looks at the request before each decision.
    fn before(&self, _ctx: &RequestContext, _request: &mut ScannedRequest) {}

    /// Changes a request that no backend can take. Returns whether another decision may follow.
    fn unroutable(
        &self,
        _ctx: &mut RequestContext,
        _request: &mut ScannedRequest,
        _error: &RouteError,
    ) -> bool {
        false
    }

    /// Learns that an engine has no room for the prompt. Returns whether another attempt may
    /// follow.
    fn too_long(
        &self,
        _ctx: &mut RequestContext,
        _request: &mut ScannedRequest,
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

    /// Responds in place of the attempt's backend; `None` if that serves the request itself.
    fn respond<'a>(
        &self,
        _flow: &'a mut Flow<'_>,
        _request: &'a ScannedRequest,
        _attempt: &'a Attempt<'a>,
    ) -> Option<Boxed<'a, AttemptEnd>> {
        None
    }
}

/// Every kind, in the order in which they are looked at.
const REWRITES: [&dyn Rewrite; 3] = [&ContextShifts, &ResidencyChanges, &TokenCounts];

/// The kinds that `request` is of.
pub(crate) fn kinds_of(request: &ScannedRequest) -> RewriteKinds {
    let kinds = REWRITES.iter().enumerate();
    let set = kinds.filter(|(_, kind)| kind.applies(request));
    RewriteKinds(set.fold(0, |set, (position, _)| set | 1 << position))
}

/// The kinds of a request, in order.
pub(crate) fn rewrites(kinds: RewriteKinds) -> impl Iterator<Item = &'static dyn Rewrite> {
    let all = REWRITES.iter().enumerate();
    all.filter(move |(position, _)| kinds.0 & 1 << position != 0).map(|(_, kind)| *kind)
}
