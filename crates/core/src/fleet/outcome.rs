//! The end of an attempt, classified by its lesson for a backend's circuit breaker, cooldown and
//! latency; and the sender of the request, as failure handling and fairness distinguish senders.

use std::time::Duration;

use penstock_api::units::Timestamp;

use super::cooldown::CooldownScope;
use super::load::Probe;
use super::owner_shares::Owner;

/// Hashes that identify the sender of a request; equal senders have equal hashes within one
/// process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requester {
    /// The client: its key, or else its address.
    pub client: u64,
    /// The credential that backends with `authorization: pass` receive; never 0, also without one.
    pub credential: u64,
    /// The owner whose turn the request takes in a queue.
    pub owner: Owner,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// A success without any output. The prompt or the backend may be the cause, so it is judged
    /// like a refusal.
    Empty,
    /// A 4xx: the client's mistake.
    Client,
    /// A 429 or 503: the backend goes into cooldown; the breaker counts it as reached.
    Busy {
        cooldown: Duration,
        /// 429 or 503.
        status: u16,
    },
    /// A refusal of penstock's key, or of a model that the backend does not have. A part of the
    /// backend pauses, for longer each time.
    Refused {
        /// The part that pauses.
        part: RefusedPart,
        /// The status of the response.
        status: u16,
    },
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
            Self::Empty => "empty",
            Self::Client => "client",
            Self::Busy { .. } | Self::Shortage => "busy",
            Self::Refused { .. } | Self::Unreachable | Self::Fault => "fault",
            Self::Cancel => "cancel",
        }
    }

    /// Returns whether it speaks against the backend only if others do better: a 4xx, or a success
    /// without output.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self, Self::Client | Self::Empty)
    }
}

/// The part of a backend that a refusal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedPart {
    /// All of it: it does not accept penstock's key.
    Backend,
    /// One model, which the backend does not have.
    Model,
}

/// The context of an outcome: its times, its sender and its probe.
#[derive(Debug, Clone, Copy)]
pub struct OutcomeSource {
    /// The end of the attempt.
    pub at: Timestamp,
    /// The start of the attempt.
    pub started: Timestamp,
    /// The sender of the request.
    pub requester: Requester,
    /// The scope of its cooldown, if it was refused.
    pub scope: CooldownScope,
    /// The probe slot the attempt held.
    pub probe: Probe,
}
