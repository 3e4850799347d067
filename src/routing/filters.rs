//! Why a candidate may not take a request: one function decides, `explain` prints its reasons.

use std::sync::atomic::Ordering;

use super::RouteInput;
use crate::api::{Capabilities, Offer};
use crate::fleet::{BackendState, BreakerState, Health, Model, Probe, Serving};
use crate::mix::mix;
use crate::units::{Timestamp, TokenCount};

/// Why a backend that serves the model was left out.
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
    /// Its health checks fail, it was not checked yet, or it drains.
    Health(Health),
    /// Its circuit breaker is open.
    BreakerOpen,
    /// It rests after its own 429 or 503.
    Cooldown {
        /// When the rest ends.
        until: Timestamp,
        /// The status that asked for it.
        status: u16,
    },
    /// It is on its way back and sits this one out.
    SlowStart {
        /// The part of its share that it gets now, in percent.
        percent: u8,
    },
    /// It has as many requests in flight as it may.
    Full {
        /// The limit.
        limit: u32,
    },
}

impl RejectReason {
    /// A short name for metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tried => "tried",
            Self::Operation => "operation",
            Self::Capabilities(_) => "capabilities",
            Self::Context(_) => "context_length",
            Self::Health(Health::Unknown) => "unknown",
            Self::Health(Health::Draining) => "draining",
            Self::Health(Health::Healthy | Health::Unhealthy) => "unhealthy",
            Self::BreakerOpen => "breaker_open",
            Self::Cooldown { .. } => "cooldown",
            Self::SlowStart { .. } => "slow_start",
            Self::Full { .. } => "full",
        }
    }

    /// Of a backend that sits this decision out.
    pub(super) fn slow_start(input: &RouteInput<'_>, candidate: &Serving) -> Self {
        Self::SlowStart { percent: percent(candidate.state.share(input.now)) }
    }

    /// Whether the backend could never take this request, however healthy and idle it were.
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Operation | Self::Capabilities(_) | Self::Context(_))
    }
}

/// A candidate that may take the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Everything needed is known to be there, nothing assumed.
    pub is_known: bool,
    /// The slot an attempt must take along.
    pub probe: Probe,
}

/// Whose capabilities count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Those known to have what the request needs.
    Known,
    /// Also those assumed to.
    Usable,
}

/// Who counts as a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// By their capabilities.
    pub(super) who: Who,
    /// Also those whose checks fail: too few others are left.
    pub(super) in_panic: bool,
    /// Those on their way back as much as the others.
    pub(super) at_once: bool,
}

/// The candidates of a model that may take the request now, with their rows: those [`check`] finds
/// nothing against and that do not sit out.
#[inline(always)]
pub(super) fn fitting<'a>(
    input: &'a RouteInput<'_>,
    model: &'a Model,
    terms: Terms,
) -> impl Iterator<Item = (u32, &'a Serving)> {
    let asked = Offer::asked(input.request.operation, input.request.needs);
    let is_first = input.tried.is_empty();
    (0_u32..).zip(&model.serving).filter(move |(_, candidate)| {
        let offer = match terms.who {
            Who::Known => candidate.known_offer,
            Who::Usable => candidate.usable_offer,
        };
        offer.contains(asked)
            && candidate.window >= input.tokens
            && (is_first || !input.tried.contains(candidate.id))
            && is_free(input, candidate, terms)
    })
}

/// Whether a candidate that could take the request can take it now.
#[inline(always)]
fn is_free(input: &RouteInput<'_>, candidate: &Serving, terms: Terms) -> bool {
    let state = &*candidate.state;
    if !state.breaker.is_closed() && is_open(state, input.now) {
        return false;
    }
    let health = state.health.status();
    !state.draining.load(Ordering::Relaxed)
        && (health == Health::Healthy || (terms.in_panic && health == Health::Unhealthy))
        && !state.cooldown.is_active(input.now)
        && state.load.in_flight() < candidate.max_in_flight
        && (!state.is_in_slow_start() || takes_part(input, candidate, terms))
}

// Out of line, like `takes_part`: what is seldom asked would take registers from every candidate.
#[cold]
#[inline(never)]
fn is_open(state: &BackendState, now: Timestamp) -> bool {
    state.breaker.state(now) == BreakerState::Open
}

#[cold]
#[inline(never)]
fn takes_part(input: &RouteInput<'_>, candidate: &Serving, terms: Terms) -> bool {
    terms.at_once || !sits_out(input, candidate)
}

/// Whether a backend on its way back sits this decision out. Drawn from the time of the decision, so
/// that the same question has the same answer.
pub(super) fn sits_out(input: &RouteInput<'_>, candidate: &Serving) -> bool {
    let share = candidate.state.share(input.now);
    // The upper bits make a number in 0..1.
    let mixed = mix(input.now.0 ^ (u64::from(candidate.id.0) << 48));
    let draw = u16::try_from(mixed >> 48).map_or(0.0, f32::from) / 65536.0;
    share < 1.0 && draw >= share
}

/// Whether `candidate` may take the request now.
///
/// # Errors
/// The first reason why not: lasting ones before passing ones.
pub(super) fn check(input: &RouteInput<'_>, candidate: &Serving) -> Result<Fit, RejectReason> {
    check_in(input, candidate, false)
}

/// The same; `in_panic`, backends count whose checks fail.
///
/// # Errors
/// As above.
pub(super) fn check_in(
    input: &RouteInput<'_>,
    candidate: &Serving,
    in_panic: bool,
) -> Result<Fit, RejectReason> {
    let is_known = can_serve(input, candidate)?;
    if input.tried.contains(candidate.id) {
        return Err(RejectReason::Tried);
    }
    let state = &*candidate.state;
    if state.draining.load(Ordering::Relaxed) {
        return Err(RejectReason::Health(Health::Draining));
    }
    match state.health.status() {
        Health::Healthy => {}
        Health::Unhealthy if in_panic => {}
        status => return Err(RejectReason::Health(status)),
    }
    let mut probe = Probe::None;
    if !state.breaker.is_closed() {
        match state.breaker.state(input.now) {
            BreakerState::Closed => {}
            BreakerState::HalfOpen => probe = Probe::Breaker,
            BreakerState::Open => return Err(RejectReason::BreakerOpen),
        }
    }
    if let Some(until) = state.cooldown.ends_at(input.now) {
        return Err(RejectReason::Cooldown { until, status: state.cooldown.status() });
    }
    if state.load.in_flight() >= candidate.max_in_flight {
        return Err(RejectReason::Full { limit: candidate.max_in_flight });
    }
    Ok(Fit { is_known, probe })
}

/// Of backends that all rest the one that is due first, of equals the first; none where one is merely
/// full.
pub(super) fn first_due(
    verdicts: impl Iterator<Item = (u32, Result<Fit, RejectReason>)>,
) -> Option<u32> {
    let mut first: Option<(Timestamp, u32)> = None;
    for (row, verdict) in verdicts {
        match verdict {
            Err(RejectReason::Cooldown { until, .. })
                if first.is_none_or(|(due, _)| until < due) =>
            {
                first = Some((until, row));
            }
            Err(RejectReason::Full { .. }) => return None,
            Ok(_) | Err(_) => {}
        }
    }
    first.map(|(_, row)| row)
}

/// Whether `candidate` could take the request if it were healthy and idle; `Ok(true)` when all it
/// needs is known and not assumed.
///
/// # Errors
/// The lasting reason why not.
pub(super) fn can_serve(input: &RouteInput<'_>, candidate: &Serving) -> Result<bool, RejectReason> {
    let request = input.request;
    if !candidate.usable_operations.contains(request.operation) {
        return Err(RejectReason::Operation);
    }
    let lacking = request.needs.without(candidate.usable);
    if !lacking.is_empty() {
        return Err(RejectReason::Capabilities(lacking));
    }
    let length = candidate.context_length.unwrap_or(TokenCount(u32::MAX));
    if length < input.tokens {
        return Err(RejectReason::Context(length));
    }
    Ok(candidate.known.contains(request.needs))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=100 by the clamp")]
fn percent(share: f32) -> u8 {
    (share.clamp(0.0, 1.0) * 100.0) as u8
}
