//! How an attempt ended, classified by what a backend's circuit breaker, cooldown and latency may
//! learn from it.

use std::time::Duration;

use super::cooldown::CooldownScope;
use super::load::Probe;
use super::requester::Requester;
use crate::units::Timestamp;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A complete response.
    Ok,
    /// A 4xx: the client's mistake.
    Client,
    /// A 429 or 503: the backend goes into cooldown; the breaker counts it as reached.
    Busy {
        /// How long the cooldown lasts.
        cooldown: Duration,
        /// 429 or 503.
        status: u16,
    },
    /// The backend does no work for penstock's key, or does not have the model: a part of it pauses, for longer each
    /// time.
    Refused {
        /// What pauses.
        part: RefusedPart,
        /// The status that it responded with.
        status: u16,
    },
    /// No connection.
    Unreachable,
    /// A 5xx, a broken stream, a response that is not HTTP, silence until a timeout.
    Fault,
    /// The client disconnected: nothing is learned.
    Cancel,
    /// This machine has run out of descriptors, ports or memory: nothing is learned.
    Shortage,
}

impl Outcome {
    /// The name in metrics and `/decisions`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Client => "client",
            Self::Busy { .. } | Self::Shortage => "busy",
            Self::Refused { .. } | Self::Unreachable | Self::Fault => "fault",
            Self::Cancel => "cancel",
        }
    }
}

/// The part of a backend that a refusal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedPart {
    /// All of it: it does not accept penstock's key.
    Backend,
    /// One model, which it does not have.
    Model,
}

/// Whose attempt had an outcome, and when.
#[derive(Debug, Clone, Copy)]
pub struct OutcomeSource {
    /// When the attempt ended.
    pub at: Timestamp,
    /// When it started.
    pub started: Timestamp,
    /// Who sent the request.
    pub requester: Requester,
    /// What its cooldown covers, if it was refused.
    pub scope: CooldownScope,
    /// The probe slot the attempt held.
    pub probe: Probe,
}
