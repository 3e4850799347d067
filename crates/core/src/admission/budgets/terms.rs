//! The terms of a request under its budgets: what it may cost, and what it gets where a budget has
//! no room for it.

use std::sync::Arc;

use penstock_api::{Operation, Work};
use penstock_scan::RequestProfile;

use super::{AtLimit, Money};
use crate::routing::{ModelAsked, PolicyScope, RequestSize, Router};

/// The reservation of a request whose cost is not known: the smallest one, so that the request
/// passes until a budget is spent.
pub const UNKNOWN_COST: Money = Money(1);

/// The policy and the model that a request has.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmittedTerms {
    pub policy: PolicyScope,
    /// The model that a budget put in place of the requested one.
    pub instead: Option<Arc<str>>,
}

impl AtLimit {
    /// Returns the terms of a request for which the budget has no room; `None` if it is refused.
    pub fn terms(
        &self,
        router: &Router,
        asked: &ModelAsked<'_>,
        terms: &AdmittedTerms,
    ) -> Option<AdmittedTerms> {
        let AdmittedTerms { mut policy, ref instead } = *terms;
        match self {
            Self::Zones(zones) => {
                let set = asked.fleet.zones.set(zones.iter().map(String::as_str));
                policy.restriction.zones = policy.restriction.zones.and(set);
                policy.restriction.is_free_only = true;
                let is_new = policy.restriction != terms.policy.restriction;
                let may_go = is_new && router.has_free_backend(asked, &policy);
                may_go.then(|| AdmittedTerms { policy, instead: instead.clone() })
            }
            Self::Model(model) if instead.is_none() => {
                let policy = router.also_under(&policy, &ModelAsked { name: model, ..*asked });
                Some(AdmittedTerms { policy, instead: Some(model.as_str().into()) })
            }
            // A second model could be that of the first budget again.
            Self::Model(_) | Self::Refuse => None,
        }
    }
}

/// Returns whether requests of an operation cost money: those that run no model do not.
pub fn is_counted(operation: Operation) -> bool {
    operation.row().work != Work::Text || operation == Operation::Passthrough
}

/// Returns the most that a request for a model may cost, on a backend of the model or of a
/// fallback.
pub fn highest_cost(
    router: &Router,
    asked: &ModelAsked<'_>,
    policy: &PolicyScope,
    profile: &RequestProfile,
) -> Money {
    if !is_counted(profile.operation) {
        return Money::ZERO;
    }
    let output = match (profile.operation.row().work, profile.output_limit) {
        (Work::Inference | Work::Text, _) => Some(0),
        (Work::Generation, limit) => limit.map(|most| u64::from(most.0)),
    };
    let size = RequestSize {
        input: profile.prefill_tokens().0.into(),
        output,
        responses: profile.choices.into(),
        context: profile.context_length,
    };
    let cost = Money::of(router.highest_cost(asked, policy, &size));
    // What a request that is not read asks for is not known.
    let is_unread = profile.operation == Operation::Passthrough;
    match is_unread && cost < UNKNOWN_COST && !router.is_free(asked, policy) {
        true => UNKNOWN_COST,
        false => cost,
    }
}
