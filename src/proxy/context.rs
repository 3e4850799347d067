//! The state that a request carries through its life, and the record for its observers.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use penstock_api::units::Timestamp;
use penstock_api::{BodyFormat, Dialect, Operation, Operations, StreamFraming, TraceContext};
use penstock_core::admission::queue::Charge;
use penstock_core::clients::ClientIdentity;
use penstock_core::fleet::{Backend, BackendId, BackendSet, Outcome, Requester, Serving, Topology};
use penstock_core::routing::{
    Generation, PolicyScope, RequestRecord, RoutingDecision, SessionIds, SplitPoint,
};
use penstock_scan::{RequestProfile, ScanOptions, UsageBounds, is_switched_off, scan};
use penstock_scoring::Objectives;

use crate::downstream::body::{BodyLength, HeldBody};
use crate::downstream::client::Client;
use crate::downstream::counted::Counted;
use crate::downstream::head_check::LoggedRequest;
use crate::proxy::auth::KeyOwner;
use crate::proxy::conversion::Conversion;
use crate::proxy::named_resource::names_resource;
use crate::proxy::policies;
use crate::proxy::rate_hold::RateHold;
use crate::proxy::reserved::Reserved;
use crate::proxy::shift_state::ContextShift;
use crate::upstream::response_monitor::ResponseMonitor;

/// The state of one request.
pub struct RequestContext {
    pub(crate) generation: Arc<Generation>,
    pub(crate) arrived_at: Timestamp,
    pub(crate) request_id: HeaderValue,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) dialect: Dialect,
    pub(crate) operation: Option<Operation>,
    /// The client that its key names; `None` where no keys are needed.
    pub(crate) identity: Option<Arc<ClientIdentity>>,
    pub(crate) client: Option<Client>,
    /// The client behind trusted proxies; `None` over a Unix socket.
    pub(crate) client_address: Option<IpAddr>,
    /// The framing of the body; Pingora is made to believe that there is none.
    pub(crate) body_length: BodyLength,
    pub(crate) body_is_read: bool,
    /// Identifies the client, its credential and its prompt to circuit breakers and cooldowns.
    pub(crate) requester: Requester,
    /// The client's `Origin`, if CORS allows it to read the response.
    pub(crate) cors_origin: Option<HeaderValue>,
    /// The request's part of the client's limits.
    pub(crate) rate: RateHold,
    /// The policies that the request is under, once they are known. A call of an ensemble has those
    /// of its client's request from the start.
    pub(crate) policy: Option<PolicyScope>,
    /// The facts for the observers, gathered on the way.
    pub(crate) record: RequestRecord,
    /// The charge to the request's owner when it left a queue for a backend.
    pub(crate) charge: Option<Box<ModelCharge>>,
    /// Method and path of a refused head, which Pingora has not seen.
    pub(crate) refused: Option<Box<LoggedRequest>>,
    pub(crate) _counted: Counted,
}

/// The end of a request, for the caller that owns the session.
pub(crate) type Served = pingora::Result<()>;

impl RequestContext {
    /// Ends a request whose client has left with its whole response.
    pub(crate) fn left_after_end(&mut self) -> Served {
        let gone = self.client_gone();
        self.record.response.outcome = None;
        gone
    }

    /// Ends a request whose client has left: there is no reader for a response.
    pub(crate) fn client_gone(&mut self) -> Served {
        self.record.response.outcome = Some(Outcome::Cancel);
        if self.record.response.status == 0 {
            self.record.response.status = 499;
        }
        pingora::Error::e_explain(pingora::ErrorType::ConnectionClosed, "the client left")
    }

    /// Records the backend whose response the client gets.
    pub(crate) fn record_backend(&mut self, serving: &Serving, backend: &Backend) {
        self.record.routing.provider = Some(backend.config.engine.provider());
        self.record.routing.backend = Some((serving.id, serving.state.name.clone()));
    }

    /// The owner of responses that this request stores.
    pub(crate) fn key_owner(&self) -> KeyOwner {
        self.identity.as_ref().map_or(KeyOwner::ANYONE, |client| KeyOwner::of(&client.id))
    }

    /// The client's name, for logs and metrics.
    pub(crate) fn client_name(&self) -> Option<&str> {
        self.identity.as_ref().map(|client| &*client.name)
    }

    /// The client's id, which owns its sessions and what it uses.
    pub(crate) fn client_id(&self) -> Option<&str> {
        self.identity.as_ref().map(|client| &*client.id)
    }

    /// Returns whether the client may use a model by that name.
    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.identity.as_ref().is_none_or(|client| client.may_use(model))
    }

    pub(crate) fn request_id(&self) -> &str {
        let id = self.request_id.to_str();
        debug_assert!(id.is_ok(), "request ids are made of visible ASCII");
        id.unwrap_or("-")
    }
}

/// The charge to an owner for a request in the queue of a model.
pub(crate) struct ModelCharge {
    pub(crate) model: Box<str>,
    pub(crate) charge: Charge,
}

/// The kinds of a request that need more than a plain one: a set of positions in the table of
/// `rewrite`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RewriteKinds(pub(crate) u8);

/// A request that has been read and scanned.
pub(crate) struct ScannedRequest {
    pub(crate) profile: RequestProfile,
    /// The requested model, decoded.
    pub(crate) model: Arc<str>,
    /// True if the model's name is inserted into a body without one.
    pub(crate) inserts_model: bool,
    /// True if the query names the model, and the body does not.
    pub(crate) is_model_in_query: bool,
    /// The body; released once a response has started.
    pub(crate) body: Option<HeldBody>,
    pub(crate) fleet: Arc<Topology>,
    pub(crate) tried: BackendSet,
    /// True if the request may go to a backend in cooldown to probe it.
    pub(crate) may_probe: bool,
    /// The session that the request names, if decisions read it.
    pub(crate) session: Option<SessionIds>,
    /// The value that selects the model of an alias that leads to several.
    pub(crate) split: SplitPoint,
    pub(crate) decision: Option<RoutingDecision>,
    /// The permit on the backend that the request is moved to.
    pub(crate) moved: Option<Box<Reserved>>,
    /// The backend that holds what the request continues; the first attempt goes there if it can.
    pub(crate) preferred: Option<BackendId>,
    /// The id of the request's conversation.
    pub(crate) conversation: Option<Box<[u8]>>,
    /// True if the engine keeps what the request makes, under an id in its response.
    pub(crate) makes_stored: bool,
    /// The request as converted for backends that do not serve its operation.
    pub(crate) conversion: Option<Box<Conversion>>,
    /// True if the stream is to end with usage that the client did not request.
    pub(crate) adds_usage: bool,
    /// The protocol that the client requests to switch to (`Upgrade`).
    pub(crate) upgrade: Option<HeaderValue>,
    /// The rules for shortening the request, if it may be shortened.
    pub(crate) shift: Option<Box<ContextShift>>,
    /// The kinds of request that need more than a plain one, of which this is one.
    pub(crate) kinds: RewriteKinds,
    /// The time by which the request must end, whatever the timeouts allow.
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) objectives: Objectives,
    pub(crate) policy: PolicyScope,
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
            kinds: RewriteKinds::default(),
            deadline: None,
            objectives: Objectives::default(),
            policy: policies::of_unread(ctx),
        }
    }

    /// Replaces the body, with its spans and estimates, and drops the conversion of the old one.
    /// Returns `None` if the new body cannot be read.
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

    /// The monitor of the response, which is one of `operation`.
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

    /// Learns from the end of a whole response, if the request may be shortened.
    pub(crate) fn learn_end(&self, serving: &Serving, monitor: &ResponseMonitor) {
        if let Some(shift) = &self.shift {
            shift.learn_end(&self.profile, serving, monitor);
        }
    }

    /// Returns whether the request names something that a backend may lack: a stored response, a
    /// file, a container. A false match does no harm: a 404 only teaches less.
    pub(crate) fn names_resource(&self) -> bool {
        names_resource(self.body())
    }

    /// Returns whether the request may be sent again after it was lost: it has no effect beside its
    /// response.
    pub(crate) fn is_repeatable(&self) -> bool {
        let operation = self.profile.operation;
        if operation == Operation::Responses {
            // Responses are stored unless the request switches that off.
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
