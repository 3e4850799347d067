//! The events of a request, for observers: the prefix index, the shadow, metrics, decision log, access
//! log, traces. The proxy reports them and imports none of the observers. Events borrow everything, so
//! that an observer that is not interested costs nothing.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::{Capture, EnsembleCall, Generation, Router, RoutingDecision, ScorerNames, Trace};
use crate::fleet::{BackendId, Outcome, Topology};
use crate::prefix::Chain;
use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, ErrorCode, Operation, TraceContext};
use penstock_predict::Prediction;
use penstock_scan::{RequestProfile, Usage};

/// A decision that is acted on.
#[derive(Debug, Clone, Copy)]
pub struct Routed<'a> {
    /// When.
    pub at: Timestamp,
    /// Which request.
    pub request_id: &'a str,
    /// What the request needs.
    pub request: &'a RequestProfile,
    /// Its header fields.
    pub headers: &'a HeaderMap,
    /// The name of its client key.
    pub key: Option<&'a str>,
    /// Its body; `None` once it has been released.
    pub body: Option<&'a Bytes>,
    /// The requested model.
    pub requested_model: &'a str,
    /// Where it goes.
    pub decision: &'a RoutingDecision,
    /// The configuration it was decided by.
    pub generation: &'a Generation,
    /// The fleet the decision was made on.
    pub fleet: &'a Arc<Topology>,
    /// The prompt in blocks, where the strategy reads it.
    pub prompt: Option<&'a Chain>,
    /// What the decision read, where that was recorded. One observer may keep it, and takes it out
    /// instead of copying it.
    pub trace: Option<&'a RefCell<Trace>>,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Messages that were dropped to fit a context.
    pub dropped_messages: Option<u32>,
    /// The call that it is of an ensemble.
    pub ensemble: Option<EnsembleCall>,
    /// The names and weights of the decision's scores.
    pub scorer_names: ScorerNames,
    /// What the decision read, where that is captured.
    pub captured: Option<&'a Capture>,
}

/// The end of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptEnded<'a> {
    /// Where it went.
    pub backend: BackendId,
    /// What that is called.
    pub name: &'a str,
    /// What its engine is called in metrics and traces.
    pub provider: &'a str,
    /// Its host and port.
    pub server: (&'a str, u16),
    /// 1 for the first attempt.
    pub number: u32,
    /// The trace of the request and the attempt's own span in it.
    pub trace: Option<(TraceContext, u64)>,
    /// The decision it followed.
    pub decision: &'a RoutingDecision,
    /// The router that made it.
    pub router: &'a Router,
    /// The fleet it was made on.
    pub fleet: &'a Topology,
    /// Whether its response goes to the client, complete or not. Otherwise not a byte of it does.
    pub is_relayed: bool,
    /// Whether the request was moved elsewhere before its first token.
    pub is_moved: bool,
    /// Tokens the engine counted.
    pub usage: Option<Usage>,
    /// What health and breaker learn from it.
    pub outcome: Outcome,
    /// The request's operation and what it became, where the backend does not serve it.
    pub conversion: Option<(Operation, Operation)>,
    /// Why it failed, when it did.
    pub code: Option<ErrorCode>,
    /// How long it took.
    pub took: Duration,
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestOutcome<'a> {
    /// The operation; `None` for paths that are not operations.
    pub operation: Option<Operation>,
    /// The model it was served as; `None` when the model is not one the fleet knows.
    pub model: Option<&'a str>,
    /// The backend that answered.
    pub backend: Option<(BackendId, &'a str)>,
    /// The status the client got; 499 when it left before one.
    pub status: u16,
    /// The error code, if penstock made the response.
    pub code: Option<ErrorCode>,
    /// The class of the outcome.
    pub outcome: Outcome,
    /// Whether the client requested a stream.
    pub is_streaming: bool,
    /// Whether a fallback answered.
    pub is_fallback: bool,
    /// Attempts made.
    pub attempts: u32,
    /// Time from arrival to the first token of a stream, or to the head of a whole response.
    pub first_token: Option<Duration>,
    /// Time from arrival to the end.
    pub took: Duration,
    /// Tokens the engine counted.
    pub usage: Option<Usage>,
    /// Tokens of the prompt the engine was believed to have cached; only beside its own count.
    pub expected_cached: Option<u32>,
    /// How long it waited in a queue, if it did.
    pub queue_wait: Option<Duration>,
    /// Messages that were dropped to fit a context.
    pub dropped_messages: Option<u32>,
    /// What was taken out of it because a model cannot do it.
    pub retried_without: Capabilities,
    /// Events that carried tokens, counted in the stream.
    pub token_events: u32,
    /// What nothing is counted by.
    pub about: About<'a>,
}

/// Who asked, and for what exactly: for logs and traces. Most of it is the client's own words.
#[derive(Debug, Clone, Copy, Default)]
pub struct About<'a> {
    /// The request's id.
    pub request_id: &'a str,
    /// What the backend that responded calls it, if it has a name for it.
    pub upstream_request_id: Option<&'a str>,
    /// The name of the client's key.
    pub key: Option<&'a str>,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The method.
    pub method: &'a str,
    /// The path without its query, in which some clients send keys.
    pub path: &'a str,
    /// The requested model.
    pub requested_model: Option<&'a str>,
    /// What the engine that answered is called in metrics and traces.
    pub provider: Option<&'static str>,
    /// The estimated length of all that the engine reads.
    pub prompt_tokens: Option<TokenCount>,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the response body.
    pub bytes_out: u64,
    /// Where the request stands in a trace.
    pub trace: Option<TraceContext>,
    /// The call that it is of an ensemble.
    pub ensemble: Option<EnsembleCall>,
    /// What a replay needs, where it is logged.
    pub replay: Option<&'a ReplayFields>,
    /// What was predicted of the last attempt when it started.
    pub prediction: Option<Prediction>,
}

/// What a replay of a request needs besides its times and tokens. Hashes are salted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayFields {
    /// The client's limit on the tokens of the response.
    pub max_tokens: Option<TokenCount>,
    /// The session it names.
    pub session: Option<u64>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The prompt's full blocks.
    pub blocks: Vec<u64>,
}

/// Observes requests. Must not block.
pub trait RequestObserver: Send + Sync {
    /// A decision was made and is acted on. Runs before the next request is decided.
    fn routed(&self, _event: &Routed<'_>) {}
    /// The first token of a stream went to the client.
    fn first_token(&self, _backend: BackendId, _took: Duration) {}
    /// So many more tokens went to the client.
    fn progress(&self, _backend: BackendId, _tokens: u32) {}
    /// An attempt ended.
    fn attempt_ended(&self, _event: &AttemptEnded<'_>) {}
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

    fn attempt_ended(&self, event: &AttemptEnded<'_>) {
        T::attempt_ended(self, event);
    }

    fn finished(&self, outcome: &RequestOutcome<'_>) {
        T::finished(self, outcome);
    }
}
