//! The reasons for rejecting a backend.

use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, Tier, ZoneId};

use crate::fleet::Health;
use crate::routing::RouteInput;

/// The reason why a backend that serves the model was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// The request's policies do not admit its zone.
    Zone(ZoneId),
    /// Its tier is below the one that the request's policies demand.
    Tier(Tier),
    /// It costs money, and a budget of the request is spent.
    Budget,
    /// An earlier attempt of this request failed there.
    Tried,
    /// It does not serve this operation.
    Operation,
    /// It lacks these capabilities.
    Capabilities(Capabilities),
    /// Its context is shorter than the prompt.
    Context(TokenCount),
    /// Other backends are known to meet the needs; it is only assumed to.
    Assumed,
    /// Its health checks fail, it has not been checked yet, or it drains.
    Health(Health),
    /// Its circuit breaker is open.
    BreakerOpen,
    /// It is in cooldown after its own 429 or 503.
    Cooldown {
        /// The end of the cooldown.
        until: Timestamp,
        /// The status that started it.
        status: u16,
        /// True if the backend is known, not only assumed, to meet the needs of the request.
        is_known: bool,
    },
    /// It fails more than others, for this client or for all: others are preferred.
    RecentFaults,
    /// Its requests make no progress, although its checks pass: others are preferred.
    Frozen,
    /// It is at its limit of requests in flight.
    Full { limit: u32 },
    /// It is at its limit of requests in flight for the model.
    ModelFull { limit: u32 },
    /// Its waiting prompts take longer than the limit allows.
    Backlog {
        /// The time that they take, in milliseconds.
        ms: u32,
    },
    /// Another stream would raise the time per token above the objective of one of the streams.
    Batch {
        /// The time per token with that stream, in milliseconds.
        ms: u32,
    },
    /// Its remaining room is reserved for owners below their share.
    Kept,
    /// The prompt would be computed there again, and its owner is far above its share.
    NotCached,
    /// It is in slow start and skips this request.
    SlowStart {
        /// The current percentage of its share.
        percent: u8,
    },
    /// It is beyond the bounds that the request's policy has for quality.
    Quality,
    /// Its telemetry is stale while another backend's is fresh.
    Telemetry,
    /// Responses take much longer there than on another backend.
    Slower,
}

/// Defines [`RejectReason::name`] and [`RejectReason::NAMES`] by one list.
macro_rules! names {
    ($($reason:pat => $name:literal,)*) => {
        impl RejectReason {
            /// Every name of a reason.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Returns a short name for metrics and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $($reason => $name,)*
                }
            }
        }
    };
}

names! {
    RejectReason::Zone(_) => "zone",
    RejectReason::Tier(_) => "tier",
    RejectReason::Budget => "budget",
    RejectReason::Tried => "tried",
    RejectReason::Operation => "operation",
    RejectReason::Capabilities(_) => "capabilities",
    RejectReason::Context(_) => "context_length",
    RejectReason::Assumed => "assumed",
    RejectReason::Health(Health::Unknown) => "unknown",
    RejectReason::Health(Health::Draining) => "draining",
    RejectReason::Health(Health::Healthy | Health::Unhealthy) => "unhealthy",
    RejectReason::BreakerOpen => "breaker_open",
    RejectReason::Cooldown { .. } => "cooldown",
    RejectReason::RecentFaults => "recent_faults",
    RejectReason::Frozen => "frozen",
    RejectReason::SlowStart { .. } => "slow_start",
    RejectReason::Full { .. } => "full",
    RejectReason::ModelFull { .. } => "model_full",
    RejectReason::Backlog { .. } => "backlog",
    RejectReason::Batch { .. } => "batch",
    RejectReason::Kept => "kept",
    RejectReason::NotCached => "not_cached",
    RejectReason::Quality => "quality",
    RejectReason::Telemetry => "telemetry",
    RejectReason::Slower => "slower",
}

impl RejectReason {
    /// Returns whether the backend could never take this request, even healthy and idle.
    pub fn is_lasting(self) -> bool {
        matches!(
            self,
            Self::Zone(_)
                | Self::Tier(_)
                | Self::Budget
                | Self::Operation
                | Self::Capabilities(_)
                | Self::Context(_)
        )
    }

    /// Returns whether the backend is at a limit of its load.
    pub(in crate::routing) fn is_full(self) -> bool {
        matches!(
            self,
            Self::Full { .. }
                | Self::ModelFull { .. }
                | Self::Backlog { .. }
                | Self::Batch { .. }
                | Self::Kept
                | Self::NotCached
        )
    }

    /// Returns the reason for people.
    pub(in crate::routing) fn to_text(self, input: &RouteInput<'_>) -> String {
        match self {
            Self::Zone(zone) => {
                let zones = &input.fleet.zones;
                let admitted: Vec<&str> = zones.names_in(input.policy.restriction.zones).collect();
                format!("zone {} is not one of {}", zones.name(zone), admitted.join(", "))
            }
            Self::Tier(tier) => format!(
                "tier {} is below {}",
                tier.number(),
                input.policy.restriction.preferred_tier.number()
            ),
            Self::Budget => "costs money, and a budget of the request is spent".to_owned(),
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
                "fails more than other backends of the model, which are preferred".to_owned()
            }
            Self::Frozen => "its requests make no progress".to_owned(),
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
            Self::Kept => {
                "keeps the room that is left for keys that hold less than their share".to_owned()
            }
            Self::NotCached => {
                "would compute the prompt again, for a key that holds over twice the mean of the others"
                    .to_owned()
            }
            Self::Quality => "is beyond the bounds of the request's policy for quality".to_owned(),
            Self::Telemetry => "telemetry is stale while another backend's is fresh".to_owned(),
            Self::Slower => {
                "a response takes over 4 times as long there as on another backend".to_owned()
            }
        }
    }
}
