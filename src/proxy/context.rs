//! What a request carries through its life, and what is recorded for its observers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;

use super::auth::KeyOwner;
use super::conversion::Conversion;
use super::named_resource::names_resource;
use super::rate_hold::RateHold;
use super::reserved::Reserved;
use super::shift_state::ContextShift;
use crate::admission::queue::Charge;
use crate::api::{
    BodyFormat, Capabilities, Dialect, ErrorCode, Operation, Operations, StreamFraming,
    TraceContext,
};
use crate::downstream::body::{BodyLength, HeldBody};
use crate::downstream::client::Client;
use crate::downstream::counted::Counted;
use crate::downstream::head_check::LoggedRequest;
use crate::fleet::{BackendId, BackendSet, Outcome, Requester, Serving, Topology};
use crate::predict::Prediction;
use crate::routing::RoutingDecision;
use crate::routing::{EnsembleCall, Generation, ReplayFields, SessionIds, SplitPoint};
use crate::scan::{RequestProfile, ScanOptions, UsageBounds, is_switched_off, scan};
use crate::scoring::Objectives;
use crate::units::{Timestamp, TokenCount};
use crate::upstream::response_monitor::ResponseMonitor;

/// The state of one request.
pub struct RequestContext {
    pub(crate) generation: Arc<Generation>,
    pub(crate) arrived_at: Timestamp,
    pub(crate) request_id: HeaderValue,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) dialect: Dialect,
    pub(crate) operation: Option<Operation>,
    /// Position of the client's key in the configuration.
    pub(crate) key: Option<usize>,
    pub(crate) client: Option<Client>,
    /// The client behind trusted proxies; `None` over a Unix socket.
    pub(crate) client_address: Option<IpAddr>,
    /// How the body is framed; Pingora is made to believe that there is none.
    pub(crate) body_length: BodyLength,
    pub(crate) body_is_read: bool,
    /// Identifies the client, its credential and its prompt to circuit breakers and cooldowns.
    pub(crate) requester: Requester,
    /// The client's `Origin`, when CORS allows it to read the response.
    pub(crate) cors_origin: Option<HeaderValue>,
    /// Its part of the client's limits.
    pub(crate) rate: RateHold,
    pub(crate) record: RequestRecord,
    pub(crate) _counted: Counted,
}

/// How a request ended, for the caller that owns the session.
pub(crate) type Served = pingora::Result<()>;

impl RequestContext {
    /// Ends a request whose client has left with its whole response.
    pub(crate) fn left_after_end(&mut self) -> Served {
        let gone = self.client_gone();
        self.record.outcome = None;
        gone
    }

    /// Ends a request whose client has left: there is no reader for a response.
    pub(crate) fn client_gone(&mut self) -> Served {
        self.record.outcome = Some(Outcome::Cancel);
        if self.record.status == 0 {
            self.record.status = 499;
        }
        pingora::Error::e_explain(pingora::ErrorType::ConnectionClosed, "the client left")
    }

    /// Whose the responses are that are stored for it.
    pub(crate) fn key_owner(&self) -> KeyOwner {
        let keys = &self.generation.config.auth.keys;
        let key = self.key.and_then(|position| keys.get(position));
        key.map_or(KeyOwner::ANYONE, |key| KeyOwner::of(&key.name))
    }

    /// The name of the client's key.
    pub(crate) fn key_name(&self) -> Option<&str> {
        let keys = &self.generation.config.auth.keys;
        self.key.and_then(|position| keys.get(position)).map(|key| &*key.name)
    }

    /// The request id as text.
    pub(crate) fn request_id(&self) -> &str {
        let id = self.request_id.to_str();
        debug_assert!(id.is_ok(), "request ids are made of visible ASCII");
        id.unwrap_or("-")
    }
}

/// What observers get when the request ends, gathered on the way.
#[derive(Default)]
pub(crate) struct RequestRecord {
    pub(crate) is_streaming: bool,
    /// Whether the request unloads its model.
    pub(crate) unloads_model: bool,
    /// The requested model, as the client wrote it.
    pub(crate) requested_model: Option<Arc<str>>,
    pub(crate) model: Option<Box<str>>,
    pub(crate) backend: Option<(BackendId, Box<str>)>,
    pub(crate) provider: Option<&'static str>,
    /// What the backend that responded calls the request.
    pub(crate) upstream_request_id: Option<HeaderValue>,
    pub(crate) status: u16,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) is_fallback: bool,
    pub(crate) attempts: u32,
    /// Whether it was moved from one backend to another before its first token.
    pub(crate) is_moved: bool,
    /// What was predicted of the last attempt.
    pub(crate) prediction: Option<Prediction>,
    pub(crate) first_token: Option<Timestamp>,
    pub(crate) usage: Option<crate::scan::Usage>,
    pub(crate) token_events: u32,
    /// Prompt tokens expected in the engine's prefix cache; only where the engine reports how many it
    /// had.
    pub(crate) expected_cached: Option<u32>,
    pub(crate) prompt_tokens: Option<TokenCount>,
    /// How long it waited in queues.
    pub(crate) queue_wait: Option<Duration>,
    /// What its owner was charged for it when it left a queue for a backend.
    pub(crate) charge: Option<Box<ModelCharge>>,
    /// When it has waited in queues for as long as it may, once it has waited.
    pub(crate) waits_until: Option<Timestamp>,
    /// The attempts that a backend refused as busy, where requests may wait for another: they are no retries.
    pub(crate) refusals: u32,
    /// The connections that were lost although the backend may have read the request.
    pub(crate) lost_connections: u32,
    /// Whether its client got the head of a stream while it waited in a queue.
    pub(crate) is_kept_alive: bool,
    /// Messages that were dropped to fit a context.
    pub(crate) dropped_messages: Option<u32>,
    /// The call that it is of an ensemble.
    pub(crate) ensemble: Option<EnsembleCall>,
    /// What the final call of an ensemble is made of.
    pub(crate) ensemble_parts: Option<EnsembleParts>,
    /// What was taken out of the request because a model cannot do it.
    pub(crate) retried_without: Capabilities,
    /// Bytes of the request's body.
    pub(crate) bytes_in: usize,
    /// What a replay needs, where it is logged.
    pub(crate) replay: Option<Box<ReplayFields>>,
    /// Method and path of a refused head, which Pingora has not seen.
    pub(crate) refused: Option<Box<LoggedRequest>>,
}

/// What an owner was charged for a request in the queue of a model.
pub(crate) struct ModelCharge {
    pub(crate) model: Box<str>,
    pub(crate) charge: Charge,
}

/// What the final call of an ensemble is made of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EnsembleParts {
    pub(crate) drafts: usize,
    pub(crate) critiques: usize,
    /// Tokens of the calls before the final one.
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

/// A request that has been read and scanned.
pub(crate) struct ScannedRequest {
    pub(crate) profile: RequestProfile,
    /// The requested model, decoded.
    pub(crate) model: Arc<str>,
    /// Whether a body without a model gets its name.
    pub(crate) inserts_model: bool,
    /// Whether the query names the model, and the body does not.
    pub(crate) is_model_in_query: bool,
    /// The body; released once a response has started.
    pub(crate) body: Option<HeldBody>,
    pub(crate) fleet: Arc<Topology>,
    pub(crate) tried: BackendSet,
    /// Whether it may go to a backend in cooldown to probe it.
    pub(crate) may_probe: bool,
    /// The session that it names, where decisions read it.
    pub(crate) session: Option<SessionIds>,
    /// What decides its model where an alias leads to several.
    pub(crate) split: SplitPoint,
    pub(crate) decision: Option<RoutingDecision>,
    /// A permit that was taken where it is moved to.
    pub(crate) moved: Option<Box<Reserved>>,
    /// The backend that holds what the request continues; the first attempt goes there if it can.
    pub(crate) preferred: Option<BackendId>,
    /// The id of the conversation that it belongs to.
    pub(crate) conversation: Option<Box<[u8]>>,
    /// Whether the engine keeps what it makes, under an id in its response.
    pub(crate) makes_stored: bool,
    /// The request as backends get it that do not serve its operation.
    pub(crate) conversion: Option<Box<Conversion>>,
    /// Whether its stream is to end with usage that the client did not request.
    pub(crate) adds_usage: bool,
    /// The protocol that the client asks to switch to (`Upgrade`).
    pub(crate) upgrade: Option<HeaderValue>,
    /// How it is shortened, where it may be.
    pub(crate) shift: Option<Box<ContextShift>>,
    /// When it ends, whatever the timeouts allow.
    pub(crate) deadline: Option<Timestamp>,
    /// What its client wants.
    pub(crate) objectives: Objectives,
}

impl ScannedRequest {
    /// A request that is forwarded unread, for a backend rather than a model.
    pub(crate) fn direct(
        ctx: &RequestContext,
        operation: Operation,
        fleet: Arc<Topology>,
        body: HeldBody,
    ) -> Self {
        Self {
            profile: RequestProfile::opaque(operation, ctx.arrived_at),
            model: Arc::from(""),
            inserts_model: false,
            is_model_in_query: false,
            body: Some(body),
            fleet,
            tried: BackendSet::default(),
            may_probe: true,
            split: SplitPoint::default(),
            session: None,
            decision: None,
            moved: None,
            preferred: None,
            conversation: None,
            makes_stored: false,
            conversion: None,
            adds_usage: false,
            upgrade: None,
            shift: None,
            deadline: None,
            objectives: Objectives::default(),
        }
    }

    /// Gives it another body, which has its own spans and estimates. The conversion of the old one is dropped.
    /// `None` when it cannot be read.
    pub(crate) fn replace_body(&mut self, ctx: &RequestContext, bytes: Vec<u8>) -> Option<()> {
        let body = self.body.as_mut()?;
        let estimate = ctx.generation.config.routing.token_estimate;
        let options = ScanOptions { estimate, arrived_at: ctx.arrived_at };
        let scanned = scan(self.profile.operation, None, &bytes, options);
        debug_assert!(scanned.is_ok(), "a body without some of its parts is still one");
        self.profile = scanned.ok()?;
        body.bytes = Bytes::from(bytes);
        self.conversion = None;
        Some(())
    }

    /// What watches the response, which is one of `operation`.
    pub(crate) fn monitor(
        &self,
        operation: Operation,
        stream: Option<StreamFraming>,
    ) -> ResponseMonitor {
        let serving = self.decision.as_ref().and_then(|decision| decision.serving(&self.fleet));
        let context = serving.and_then(|serving| serving.context_length);
        let bounds = UsageBounds::of(&self.profile, context);
        let mut monitor = ResponseMonitor::new(operation, stream, bounds);
        if self.shift.is_some() {
            monitor.watch_length();
        }
        if self.makes_stored {
            monitor.watch_id();
        }
        monitor
    }

    /// Learns from the end of a whole response, where the request may be shortened.
    pub(crate) fn learn_end(&self, serving: &Serving, monitor: &ResponseMonitor) {
        if let Some(shift) = &self.shift {
            shift.learn_end(&self.profile, serving, monitor);
        }
    }

    /// Whether the request names something that a backend may lack: a stored response, a file, a container. Where it only
    /// looks so, that does no harm: a 404 teaches less.
    pub(crate) fn names_resource(&self) -> bool {
        names_resource(self.body())
    }

    /// Whether the request may be sent again after it was lost: it has no effect beside its response.
    pub(crate) fn is_repeatable(&self) -> bool {
        let operation = self.profile.operation;
        if operation == Operation::Responses {
            // Stored unless it says otherwise.
            return is_switched_off(self.body(), b"store");
        }
        // Uploads are no JSON.
        let has_effects = operation.row().body != BodyFormat::Json
            || Operations::of(&[
                Operation::Passthrough,
                Operation::Speech,
                Operation::ImageGenerations,
            ])
            .contains(operation);
        !has_effects && self.profile.residency_change.is_none()
    }

    /// The body's bytes; empty once it has been released.
    pub(crate) fn body(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |held| &held.bytes)
    }
}
