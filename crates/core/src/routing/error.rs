//! Why a request cannot be routed: every class with the facts that an honest error response needs.

use std::fmt;
use std::time::Duration;

use super::RouteInput;
use super::filters::{self, RejectReason};
use crate::fleet::{Health, Serving, Topology};
use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, ContextOverflow, ErrorCode, Operation};

/// The most backends that a message names: enough to see what to change, and the message stays bounded.
const MAX_NAMED: usize = 5;

/// What a candidate lacks of what a request needs, or what some candidates lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// Capabilities.
    pub capabilities: Capabilities,
    /// The prompt is longer than the context.
    pub context: bool,
    /// The operation.
    pub operation: Option<Operation>,
}

impl Missing {
    fn is_only_context(self) -> bool {
        self.context && self.capabilities.is_empty() && self.operation.is_none()
    }

    /// What either lacks.
    fn union(self, other: Self) -> Self {
        Self {
            capabilities: self.capabilities.union(other.capabilities),
            context: self.context || other.context,
            operation: self.operation.or(other.operation),
        }
    }

    /// All of it, separated by commas.
    fn names(self) -> String {
        let context = self.context.then_some("context_length");
        let operation = self.operation.map(Operation::name);
        let names = self.capabilities.names().chain(context).chain(operation);
        names.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "[{}]", self.names())
    }
}

/// Why no backend can take a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteError {
    /// No backend serves the model. `target` is what the name resolves to.
    ModelNotFound {
        /// The requested name.
        alias: String,
        /// The model behind it.
        target: String,
        /// Backends that have never reported their models: one of them may serve it.
        unreported: Vec<String>,
    },
    /// Served, but nowhere healthy.
    NoHealthyBackend {
        /// The model.
        model: String,
        /// What healthy backends lack, when only unhealthy ones could serve the request.
        missing: Option<Missing>,
    },
    /// Healthy backends, none of which can do it.
    CapabilityMismatch {
        /// The model.
        model: String,
        /// All that the request needs and some of them lack: what a client must leave out to be served
        /// by any of them.
        missing: Missing,
        /// What each lacks, by name; of the first few.
        lacking: Vec<(String, Missing)>,
        /// By how much the prompt is too long for the longest context, where nothing else is missing there:
        /// a shorter one is served.
        overflow: Option<ContextOverflow>,
    },
    /// The model and all its fallbacks are out.
    FallbackChainExhausted {
        /// The models tried, the first one included.
        chain: Vec<String>,
        /// Whether the first of them is only full or in cooldown.
        is_busy: bool,
    },
    /// Every backend that could take it is at its limit.
    Saturated {
        /// The model.
        model: String,
    },
    /// Every backend that could take it is in cooldown after its own 429 or 503.
    CoolingDown {
        /// The model.
        model: String,
        /// When the first cooldown ends.
        until: Timestamp,
        /// 503 when one of them came from a 503, else 429.
        status: u16,
    },
    /// Its objectives would be missed on every backend, and it may be refused.
    ObjectiveMissed {
        /// The model.
        model: String,
        /// The 90th percentile of its time to the first token on the best backend, in milliseconds.
        predicted_ms: u64,
        /// Its time per token there.
        per_token_ms: u64,
        /// When it would be sent, if nothing else arrives: once a backend would meet them, or is idle.
        wait: Duration,
        /// How many like it could be served together then.
        together: u32,
        /// Whether an idle backend would meet them.
        can_be_met: bool,
    },
    /// No backend is known to serve the model, but discovery is not complete.
    DiscoveryPending {
        /// The model.
        model: String,
    },
    /// Every candidate has been tried by this request.
    AllTried {
        /// The model.
        model: String,
    },
}

impl RouteError {
    /// The code clients see.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::ModelNotFound { .. } => ErrorCode::ModelNotFound,
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

    /// Whether it passes without a change of the fleet: backends get room, and cooldowns end.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Saturated { .. } | Self::CoolingDown { .. } => true,
            Self::FallbackChainExhausted { is_busy, .. } => *is_busy,
            Self::ModelNotFound { .. }
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

    /// Why a model that no backend lists cannot be served: it is unknown, or discovery has not ended.
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

    /// The same failure after every entry of a chain failed too, with `errors`. A prompt that is too long for
    /// each of them stays one: no retry is served before it is shortened.
    pub(super) fn with_chain_exhausted(
        self,
        target: &str,
        chain: &[Box<str>],
        errors: impl Iterator<Item = Self>,
    ) -> Self {
        if chain.is_empty() || matches!(self, Self::AllTried { .. }) {
            return self;
        }
        if let Some(longest) = self.longest_overflow(errors) {
            return longest;
        }
        let first = std::iter::once(target.to_owned());
        Self::FallbackChainExhausted {
            is_busy: self.may_pass(),
            chain: first.chain(chain.iter().map(|entry| entry.to_string())).collect(),
        }
    }

    /// The error of the longest context, where this and all `errors` are about the length of the prompt alone.
    /// A model that no backend serves has no part in it.
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

/// What the candidates have in common.
#[derive(Default)]
struct Seen {
    healthy: bool,
    capable: bool,
    full: bool,
    tried: bool,
    cooldown: Option<(Timestamp, u16)>,
    /// What some healthy backend lacks.
    missing: Missing,
    /// What each healthy backend lacks, of the first [`MAX_NAMED`].
    lacking: Vec<(String, Missing)>,
    /// The longest context of a healthy backend that lacks nothing else.
    longest: Option<TokenCount>,
}

impl Seen {
    fn add(
        &mut self,
        input: &RouteInput<'_>,
        candidate: &Serving,
        verdict: Result<(), RejectReason>,
    ) {
        let is_healthy = candidate.state.status() == Health::Healthy;
        self.healthy |= is_healthy;
        match verdict {
            // It has found room only just now: the request had better ask again.
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

/// How a request exceeds a context, by the figures that the filter compares.
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
    }
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

/// The backends that may serve a model that was not found, as far as a message has room for them.
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
