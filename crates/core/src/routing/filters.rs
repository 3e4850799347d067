//! Which backends may take a request: one function decides for live decisions, explanations, captures
//! and errors.

mod reason;
mod work;

pub use reason::RejectReason;

use super::RouteInput;
use crate::fleet::{BreakerState, Health, Model, ReachedLimit, Serving};
use penstock_api::Offer;
use penstock_api::mix::mix;
use penstock_api::units::Timestamp;

/// The result of [`Filters::check`]. `bool` serves callers that ignore the reason: no reason is built
/// for them.
pub trait Verdict {
    /// The backend may take the request.
    fn admit() -> Self;
    /// It may not.
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

/// Whose capabilities count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidacy {
    /// Only backends known to have what the request needs.
    Known,
    /// Also those assumed to.
    Usable,
}

/// The conditions of one pass over a model's backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conditions {
    /// Whose capabilities count.
    pub(super) candidacy: Candidacy,
    /// Whether backends count whose checks fail, because too few others are left.
    pub(super) in_panic: bool,
    /// Whether backends in slow start get their whole share, because there are no others.
    pub(super) ignores_slow_start: bool,
    /// Whether backends count that fail more than others or are frozen, because there are no others.
    pub(super) ignores_faults: bool,
    /// Whether the limits of models count for nothing, because all of them are reached.
    pub(super) spills: bool,
}

impl Conditions {
    /// The ones that are tried first.
    pub(super) const STRICT: Self = Self {
        candidacy: Candidacy::Known,
        in_panic: false,
        ignores_slow_start: false,
        ignores_faults: false,
        spills: false,
    };

    /// The least strict ones of a fleet that is not in panic.
    pub(super) const LENIENT: Self = Self {
        candidacy: Candidacy::Usable,
        in_panic: false,
        ignores_slow_start: true,
        ignores_faults: true,
        spills: false,
    };
}

/// The filters of one pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filters<'a> {
    input: &'a RouteInput<'a>,
    model: &'a Model,
    conditions: Conditions,
    /// The operation and what the request needs, as one word.
    asked: Offer,
    is_first_attempt: bool,
}

impl<'a> Filters<'a> {
    pub(super) fn new(input: &'a RouteInput<'a>, model: &'a Model, conditions: Conditions) -> Self {
        Self {
            input,
            model,
            conditions,
            asked: Offer::asked(input.request.operation, input.request.needs),
            is_first_attempt: input.tried.is_empty(),
        }
    }

    /// Whether `candidate` may take the request now; else the first reason why not, lasting ones
    /// before passing ones.
    // Runs for every backend of every decision. What is rarely true is checked out of line, so that it
    // takes no registers from the rest, and costs one test where it is not.
    #[inline(always)]
    pub(super) fn check<V: Verdict>(&self, candidate: &Serving) -> V {
        let Self { input, conditions, .. } = self;
        let offer = match conditions.candidacy {
            Candidacy::Known => candidate.known_offer,
            Candidacy::Usable => candidate.usable_offer,
        };
        if !offer.contains(self.asked) || candidate.window < input.tokens {
            return V::reject(|| self.lasting_reason(candidate));
        }
        if !self.is_first_attempt && input.tried.contains(candidate.id) {
            return V::reject(|| RejectReason::Tried);
        }
        let state = &*candidate.state;
        if !state.is_unimpaired(input.now) {
            return self.check_impaired(candidate);
        }
        if candidate.may_be_full()
            && let Some(reason) = self.limit(candidate)
        {
            return V::reject(|| reason);
        }
        V::admit()
    }

    /// The rest of [`Filters::check`] for a backend that something may keep the request from.
    #[cold]
    #[inline(never)]
    fn check_impaired<V: Verdict>(&self, candidate: &Serving) -> V {
        let (input, state) = (self.input, &*candidate.state);
        if state.is_draining() {
            return V::reject(|| RejectReason::Health(Health::Draining));
        }
        let health = state.health.status();
        if health != Health::Healthy && self.is_excluded(health) {
            return V::reject(|| RejectReason::Health(health));
        }
        if !state.breaker.is_closed()
            && let Some(reason) = self.breaker(candidate)
        {
            return V::reject(|| reason);
        }
        if state.cooldowns.is_active(input.now)
            && let Some(reason) = self.cooldown(candidate)
        {
            return V::reject(|| reason);
        }
        if state.is_frozen()
            && !self.conditions.ignores_faults
            && state.freeze(input.now) == BreakerState::Open
        {
            return V::reject(|| RejectReason::Frozen);
        }
        // Before the limits: one that is avoided is no backend that merely has no room.
        if state.has_recent_faults(input.now) && self.avoids(candidate) {
            return V::reject(|| RejectReason::RecentFaults);
        }
        if candidate.may_be_full()
            && let Some(reason) = self.limit(candidate)
        {
            return V::reject(|| reason);
        }
        if state.is_in_slow_start() && self.skips(candidate) {
            return V::reject(|| RejectReason::SlowStart {
                percent: percent(state.share(input.now)),
            });
        }
        V::admit()
    }

    /// Whether a backend that is not healthy is excluded.
    fn is_excluded(&self, health: Health) -> bool {
        !self.conditions.in_panic || health != Health::Unhealthy
    }

    /// The cooldown that covers the request on a backend.
    fn cooldown(&self, candidate: &Serving) -> Option<RejectReason> {
        let input = self.input;
        let scope = candidate.cooldown_scope(input.requester);
        let cooldown = candidate.state.cooldowns.covering(scope, input.now)?;
        Some(RejectReason::Cooldown {
            until: cooldown.ends_at(),
            status: cooldown.status(),
            is_known: is_known(input, candidate),
        })
    }

    /// The limit of requests in flight that a backend, or the model on it, has reached.
    #[cold]
    #[inline(never)]
    fn limit(&self, candidate: &Serving) -> Option<RejectReason> {
        match candidate.limit_reached() {
            Some(ReachedLimit::Backend(limit)) => Some(RejectReason::Full { limit }),
            Some(ReachedLimit::Model(limit)) if !self.conditions.spills => {
                Some(RejectReason::ModelFull { limit })
            }
            Some(ReachedLimit::Model(_)) | None => self.work_limit(candidate).or_else(|| {
                let is_kept = candidate.has_only_kept_room(self.conditions.spills);
                (is_kept && self.is_held_back(candidate)).then_some(RejectReason::Kept)
            }),
        }
    }

    /// Whether the request may not take the room that is kept. One that is more important than usual may.
    fn is_held_back(&self, candidate: &Serving) -> bool {
        let input = self.input;
        input.objectives.priority <= 0
            && candidate.keeps_room_from(input.requester.owner, input.now)
    }

    /// Whether other backends are preferred because of recent faults.
    fn avoids(&self, candidate: &Serving) -> bool {
        let Self { input, conditions, .. } = self;
        !conditions.ignores_faults
            && candidate.evidence_against(input.requester, input.now) == BreakerState::Open
    }

    /// Why a backend whose breaker is not closed does not get the request. Prompts that fail everywhere
    /// do not probe while other backends are left: they would show nothing.
    #[cold]
    fn breaker(&self, candidate: &Serving) -> Option<RejectReason> {
        let Self { input, conditions, .. } = self;
        match candidate.state.breaker.state(input.now) {
            BreakerState::Open => Some(RejectReason::BreakerOpen),
            BreakerState::HalfOpen if !conditions.ignores_faults => {
                let client = input.requester.client;
                let has_bad = candidate.evidence.has_bad_prompts(client, input.now);
                has_bad.then_some(RejectReason::RecentFaults)
            }
            BreakerState::HalfOpen | BreakerState::Closed => None,
        }
    }

    /// Whether a backend in slow start skips this decision. Drawn from the time of the decision, so that a
    /// second pass and an explanation come to the same.
    fn skips(&self, candidate: &Serving) -> bool {
        let now = self.input.now;
        let share = candidate.state.share(now);
        // The upper bits make a number in 0..1.
        let mixed = mix(now.0 ^ (u64::from(candidate.id.0) << 48));
        let draw = u16::try_from(mixed >> 48).map_or(0.0, f32::from) / 65536.0;
        !self.conditions.ignores_slow_start && share < 1.0 && draw >= share
    }

    /// Why a candidate lacks what the request needs; where it is only assumed to have it, the passing
    /// reason that it would be rejected for in any case.
    #[cold]
    #[inline(never)]
    fn lasting_reason(&self, candidate: &Serving) -> RejectReason {
        let request = self.input.request;
        if !candidate.usable_operations.contains(request.operation) {
            return RejectReason::Operation;
        }
        let lacking = request.needs.without(candidate.usable);
        if !lacking.is_empty() {
            return RejectReason::Capabilities(lacking);
        }
        if candidate.window < self.input.tokens {
            return RejectReason::Context(candidate.window);
        }
        let conditions = Conditions { candidacy: Candidacy::Usable, ..self.conditions };
        let usable = Self { conditions, ..*self };
        let verdict: Result<(), RejectReason> = usable.check(candidate);
        verdict.err().unwrap_or(RejectReason::Assumed)
    }
}

/// Whether everything the request needs is known to be there, nothing assumed.
pub(super) fn is_known(input: &RouteInput<'_>, candidate: &Serving) -> bool {
    candidate.known.contains(input.request.needs)
}

/// The next backend to probe while all are in cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextProbe {
    pub(super) row: u32,
    /// Whether it is known to have what the request needs.
    pub(super) is_known: bool,
}

/// The backend whose cooldown ends first, of equals the first; one that is only assumed to have what the
/// request needs after all that are known to. None where one is merely full: it may have room again
/// before a cooldown ends.
pub(super) fn next_probe(rejected: impl Iterator<Item = (u32, RejectReason)>) -> Option<NextProbe> {
    let mut first: Option<((bool, Timestamp), u32)> = None;
    for (row, reason) in rejected {
        match reason {
            RejectReason::Cooldown { until, is_known, .. } => {
                let rank = (!is_known, until);
                if first.is_none_or(|(best, _)| rank < best) {
                    first = Some((rank, row));
                }
            }
            reason if reason.is_full() => return None,
            _ => {}
        }
    }
    first.map(|((is_assumed, _), row)| NextProbe { row, is_known: !is_assumed })
}

/// Why each backend of a model is rejected under the most lenient conditions; for decisions and
/// errors when none is left.
pub(super) fn rejections<'a>(
    input: &'a RouteInput<'a>,
    model: &'a Model,
) -> impl Iterator<Item = (u32, Result<(), RejectReason>)> {
    let filters = Filters::new(input, model, Conditions::LENIENT);
    (0_u32..).zip(model.serving.iter().map(move |candidate| filters.check(candidate)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=100 by the clamp")]
fn percent(share: f32) -> u8 {
    (share.clamp(0.0, 1.0) * 100.0) as u8
}
