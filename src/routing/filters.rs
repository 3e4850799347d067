//! Which backends may take a request: one function decides for live decisions, explanations, captures
//! and errors.

use super::RouteInput;
use super::prediction::sent;
use crate::api::{Capabilities, Offer};
use crate::fleet::{BackendState, BreakerState, Health, Model, ReachedLimit, Serving};
use crate::mix::mix;
use crate::units::{Timestamp, TokenCount};

/// The share of an objective for the time per token up to which a batch is filled: prompts that come later lengthen the
/// steps of a stream further. Found by simulation: with 1 up to 5 % more of the important streams miss it, and with 0.8 half
/// of a chat waits for too long that would just have met it.
const BATCH_SHARE: f64 = 0.9;
/// The same for requests that may be refused: the rest is kept for the others.
const SHEDDABLE_BATCH_SHARE: f64 = 0.8;

/// Why a backend that serves the model was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// An earlier attempt of this request failed there.
    Tried,
    /// It does not serve this operation.
    Operation,
    /// It lacks these capabilities.
    Capabilities(Capabilities),
    /// Its context is shorter than the prompt.
    Context(TokenCount),
    /// It is only assumed to have what other backends are known to have.
    Assumed,
    /// Its health checks fail, it was not checked yet, or it drains.
    Health(Health),
    /// Its circuit breaker is open.
    BreakerOpen,
    /// It is in cooldown after its own 429 or 503.
    Cooldown {
        /// When the cooldown ends.
        until: Timestamp,
        /// The status that started it.
        status: u16,
        /// Whether the backend is known to have what the request needs, and not only assumed to.
        is_known: bool,
    },
    /// Its last responses, to this client or to several, were faults: other backends are preferred.
    RecentFaults,
    /// It has as many requests in flight as it may.
    Full {
        /// The limit.
        limit: u32,
    },
    /// It has as many requests for the model in flight as it may.
    ModelFull {
        /// The limit.
        limit: u32,
    },
    /// The prompts that it has take longer than they may.
    Backlog {
        /// How long they take, in milliseconds.
        ms: u32,
    },
    /// Another stream would make its tokens come more slowly than the request's objective, or that of a
    /// stream there, allows.
    Batch {
        /// The time per token with it, in milliseconds.
        ms: u32,
    },
    /// It is in slow start and skips this request.
    SlowStart {
        /// The part of its share that it gets now, in percent.
        percent: u8,
    },
    /// Its telemetry is stale while another backend's is fresh.
    Telemetry,
}

impl RejectReason {
    /// A short name for metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tried => "tried",
            Self::Operation => "operation",
            Self::Capabilities(_) => "capabilities",
            Self::Context(_) => "context_length",
            Self::Assumed => "assumed",
            Self::Health(Health::Unknown) => "unknown",
            Self::Health(Health::Draining) => "draining",
            Self::Health(Health::Healthy | Health::Unhealthy) => "unhealthy",
            Self::BreakerOpen => "breaker_open",
            Self::Cooldown { .. } => "cooldown",
            Self::RecentFaults => "recent_faults",
            Self::SlowStart { .. } => "slow_start",
            Self::Full { .. } => "full",
            Self::ModelFull { .. } => "model_full",
            Self::Backlog { .. } => "backlog",
            Self::Batch { .. } => "batch",
            Self::Telemetry => "telemetry",
        }
    }

    /// Whether the backend could never take this request, however healthy and idle it were.
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Operation | Self::Capabilities(_) | Self::Context(_))
    }

    /// Whether the backend has as much to do as it may.
    pub(super) fn is_full(self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::ModelFull { .. } | Self::Backlog { .. } | Self::Batch { .. }
        )
    }

    /// The reason for people.
    pub(super) fn to_text(self, input: &RouteInput<'_>) -> String {
        match self {
            Self::Tried => "an earlier attempt of this request failed there".to_owned(),
            Self::Operation => format!("does not serve {}", input.request.operation.name()),
            Self::Capabilities(lacking) => format!("lacks {lacking}"),
            Self::Context(length) => format!(
                "context of {} tokens is shorter than the prompt's {}",
                length.0, input.tokens.0
            ),
            Self::Assumed => "is only assumed to have what others are known to have".to_owned(),
            Self::Health(health) => format!("is {}", health.name()),
            Self::BreakerOpen => "its circuit breaker is open".to_owned(),
            Self::Cooldown { until, status, .. } => format!(
                "in cooldown for another {:.1} s after its own {status}",
                until.since(input.now).as_secs_f64()
            ),
            Self::RecentFaults => {
                "its last responses were faults, so other backends are preferred".to_owned()
            }
            Self::SlowStart { percent } => format!("in slow start at {percent} %"),
            Self::Full { limit } => format!("has {limit} requests in flight, its limit"),
            Self::ModelFull { limit } => {
                format!("has {limit} requests for the model in flight, its limit")
            }
            Self::Backlog { ms } => format!("its prompts take {ms} ms, more than may be"),
            Self::Batch { ms } => {
                format!(
                    "with another stream its tokens would take {ms} ms, more than objectives allow"
                )
            }
            Self::Telemetry => "telemetry is stale while another backend's is fresh".to_owned(),
        }
    }
}

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
    /// Whether backends count whose last responses were faults, because there are no others.
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
    conditions: Conditions,
    /// The operation and what the request needs, as one word.
    asked: Offer,
    is_first_attempt: bool,
}

impl<'a> Filters<'a> {
    pub(super) fn new(input: &'a RouteInput<'a>, conditions: Conditions) -> Self {
        Self {
            input,
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
        if !state.breaker.is_closed() && is_open(state, input) {
            return V::reject(|| RejectReason::BreakerOpen);
        }
        if state.cooldowns.is_active(input.now)
            && let Some(reason) = self.cooldown(candidate)
        {
            return V::reject(|| reason);
        }
        if candidate.may_be_full()
            && let Some(reason) = self.limit(candidate)
        {
            return V::reject(|| reason);
        }
        if state.has_recent_faults(input.now) && self.avoids(candidate) {
            return V::reject(|| RejectReason::RecentFaults);
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
            Some(ReachedLimit::Model(_)) | None => self.work_limit(candidate),
        }
    }

    /// The limit of work that a backend has reached, as far as is known of it: a rough limit keeps less work waiting
    /// there than none, and learns from it. An idle one takes anything.
    fn work_limit(&self, candidate: &Serving) -> Option<RejectReason> {
        let Self { input, .. } = self;
        if candidate.max_backlog.is_infinite() || candidate.model_state.of_all() == 0 {
            return None;
        }
        let estimate = candidate.estimate(&sent(input.request, 0), input.now);
        let prediction = &estimate.prediction;
        let wait = prediction.backlog.max(prediction.slot_wait);
        if wait > candidate.max_backlog {
            return Some(RejectReason::Backlog { ms: whole_ms(wait) });
        }
        let own = input.objectives.tpot_ms.map_or(f64::INFINITY, |ms| ms * 1000.0);
        let share = match input.objectives.is_sheddable() {
            true => SHEDDABLE_BATCH_SHARE,
            false => BATCH_SHARE,
        };
        let most = own.min(estimate.tightest) * share;
        // An objective that it misses even alone is no reason to wait.
        (prediction.tpot > most && estimate.tpot_alone <= most)
            .then(|| RejectReason::Batch { ms: whole_ms(prediction.tpot) })
    }

    /// Whether other backends are preferred because of recent faults.
    fn avoids(&self, candidate: &Serving) -> bool {
        let Self { input, conditions, .. } = self;
        let state = candidate.state.evidence_against(input.requester, input.now);
        !conditions.ignores_faults && state == BreakerState::Open
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

fn is_open(state: &BackendState, input: &RouteInput<'_>) -> bool {
    state.breaker.state(input.now) == BreakerState::Open
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
    let filters = Filters::new(input, Conditions::LENIENT);
    (0_u32..).zip(model.serving.iter().map(move |candidate| filters.check(candidate)))
}

/// Microseconds as whole milliseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn whole_ms(micros: f64) -> u32 {
    (micros / 1000.0).max(0.0) as u32
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=100 by the clamp")]
fn percent(share: f32) -> u8 {
    (share.clamp(0.0, 1.0) * 100.0) as u8
}
