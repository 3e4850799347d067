//! What happens to a request, told to whoever wants to know: metrics, the decision log, later the
//! ledger and the access log. The proxy reports and imports none of them.

use std::sync::Arc;
use std::time::Duration;

use super::RoutingDecision;
use crate::api::{ErrorCode, Operation};
use crate::registry::{BackendId, FleetSnapshot, Outcome};
use crate::scan::{RequestProfile, Usage};
use crate::units::Timestamp;

/// A decision that is acted on.
#[derive(Debug, Clone, Copy)]
pub struct Routed<'a> {
    /// When.
    pub at: Timestamp,
    /// Which request.
    pub request_id: &'a str,
    /// What the request needs.
    pub request: &'a RequestProfile,
    /// The model asked for.
    pub asked: &'a str,
    /// Where it goes.
    pub decision: &'a RoutingDecision,
    /// The fleet the decision was made on.
    pub fleet: &'a FleetSnapshot,
    /// 1 for the first attempt.
    pub attempt: u32,
}

/// The end of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptEnded {
    /// Where it went.
    pub backend: BackendId,
    /// What health and breaker learn from it.
    pub outcome: Outcome,
    /// Why it failed, when it did.
    pub code: Option<ErrorCode>,
    /// How long it took.
    pub took: Duration,
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestOutcome<'a> {
    /// What was asked for; `None` for paths that are not operations.
    pub operation: Option<Operation>,
    /// The model it was served as; `None` when the model is not one the fleet knows.
    pub model: Option<&'a str>,
    /// The backend that answered.
    pub backend: Option<(BackendId, &'a str)>,
    /// The status the client got; 499 when it left before one.
    pub status: u16,
    /// The error penstock made, if the answer was its own.
    pub code: Option<ErrorCode>,
    /// The class of the outcome.
    pub outcome: Outcome,
    /// Whether a stream was asked for.
    pub is_streaming: bool,
    /// Whether a fallback answered.
    pub is_fallback: bool,
    /// Attempts made.
    pub attempts: u32,
    /// Time from arrival to the first token of a stream, or to the answer's head.
    pub first_token: Option<Duration>,
    /// Time from arrival to the end.
    pub took: Duration,
    /// Tokens the engine counted.
    pub usage: Option<Usage>,
    /// Events that carried tokens, counted in the stream.
    pub token_events: u32,
}

/// Somebody who is told. Nothing here may block.
pub trait RequestObserver: Send + Sync {
    /// A decision was made and is acted on. Runs before the next request is decided.
    fn routed(&self, _event: &Routed<'_>) {}
    /// The first token of a stream went to the client.
    fn first_token(&self, _backend: BackendId, _took: Duration) {}
    /// So many more tokens went to the client.
    fn progress(&self, _backend: BackendId, _tokens: u32) {}
    /// An attempt ended.
    fn attempt_ended(&self, _event: &AttemptEnded) {}
    /// The request ended.
    fn finished(&self, _outcome: &RequestOutcome<'_>) {}
}

impl<T: RequestObserver> RequestObserver for Arc<T> {
    fn routed(&self, event: &Routed<'_>) {
        T::routed(self, event);
    }

    fn first_token(&self, backend: BackendId, took: Duration) {
        T::first_token(self, backend, took);
    }

    fn progress(&self, backend: BackendId, tokens: u32) {
        T::progress(self, backend, tokens);
    }

    fn attempt_ended(&self, event: &AttemptEnded) {
        T::attempt_ended(self, event);
    }

    fn finished(&self, outcome: &RequestOutcome<'_>) {
        T::finished(self, outcome);
    }
}
