//! Policies of requests: those that a request is under, also on its fallbacks, and the backends
//! that they prefer.

use super::Router;
use crate::routing::policies::{
    ModelAsked, PolicyClient, PolicyError, PolicyScope, PolicyWishes, RequestedNames,
};
use crate::routing::random::RandomSource;
use crate::routing::recorder::Recorder;
use crate::routing::scratch::RouteContext;
use crate::routing::{RouteInput, RoutingDecision};

impl Router {
    /// Returns the model of an entry of a fallback chain, and the request as it may go there: its
    /// own policies hold, and those of that model.
    pub fn fall_back<'a>(
        &'a self,
        input: &RouteInput<'a>,
        entry: &'a str,
    ) -> (&'a str, RouteInput<'a>) {
        let RouteInput { fleet, split, .. } = *input;
        let policy = self.also_under(&input.policy, &ModelAsked { name: entry, fleet, split });
        (self.names.resolve(entry, fleet, split), RouteInput { policy, ..*input })
    }

    /// Returns the policies that a request of `scope` is under for another model.
    pub fn also_under(&self, scope: &PolicyScope, model: &ModelAsked<'_>) -> PolicyScope {
        let ModelAsked { name: requested, fleet, split } = *model;
        let names = RequestedNames { requested, names: &self.names, fleet, split };
        self.policies.also_under(scope, names)
    }

    /// Returns the policies that a request for a model is under.
    ///
    /// # Errors
    /// [`PolicyError`] if it wishes what its client may not have.
    pub fn policy_of(
        &self,
        model: &ModelAsked<'_>,
        client: &PolicyClient<'_>,
        wishes: &PolicyWishes<'_>,
    ) -> Result<PolicyScope, PolicyError> {
        let ModelAsked { name: requested, fleet, split } = *model;
        let names = RequestedNames { requested, names: &self.names, fleet, split };
        self.policies.admit(names, client, wishes)
    }

    /// Picks a backend that the request's policy prefers, else one that it admits.
    #[cold]
    #[inline(never)]
    pub(super) fn pick_preferred(
        &self,
        name: &str,
        input: &RouteInput<'_>,
        context: &mut RouteContext<'_, impl RandomSource, impl Recorder>,
    ) -> Option<RoutingDecision> {
        let preferred = input.policy.restriction.preferred_tier;
        for restriction in input.policy.restriction.narrowings() {
            let policy = PolicyScope { restriction, ..input.policy };
            let narrowed = RouteInput { policy, ..*input };
            if let Some(decision) = self.pick_among(name, &narrowed, context) {
                let serving = decision.serving(input.fleet);
                let is_below_tier = serving.is_some_and(|serving| serving.tier < preferred);
                let quality = serving.and_then(|serving| serving.quality.as_ref());
                let is_quality_probe = restriction.quality.zip(quality).is_some_and(
                    // Otherwise the filter has kept the backend because no other one is left.
                    |(rule, quality)| quality.violates(rule, input.now),
                );
                return Some(RoutingDecision { is_below_tier, is_quality_probe, ..decision });
            }
        }
        None
    }
}
