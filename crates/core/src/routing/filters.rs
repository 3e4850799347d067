//! The filters: one function decides which backends may take a request, for live decisions,
//! explanations, captures and errors.

mod reason;
mod work;

pub use reason::RejectReason;

use penstock_api::Offer;
use penstock_api::mix::mix;
use penstock_api::units::Timestamp;

use super::RouteInput;
use crate::fleet::{BreakerState, Health, Model, ReachedLimit, Serving};

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

/// The backends whose capabilities suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidacy {
    /// Only backends known to meet the request's needs.
    Known,
    /// Also backends assumed to meet them.
    Usable,
}

/// The conditions of one pass over a model's backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conditions {
    /// The backends whose capabilities suffice.
    pub(super) candidacy: Candidacy,
    /// True if backends with failing checks count, because too few others are left.
    pub(super) in_panic: bool,
    /// True if backends in slow start get their whole share, because there are no others.
    pub(super) ignores_slow_start: bool,
    /// True if backends with recent faults or without progress count, because there are no others.
    pub(super) ignores_faults: bool,
    /// True if the limits of models are ignored, because all of them are reached.
    pub(super) spills: bool,
}

impl Conditions {
    /// The conditions of the first pass.
    pub(super) const STRICT: Self = Self {
        candidacy: Candidacy::Known,
        in_panic: false,
        ignores_slow_start: false,
        ignores_faults: false,
        spills: false,
    };

    /// The most lenient conditions of a fleet that is not in panic.
    pub(super) const LENIENT: Self = Self {
        candidacy: Candidacy::Usable,
        in_panic: false,
        ignores_slow_start: true,
        ignores_faults: true,
        spills: false,
    };
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Filters<'a> {
    input: &'a RouteInput<'a>,
    model: &'a Model,
    conditions: Conditions,
    /// The operation and the needs of the request, as one word.
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

    /// Returns whether `candidate` may take the request now, else the first reason against it:
    /// lasting reasons come before passing ones.
    // Runs for every backend of every decision. Rare conditions are checked out of line: there they
    // take no registers from the rest and cost one test.
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

    /// Checks the rest of [`Filters::check`] for a backend that is possibly impaired.
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
        // Before the limits: a backend that is avoided must not count as merely full.
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

    /// Returns whether a backend that is not healthy is excluded.
    fn is_excluded(&self, health: Health) -> bool {
        !self.conditions.in_panic || health != Health::Unhealthy
    }

    /// Returns the cooldown on a backend that covers the request.
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

    /// Returns the reached limit of requests in flight, of a backend or of the model on it.
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

    /// Returns whether reserved room is refused to the request. Positive priorities may take it.
    fn is_held_back(&self, candidate: &Serving) -> bool {
        let input = self.input;
        input.objectives.priority <= 0
            && candidate.keeps_room_from(input.requester.owner, input.now)
    }

    /// Returns whether other backends are preferred because of recent faults.
    fn avoids(&self, candidate: &Serving) -> bool {
        let Self { input, conditions, .. } = self;
        !conditions.ignores_faults
            && candidate.evidence_against(input.requester, input.now) == BreakerState::Open
    }

    /// Returns the reason against a backend whose breaker is not closed. Prompts that fail
    /// everywhere do not probe while other backends are left: they would show nothing.
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

    /// Returns whether a backend in slow start skips this decision. Drawn from the time of the
    /// decision, so that a second pass and an explanation get the same result.
    fn skips(&self, candidate: &Serving) -> bool {
        let now = self.input.now;
        let share = candidate.state.share(now);
        // The upper 16 bits make a number in 0..1.
        let mixed = mix(now.0 ^ (u64::from(candidate.id.0) << 48));
        let draw = u16::try_from(mixed >> 48).map_or(0.0, f32::from) / 65536.0;
        !self.conditions.ignores_slow_start && share < 1.0 && draw >= share
    }

    /// Returns the reason why a candidate does not meet the needs of the request. If it is only
    /// assumed to meet them, returns the passing reason that would reject it in any case.
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

/// Returns whether the candidate is known, not only assumed, to meet all needs.
pub(super) fn is_known(input: &RouteInput<'_>, candidate: &Serving) -> bool {
    candidate.known.contains(input.request.needs)
}

/// The next backend to probe while all are in cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextProbe {
    pub(super) row: u32,
    /// True if it is known to meet the needs of the request.
    pub(super) is_known: bool,
}

/// Returns the backend whose cooldown ends first; ties go to the first. Backends only assumed to
/// meet the needs come after all known to. Returns none if a backend is merely full: it may have
/// room before a cooldown ends.
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

/// Returns the reason against each backend of a model under the most lenient conditions, for
/// decisions and errors when none is left.
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
