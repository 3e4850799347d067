//! The reasons why a request cannot be routed, with the facts for an honest error response.

mod message;
mod seen;

use std::fmt;
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_api::{Capabilities, ContextOverflow, ErrorCode, Operation, Tier};

use super::RouteInput;
use super::filters::{self};
use crate::fleet::Topology;
use seen::Seen;

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
        /// The time between two such requests that could be served from then on.
        interval: Duration,
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
        let Some(serving) = topology.model_named(target) else {
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
            // As long as one of the fallbacks may recover, another try is worth it.
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
        // An error of another kind is not about the length alone.
        context(self)?;
        for error in errors.filter(|error| !matches!(error, Self::ModelNotFound { .. })) {
            if context(&error)? > context(&longest)? {
                longest = error;
            }
        }
        Some(longest)
    }
}

impl std::error::Error for RouteError {}
