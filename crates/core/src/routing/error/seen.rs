//! The findings on the candidates of a request that none of them can take, and the error that
//! follows from all of them together.

use penstock_api::ContextOverflow;
use penstock_api::units::{Timestamp, TokenCount};

use super::{MAX_NAMED, Missing, RouteError};
use crate::fleet::{Health, Serving};
use crate::routing::RouteInput;
use crate::routing::filters::{Candidacy, RejectReason, context_of, is_too_short};

/// The findings on all candidates.
#[derive(Default)]
pub(super) struct Seen {
    healthy: bool,
    capable: bool,
    full: bool,
    tried: bool,
    cooldown: Option<(Timestamp, u16)>,
    /// The needs that some healthy backend lacks.
    missing: Missing,
    /// The needs that each healthy backend lacks, for the first [`MAX_NAMED`].
    lacking: Vec<(String, Missing)>,
    /// The longest context of a healthy backend that lacks nothing else.
    longest: Option<TokenCount>,
    /// The number of backends in zones that are not admitted.
    outside: usize,
    /// The reason against each of the others, for the first [`MAX_NAMED`].
    inside: Vec<(String, String)>,
    /// True if one of the others is only out for a while.
    may_return: bool,
}

impl Seen {
    pub(super) fn add(
        &mut self,
        input: &RouteInput<'_>,
        candidate: &Serving,
        verdict: Result<(), RejectReason>,
    ) {
        if let Err(RejectReason::Zone(_)) = verdict {
            self.outside += 1;
            return;
        }
        if let Err(reason) = verdict
            && input.policy.restriction.zones.restricts()
        {
            self.may_return |= !reason.is_lasting();
            if self.inside.len() < MAX_NAMED {
                self.inside.push((candidate.state.name.to_string(), reason.to_text(input)));
            }
        }
        let is_healthy = candidate.state.status() == Health::Healthy;
        self.healthy |= is_healthy;
        match verdict {
            // It has just got room: the client should retry.
            Ok(()) => (self.capable, self.full) = (true, true),
            Err(reason) if reason.is_lasting() => {
                if is_healthy {
                    let missing = lacking(input, candidate);
                    if missing.is_only_context() {
                        self.longest = self.longest.max(Some(context_of(input, candidate)));
                    }
                    self.add_lacking(candidate, missing);
                }
            }
            Err(reason) => {
                self.capable = true;
                self.full |= reason.is_full();
                self.tried |= reason == RejectReason::Tried;
                if let RejectReason::Cooldown { until, status, .. } = reason {
                    let (first, worst) = self.cooldown.unwrap_or((until, status));
                    self.cooldown = Some((first.min(until), worst.max(status)));
                }
            }
        }
    }

    fn add_lacking(&mut self, candidate: &Serving, missing: Missing) {
        self.missing = self.missing.union(missing);
        if self.lacking.len() < MAX_NAMED {
            self.lacking.push((candidate.state.name.to_string(), missing));
        }
    }

    pub(super) fn conclude(self, model: String, input: &RouteInput<'_>) -> RouteError {
        debug_assert!(!model.is_empty(), "a model has a name");
        let Self { missing, lacking, longest, .. } = self;
        match self.cooldown {
            _ if self.full => RouteError::Saturated { model },
            Some((until, status)) => RouteError::CoolingDown { model, until, status },
            None if self.tried => RouteError::AllTried { model },
            None if self.outside > 0 => RouteError::NoBackendInZone {
                model,
                zones: zones_of(input),
                inside: self.inside,
                outside: self.outside,
                is_final: !self.may_return,
            },
            None if !self.capable && !lacking.is_empty() => {
                let overflow = longest.map(|context| overflow(input, context));
                RouteError::CapabilityMismatch { model, missing, lacking, overflow }
            }
            None => {
                let missing = (!lacking.is_empty()).then_some(missing);
                RouteError::NoHealthyBackend { model, missing }
            }
        }
    }
}

/// Returns the overflow of a context, by the figures that the filter compares.
fn overflow(input: &RouteInput<'_>, context: TokenCount) -> ContextOverflow {
    let prompt = input.request.context_tokens();
    let output = TokenCount(input.tokens.0.saturating_sub(prompt.0));
    ContextOverflow { prompt, is_least: false, output, context }
}

fn lacking(input: &RouteInput<'_>, candidate: &Serving) -> Missing {
    let request = input.request;
    let has_operation = candidate.usable_operations.contains(request.operation);
    Missing {
        capabilities: request.needs.without(candidate.usable),
        context: is_too_short(input, candidate, Candidacy::Usable),
        operation: (!has_operation).then_some(request.operation),
        tier: Some(input.policy.restriction.tier).filter(|tier| candidate.tier < *tier),
    }
}

/// Returns the names of the zones that a request may reach.
fn zones_of(input: &RouteInput<'_>) -> Vec<String> {
    let names = input.fleet.zones.names_in(input.policy.restriction.zones);
    names.map(str::to_owned).collect()
}
