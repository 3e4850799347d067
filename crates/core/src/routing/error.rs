//! The reasons why a request cannot be routed, with the facts for an honest error response.

use std::fmt;
use std::time::Duration;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, ContextOverflow, ErrorCode, Operation, Tier};

use super::RouteInput;
use super::filters::{self, RejectReason};
use crate::fleet::{Health, Serving, Topology};

/// The most backends that a message names: enough to show the cause, and the message stays bounded.
const MAX_NAMED: usize = 5;

/// The needs of a request that one candidate, or several together, cannot meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// The capabilities that are missing.
    pub capabilities: Capabilities,
    /// True if the prompt is longer than the context.
    pub context: bool,
    /// The operation that is not served.
    pub operation: Option<Operation>,
    /// The tier that it does not reach.
    pub tier: Option<Tier>,
}

impl Missing {
    fn is_only_context(self) -> bool {
        self.context
            && self.capabilities.is_empty()
            && self.operation.is_none()
            && self.tier.is_none()
    }

    /// Returns all that one or the other lacks.
    fn union(self, other: Self) -> Self {
        Self {
            capabilities: self.capabilities.union(other.capabilities),
            context: self.context || other.context,
            operation: self.operation.or(other.operation),
            tier: self.tier.max(other.tier),
        }
    }

    /// Returns the names, separated by commas.
    fn names(self) -> String {
        let context = self.context.then_some("context_length");
        let operation = self.operation.map(Operation::name);
        let names = self.capabilities.names().chain(context).chain(operation);
        let tier = self.tier.map(|tier| format!("tier {}", tier.number()));
        names.map(str::to_owned).chain(tier).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "[{}]", self.names())
    }
}

/// An error for a request that no backend can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteError {
    /// No backend serves the model. `target` is what the name resolves to.
    ModelNotFound {
        alias: String,
        /// The model behind it.
        target: String,
        /// The backends and groups that have not reported their models: one of them may serve it.
        unreported: Vec<String>,
    },
    /// Backends serve the model, but none in the zones that the request's policies admit can take
    /// it.
    NoBackendInZone {
        model: String,
        /// The zones that are admitted.
        zones: Vec<String>,
        /// The reason against each backend there, by its name; only the first few.
        inside: Vec<(String, String)>,
        /// The number of backends in other zones.
        outside: usize,
        /// True if the configuration alone leaves no backend.
        is_final: bool,
    },
    /// Backends serve the model, but no healthy one.
    NoHealthyBackend {
        model: String,
        /// The needs that healthy backends lack, if only unhealthy ones could serve the request.
        missing: Option<Missing>,
    },
    /// Healthy backends serve the model, but none can serve the request.
    CapabilityMismatch {
        model: String,
        /// All needs that some of them lack: without these, any of them could serve the request.
        missing: Missing,
        /// The needs that each lacks, by its name; only the first few.
        lacking: Vec<(String, Missing)>,
        /// The excess over the longest context, if nothing else is missing there: a shorter prompt
        /// is served.
        overflow: Option<ContextOverflow>,
    },
    /// No backend can take it now, neither for the model nor for its fallbacks.
    FallbackChainExhausted {
        /// The models tried, the first one included.
        chain: Vec<String>,
        /// True if the requested model is only full or in cooldown.
        is_busy: bool,
    },
    /// Every backend that could take it is at its limit.
    Saturated { model: String },
    /// Every backend that could take it is in cooldown after its own 429 or 503.
    CoolingDown {
        model: String,
        /// The end of the first cooldown.
        until: Timestamp,
        /// 503 when one of them came from a 503, else 429.
        status: u16,
    },
    /// Every backend would miss its objectives, and it may be refused.
    ObjectiveMissed {
        model: String,
        /// The 90th percentile of its time to first token on the best backend, in milliseconds.
        predicted_ms: u64,
        /// Its time per token there, in milliseconds.
        per_token_ms: u64,
        /// The time until it would be sent if nothing else arrives: a backend meets them or is
        /// idle.
        wait: Duration,
        /// The number of such requests that could be served together then.
        together: u32,
        /// True if an idle backend would meet them.
        can_be_met: bool,
    },
    /// No backend is known to serve the model, but discovery is not complete.
    DiscoveryPending { model: String },
    /// Every candidate has been tried by this request.
    AllTried { model: String },
}

impl RouteError {
    /// Returns the code that clients see.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::ModelNotFound { .. } => ErrorCode::ModelNotFound,
            Self::NoBackendInZone { .. } => ErrorCode::NoBackendInZone,
            Self::NoHealthyBackend { .. } | Self::AllTried { .. } => ErrorCode::NoHealthyBackend,
            Self::CapabilityMismatch { missing, .. } if missing.is_only_context() => {
                ErrorCode::ContextLengthExceeded
            }
            Self::CapabilityMismatch { .. } => ErrorCode::CapabilityMismatch,
            Self::FallbackChainExhausted { .. } => ErrorCode::FallbackChainExhausted,
            Self::Saturated { .. } => ErrorCode::AllBackendsBusy,
            Self::CoolingDown { status: 429, .. } => ErrorCode::BackendsCoolingDown,
            Self::CoolingDown { .. } => ErrorCode::AllBackendsBusy,
            Self::ObjectiveMissed { .. } => ErrorCode::ObjectiveMissed,
            Self::DiscoveryPending { .. } => ErrorCode::DiscoveryPending,
        }
    }

    /// Returns whether no repetition of the request can succeed before the configuration changes.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::NoBackendInZone { is_final: true, .. })
    }

    /// Returns whether it may pass without a change of the fleet: backends get room, cooldowns end.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Saturated { .. } | Self::CoolingDown { .. } => true,
            Self::FallbackChainExhausted { is_busy, .. } => *is_busy,
            Self::ModelNotFound { .. }
            | Self::NoBackendInZone { .. }
            | Self::NoHealthyBackend { .. }
            | Self::CapabilityMismatch { .. }
            | Self::ObjectiveMissed { .. }
            | Self::DiscoveryPending { .. }
            | Self::AllTried { .. } => false,
        }
    }

    /// Explains why `pick` found no backend. Runs only on failure, so it may be slow.
    pub(super) fn explain(target: &str, input: &RouteInput<'_>, chain: &[Box<str>]) -> Self {
        let topology = input.fleet;
        let model = target.to_owned();
        let Some(serving) = topology.model_id(target).and_then(|id| topology.model(id)) else {
            let unknown = Self::unknown_model(input.model, target, topology, input.now);
            return match unknown {
                Self::DiscoveryPending { .. } if !chain.is_empty() => {
                    Self::not_found(input.model, target, topology)
                }
                _ => unknown,
            };
        };
        let mut seen = Seen::default();
        for ((_, verdict), candidate) in filters::rejections(input, serving).zip(&serving.serving) {
            seen.add(input, candidate, verdict);
        }
        seen.conclude(model, input)
    }

    /// Returns the error for a model that no backend lists: unknown, or discovery is not complete.
    pub fn unknown_model(alias: &str, target: &str, fleet: &Topology, now: Timestamp) -> Self {
        match fleet.awaits_models(now) {
            true => Self::DiscoveryPending { model: target.to_owned() },
            false => Self::not_found(alias, target, fleet),
        }
    }

    fn not_found(alias: &str, target: &str, fleet: &Topology) -> Self {
        let backends = fleet.unreported().map(|backend| backend.config.name.clone());
        let groups = fleet.groups.iter().filter(|group| group.addresses.is_empty());
        Self::ModelNotFound {
            alias: alias.to_owned(),
            target: target.to_owned(),
            unreported: backends.chain(groups.map(|group| group.name.to_string())).collect(),
        }
    }

    /// Returns the error after every entry of the chain failed too, with `errors`. An overflow of
    /// every context stays one: no retry succeeds before the prompt is shortened.
    pub(super) fn with_chain_exhausted(
        self,
        target: &str,
        chain: &[Box<str>],
        errors: impl Iterator<Item = Self>,
    ) -> Self {
        if chain.is_empty() || matches!(self, Self::AllTried { .. }) {
            return self;
        }
        let errors: Vec<Self> = errors.collect();
        if let Some(of_zones) = self.without_zone(&errors) {
            return of_zones;
        }
        if let Some(longest) = self.longest_overflow(errors.into_iter()) {
            return longest;
        }
        let first = std::iter::once(target.to_owned());
        Self::FallbackChainExhausted {
            is_busy: self.may_pass(),
            chain: first.chain(chain.iter().map(|entry| entry.to_string())).collect(),
        }
    }

    /// Returns the error about zones, if these leave no backend, neither for the model nor for its
    /// fallbacks. Models that no backend serves do not count.
    fn without_zone(&self, errors: &[Self]) -> Option<Self> {
        let mut served = errors.iter().filter(|one| !matches!(one, Self::ModelNotFound { .. }));
        let is_of_zone = |error: &Self| matches!(error, Self::NoBackendInZone { .. });
        if !is_of_zone(self) || !served.all(is_of_zone) {
            return None;
        }
        let mut error = self.clone();
        if let Self::NoBackendInZone { is_final, .. } = &mut error {
            *is_final &= errors
                .iter()
                .all(|one| one.is_final() || matches!(one, Self::ModelNotFound { .. }));
        }
        Some(error)
    }

    /// Returns the error with the longest context, if this and all `errors` are only about the
    /// length of the prompt. Models that no backend serves do not count.
    fn longest_overflow(&self, errors: impl Iterator<Item = Self>) -> Option<Self> {
        let context = |error: &Self| match error {
            Self::CapabilityMismatch { missing, overflow, .. } if missing.is_only_context() => {
                overflow.map(|overflow| overflow.context)
            }
            _ => None,
        };
        let mut longest = self.clone();
        context(self)?;
        for error in errors.filter(|error| !matches!(error, Self::ModelNotFound { .. })) {
            if context(&error)? > context(&longest)? {
                longest = error;
            }
        }
        Some(longest)
    }
}

/// The findings on all candidates.
#[derive(Default)]
struct Seen {
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
    fn add(
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
                        self.longest = self.longest.max(Some(candidate.window));
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

    fn conclude(self, model: String, input: &RouteInput<'_>) -> RouteError {
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
    let prompt = input.request.prefill_tokens();
    let output = TokenCount(input.tokens.0.saturating_sub(prompt.0));
    ContextOverflow { prompt, is_least: false, output, context }
}

fn lacking(input: &RouteInput<'_>, candidate: &Serving) -> Missing {
    let request = input.request;
    let has_operation = candidate.usable_operations.contains(request.operation);
    Missing {
        capabilities: request.needs.without(candidate.usable),
        context: candidate.context_length.is_some_and(|length| length < input.tokens),
        operation: (!has_operation).then_some(request.operation),
        tier: Some(input.policy.restriction.tier).filter(|tier| candidate.tier < *tier),
    }
}

/// Returns the names of the zones that a request may reach.
fn zones_of(input: &RouteInput<'_>) -> Vec<String> {
    let names = input.fleet.zones.names_in(input.policy.restriction.zones);
    names.map(str::to_owned).collect()
}

impl fmt::Display for RouteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ModelNotFound { alias, target, unreported } => {
                write!(out, "Model '{target}' not found")?;
                if alias != target {
                    write!(out, " ('{alias}' is an alias for it)")?;
                }
                write_unreported(out, unreported)
            }
            Self::NoBackendInZone { model, zones, inside, outside, .. } => {
                write!(out, "Requests for model '{model}' may only reach ")?;
                write_zones(out, zones, inside)?;
                write!(out, " ({outside} in other zones)")
            }
            Self::NoHealthyBackend { model, missing: None } | Self::AllTried { model } => {
                write!(out, "No healthy backend available for model '{model}'")
            }
            Self::NoHealthyBackend { model, missing: Some(missing) } => write!(
                out,
                "No healthy backend available for model '{model}' \
                 (the healthy ones lack {missing})"
            ),
            Self::CapabilityMismatch { model, missing, lacking, overflow } => {
                write!(
                    out,
                    "No backend supports required capabilities for model '{model}': {missing}"
                )?;
                for (index, (name, missing)) in lacking.iter().enumerate() {
                    let start = if index == 0 { " (" } else { "; " };
                    write!(out, "{start}{name} lacks {}", missing.names())?;
                }
                out.write_str(")")?;
                overflow.map_or(Ok(()), |overflow| write!(out, ": {overflow}"))
            }
            Self::FallbackChainExhausted { chain, .. } => {
                let chain = chain.join(", ");
                write!(out, "All backends in fallback chain unavailable: [{chain}]")
            }
            Self::Saturated { model } => write!(
                out,
                "Every backend for model '{model}' is at its limit of requests in flight or of backlog"
            ),
            Self::CoolingDown { model, status, .. } => {
                write!(out, "Every backend for model '{model}' recently responded with {status}")
            }
            Self::ObjectiveMissed { model, predicted_ms, per_token_ms, can_be_met, .. } => write!(
                out,
                "The objectives of the request would be missed on every backend for model '{model}'{} (predicted: \
                 the first token within {predicted_ms} ms, {per_token_ms} ms per further token), and its priority is below 0",
                if *can_be_met { "" } else { ", even an idle one" }
            ),
            Self::DiscoveryPending { model } => write!(
                out,
                "Model '{model}' is not known yet: discovery of some backends is not complete"
            ),
        }
    }
}

/// Writes the zones that are admitted, and the reason against each backend there.
fn write_zones(
    out: &mut fmt::Formatter<'_>,
    zones: &[String],
    inside: &[(String, String)],
) -> fmt::Result {
    match zones {
        [] => out.write_str("no zone at all")?,
        [one] => write!(out, "the zone {one}")?,
        several => write!(out, "the zones {}", several.join(", "))?,
    }
    for (index, (name, reason)) in inside.iter().enumerate() {
        let start = if index == 0 { ": " } else { "; " };
        write!(out, "{start}{name} {reason}")?;
    }
    if inside.is_empty() { out.write_str(", where no backend serves it") } else { Ok(()) }
}

/// Writes the backends that may serve an unknown model, up to the bound of a message.
fn write_unreported(out: &mut fmt::Formatter<'_>, names: &[String]) -> fmt::Result {
    let shown = names.get(..MAX_NAMED).unwrap_or(names);
    if shown.is_empty() {
        return Ok(());
    }
    write!(out, "; backends that have never reported their models: {}", shown.join(", "))?;
    match names.len() - shown.len() {
        0 => Ok(()),
        more => write!(out, " and {more} more"),
    }
}

impl std::error::Error for RouteError {}
