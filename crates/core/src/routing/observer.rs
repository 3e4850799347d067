//! The events of a request, for observers: the prefix index, the shadow, metrics, decision log,
//! access log, traces. The proxy reports them and imports none of the observers. Events borrow
//! everything, so that an observer that ignores them costs nothing.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, Operation, TraceContext};
use penstock_scan::{RequestProfile, Usage};

use super::request_record::RequestRecord;
use super::{Capture, EnsembleCall, Generation, Router, RoutingDecision, ScorerNames, Trace};
use crate::fleet::{BackendId, Outcome, Topology};
use crate::prefix::Chain;

/// A decision that is acted on.
#[derive(Debug, Clone, Copy)]
pub struct Routed<'a> {
    /// The time of the decision.
    pub at: Timestamp,
    pub request_id: &'a str,
    /// The needs of the request.
    pub request: &'a RequestProfile,
    pub headers: &'a HeaderMap,
    /// The name of its client key.
    pub key: Option<&'a str>,
    /// Its body; `None` once released.
    pub body: Option<&'a Bytes>,
    pub requested_model: &'a str,
    pub decision: &'a RoutingDecision,
    /// The configuration of the decision.
    pub generation: &'a Generation,
    /// The fleet of the decision.
    pub fleet: &'a Arc<Topology>,
    /// The prompt in blocks, if the strategy reads it.
    pub prompt: Option<&'a Chain>,
    /// The readings of the decision, if recorded. One observer may take them instead of a copy.
    pub trace: Option<&'a RefCell<Trace>>,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Messages that were dropped to fit a context.
    pub dropped_messages: Option<u32>,
    pub ensemble: Option<EnsembleCall>,
    /// The names and weights of the decision's scores.
    pub scorer_names: ScorerNames,
    /// Everything that the decision read, if it is captured.
    pub captured: Option<&'a Capture>,
}

#[derive(Debug, Clone, Copy)]
pub struct AttemptEnded<'a> {
    /// The backend of the attempt.
    pub backend: BackendId,
    /// The name of the backend.
    pub name: &'a str,
    /// The name of its engine in metrics and traces.
    pub provider: &'a str,
    /// Its host and port.
    pub server: (&'a str, u16),
    /// 1 for the first attempt.
    pub number: u32,
    /// The trace of the request and the attempt's own span in it.
    pub trace: Option<(TraceContext, u64)>,
    pub decision: &'a RoutingDecision,
    /// The router that made it.
    pub router: &'a Router,
    /// The fleet it was made on.
    pub fleet: &'a Topology,
    /// True if its response goes to the client, complete or not; otherwise not a byte of it does.
    pub is_relayed: bool,
    /// True if the request was moved elsewhere before its first token.
    pub is_moved: bool,
    /// True if the first token of a stream has passed, or the head of a whole response.
    pub has_output: bool,
    /// Tokens the engine counted.
    pub usage: Option<Usage>,
    /// The outcome, for health and circuit breaker.
    pub outcome: Outcome,
    /// The request's operation and the one it was converted to, if the backend does not serve it.
    pub conversion: Option<(Operation, Operation)>,
    /// The code of its error, if it failed.
    pub code: Option<ErrorCode>,
    pub took: Duration,
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestOutcome<'a> {
    /// The facts about the request.
    pub record: &'a RequestRecord,
    /// The operation; `None` for paths that are not operations.
    pub operation: Option<Operation>,
    /// The class of the outcome.
    pub outcome: Outcome,
    /// Time from arrival to the first token of a stream, or to the head of a whole response.
    pub first_token: Option<Duration>,
    /// Time from arrival to the end.
    pub took: Duration,
    /// Details for logs and traces; no metric reads them.
    pub details: RequestDetails<'a>,
}

impl RequestOutcome<'_> {
    /// The model that the request was served as; `None` if the fleet does not know it.
    pub fn model(&self) -> Option<&str> {
        self.record.routing.model.as_deref()
    }

    /// The backend that responded, and its name.
    pub fn backend(&self) -> Option<(BackendId, &str)> {
        self.record.routing.backend.as_ref().map(|(id, name)| (*id, &**name))
    }

    /// The name of the backend that responded, or else of the one that the request was last sent
    /// to, for logs and traces.
    pub fn last_backend(&self) -> Option<&str> {
        let responded = self.backend().map(|(_, name)| name);
        responded.or(self.record.routing.attempted.as_deref())
    }
}

/// The client and the two heads, for logs and traces. Most of it is the client's own words.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestDetails<'a> {
    pub request_id: &'a str,
    /// The name of the client's key.
    pub key: Option<&'a str>,
    /// The name of the client in the ledger.
    pub account: Option<&'a str>,
    pub client: Option<IpAddr>,
    pub method: &'a str,
    /// The path without its query: some clients send keys in it.
    pub path: &'a str,
    /// Bytes of the response body.
    pub bytes_out: u64,
    /// The position of the request in a trace.
    pub trace: Option<TraceContext>,
}

/// Observes requests. Must not block.
pub trait RequestObserver: Send + Sync {
    /// A decision was made and is acted on. Runs before the next request is decided.
    fn routed(&self, _event: &Routed<'_>) {}
    /// The first token of a stream went to the client.
    fn first_token(&self, _backend: BackendId, _took: Duration) {}
    /// `tokens` more tokens went to the client.
    fn progress(&self, _backend: BackendId, _tokens: u32) {}
    fn attempt_ended(&self, _event: &AttemptEnded<'_>) {}
    fn finished(&self, _outcome: &RequestOutcome<'_>) {}
}
