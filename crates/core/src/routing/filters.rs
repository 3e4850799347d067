//! The filters: they decide which backends may take a request, for live decisions, explanations,
//! captures and errors. The zones and tiers that policies allow come first, then the needs of the
//! request, then the backends tried before, then [`FILTERS`] in order.

mod budget;
mod circuit_breaker;
mod conditions;
mod context;
mod cooldown;
mod frozen;
mod health;
mod quality;
mod reason;
mod recent_faults;
mod requests_in_flight;
mod reserve;
mod slow_start;
mod work;

pub use reason::RejectReason;

pub(super) use conditions::{Candidacy, Conditions};
pub(super) use context::{context_of, is_too_short};
pub(super) use cooldown::{NextProbe, is_known, next_probe};

use penstock_api::Offer;

use super::{Restriction, RouteInput};
use crate::fleet::{Model, Serving};

/// The filters with a file, in the order in which they examine a backend. The first reason against
/// it is the one that explanations, captures and errors show.
// A cooldown comes after all reasons for which its backend must not be probed. The limits come
// after recent faults: a backend that is avoided must not count as merely full. A slow start comes
// later: a backend that skips a request and is full counts as full. What is measured is judged
// among what is left.
const FILTERS: &[FilterRow] = &[
    budget::ROW,
    health::ROW,
    circuit_breaker::ROW,
    cooldown::ROW,
    frozen::ROW,
    recent_faults::ROW,
    requests_in_flight::ROW,
    work::ROW,
    reserve::ROW,
    slow_start::ROW,
    quality::ROW,
];

#[derive(Debug, Clone, Copy)]
struct FilterRow {
    subjects: Subjects,
    /// Returns the reason why a backend may not take a request.
    reject: fn(&Filters<'_>, &Serving) -> Option<RejectReason>,
}

/// The backends that a filter examines. A backend outside both sets passes all filters by two
/// tests, no matter how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subjects {
    /// Backends in a state that is not the usual one: [`BackendState::is_unimpaired`] is false.
    ///
    /// [`BackendState::is_unimpaired`]: crate::fleet::BackendState::is_unimpaired
    Impaired,
    /// Backends near a limit, and backends that a configuration restricts:
    /// [`Serving::is_unrestricted`] is false.
    Restricted,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Filters<'a> {
    input: &'a RouteInput<'a>,
    model: &'a Model,
    conditions: Conditions,
    /// The places that the request may reach.
    restriction: Restriction,
    /// The operation, the needs and the places of the request, as one word.
    asked: Offer,
    is_first_attempt: bool,
}

impl<'a> Filters<'a> {
    pub(super) fn new(input: &'a RouteInput<'a>, model: &'a Model, conditions: Conditions) -> Self {
        let restriction = input.policy.restriction;
        Self {
            input,
            model,
            conditions,
            restriction,
            asked: Offer::asked(input.request.operation, input.request.needs)
                .within(restriction.zones, restriction.tier),
            is_first_attempt: input.tried.is_empty(),
        }
    }

    /// Returns the verdict on `candidate`: admitted, or the first reason against it. Lasting
    /// reasons come before passing ones.
    // Runs for every backend of every decision. The filters of the table run out of line: there
    // they take no registers from the rest.
    #[inline(always)]
    pub(super) fn check<V: Verdict>(&self, candidate: &Serving) -> V {
        let Self { input, conditions, .. } = self;
        let offer = match conditions.candidacy {
            Candidacy::Known => candidate.known_offer,
            Candidacy::Usable => candidate.usable_offer,
        };
        let is_short = || is_too_short(input, candidate, conditions.candidacy);
        if !offer.contains(self.asked) || candidate.window < input.tokens && is_short() {
            return V::reject(|| self.lasting_reason(candidate));
        }
        if !self.is_first_attempt && input.tried.contains(candidate.id) {
            return V::reject(|| RejectReason::Tried);
        }
        if candidate.state.is_unimpaired(input.now) && candidate.is_unrestricted() {
            return V::admit();
        }
        self.check_table(candidate)
    }

    /// Checks the filters of the table.
    #[cold]
    #[inline(never)]
    fn check_table<V: Verdict>(&self, candidate: &Serving) -> V {
        let is_impaired = !candidate.state.is_unimpaired(self.input.now);
        let is_restricted = !candidate.is_unrestricted();
        for row in FILTERS {
            let is_subject = match row.subjects {
                Subjects::Impaired => is_impaired,
                Subjects::Restricted => is_restricted,
            };
            if is_subject && let Some(reason) = (row.reject)(self, candidate) {
                return V::reject(|| reason);
            }
        }
        V::admit()
    }

    /// Returns the reason why a candidate does not meet the needs of the request. If it is only
    /// assumed to meet them, returns the passing reason that would reject it in any case.
    #[cold]
    #[inline(never)]
    fn lasting_reason(&self, candidate: &Serving) -> RejectReason {
        let request = self.input.request;
        if !self.restriction.zones.contains(candidate.zone) {
            return RejectReason::Zone(candidate.zone);
        }
        if candidate.tier < self.restriction.tier {
            return RejectReason::Tier(candidate.tier);
        }
        if !candidate.usable_operations.contains(request.operation) {
            return RejectReason::Operation;
        }
        let lacking = request.needs.without(candidate.usable);
        if !lacking.is_empty() {
            return RejectReason::Capabilities(lacking);
        }
        if is_too_short(self.input, candidate, Candidacy::Usable) {
            return RejectReason::Context(context_of(self.input, candidate));
        }
        let conditions = Conditions { candidacy: Candidacy::Usable, ..self.conditions };
        let usable = Self { conditions, ..*self };
        let verdict: Result<(), RejectReason> = usable.check(candidate);
        verdict.err().unwrap_or_else(|| {
            match is_too_short(self.input, candidate, self.conditions.candidacy) {
                true => RejectReason::Context(context_of(self.input, candidate)),
                false => RejectReason::Assumed,
            }
        })
    }
}

/// Returns the reason against each backend of a model under the most lenient conditions, for
/// decisions and errors when none is left.
pub(super) fn rejections<'a>(
    input: &'a RouteInput<'a>,
    model: &'a Model,
) -> impl Iterator<Item = (u32, Result<(), RejectReason>)> {
    let filters = Filters::new(input, model, Conditions::LENIENT);
    (0_u32..).zip(model.serving.iter().map(move |candidate| filters.check(candidate)))
}

/// The result of [`Filters::check`]. `bool` is for callers that ignore the reason: none is built.
pub trait Verdict {
    /// The backend may take the request.
    fn admit() -> Self;
    /// The backend may not take it.
    fn reject(reason: impl FnOnce() -> RejectReason) -> Self;
}

impl Verdict for bool {
    #[inline(always)]
    fn admit() -> Self {
        true
    }

    #[inline(always)]
    fn reject(_reason: impl FnOnce() -> RejectReason) -> Self {
        false
    }
}

impl Verdict for Result<(), RejectReason> {
    fn admit() -> Self {
        Ok(())
    }

    fn reject(reason: impl FnOnce() -> RejectReason) -> Self {
        Err(reason())
    }
}
