//! How an attempt ended, classified by what a backend's circuit breaker, cooldown and latency may
//! learn from it.

use std::time::Duration;

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
    /// No connection, or silence until a timeout.
    Unreachable,
    /// A 5xx, a broken stream, a response that is not HTTP.
    Fault,
    /// The client disconnected: nothing is learned.
    Cancel,
}

impl Outcome {
    /// The name in metrics and `/decisions`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Client => "client",
            Self::Busy { .. } => "busy",
            Self::Unreachable | Self::Fault => "fault",
            Self::Cancel => "cancel",
        }
    }
}

/// Which client saw an outcome, and when.
#[derive(Debug, Clone, Copy)]
pub struct OutcomeSource {
    /// When the attempt ended.
    pub at: Timestamp,
    /// A hash of the client's key, or else of its address: one client alone never opens a breaker.
    pub client: u64,
    /// Whether the attempt held the breaker's probe slot.
    pub probe: bool,
}
