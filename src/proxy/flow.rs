//! The context of every step of a request: the data plane, the client's side, and the request's
//! state with its record. Reports its end to the observers (`routing::RequestObserver`): metrics,
//! logs, traces. The proxy imports none of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;
use penstock_api::units::Timestamp;
use penstock_api::{Dialect, ErrorCode, Operation, TraceContext};
use penstock_clock::now;
use penstock_core::admission::queue::Charge;
use penstock_core::clients::ClientIdentity;
use penstock_core::fleet::{Backend, Outcome, Requester, Serving};
use penstock_core::routing::{
    Generation, PolicyScope, RequestDetails, RequestOutcome, RequestRecord,
};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

use crate::auth::{KeyFailure, KeyOwner};
use crate::downstream::body::BodyLength;
use crate::downstream::client::Client;
use crate::downstream::counted::Counted;
use crate::downstream::head_check::LoggedRequest;
use crate::proxy::Proxy;
use crate::proxy::limit_holds::{RateHold, RequestBudget};
use crate::upstream::relay::ResponseSink;

/// A request on its way through the data plane.
pub(crate) struct Flow<'a> {
    pub(crate) proxy: &'a Proxy,
    pub(crate) client: ClientSide<'a>,
    pub(crate) ctx: &'a mut RequestContext,
}

impl<'a> Flow<'a> {
    /// The way of a call that an ensemble makes for this request: with its own state, and without a
    /// response to the client.
    pub(crate) fn of_call(&'a self, ctx: &'a mut RequestContext) -> Self {
        Self { proxy: self.proxy, client: ClientSide::Head(self.client.head()), ctx }
    }

    /// Reports the end of the request to the observers.
    pub(crate) fn report_end(&self) {
        let RequestContext { record, operation, arrived_at, .. } = &*self.ctx;
        let response = &record.response;
        let outcome = RequestOutcome {
            record,
            operation: *operation,
            outcome: response
                .outcome
                .unwrap_or_else(|| own_outcome(response.code, response.status)),
            first_token: response.first_token.map(|at| at.since(*arrived_at)),
            took: now().since(*arrived_at),
            details: details_of(self),
        };
        for observer in &self.proxy.observers {
            observer.finished(&outcome);
        }
    }
}

/// The client's side of a request: its head, and the way of its response. Another front door is
/// another variant.
pub(crate) enum ClientSide<'a> {
    /// A session of Pingora: HTTP/1.1, or HTTP/2 through the sessions of `downstream`.
    Session(&'a mut Session),
    /// The head alone: the response of a call of an ensemble does not go to the client.
    Head(&'a RequestHeader),
}

impl ClientSide<'_> {
    /// The head of the client's request.
    pub(crate) fn head(&self) -> &RequestHeader {
        match self {
            Self::Session(session) => session.req_header(),
            Self::Head(head) => head,
        }
    }

    /// The head, to change it before it is forwarded; `None` if nothing is forwarded from it.
    pub(crate) fn head_mut(&mut self) -> Option<&mut RequestHeader> {
        match self {
            Self::Session(session) => Some(session.req_header_mut()),
            Self::Head(_) => None,
        }
    }

    /// Lets the client send its body, which waits for that (`Expect: 100-continue`).
    ///
    /// # Errors
    /// When the client is gone.
    pub(crate) async fn write_continue(&mut self) -> pingora::Result<()> {
        match self {
            Self::Session(session) => session.as_downstream_mut().write_continue_response().await,
            Self::Head(_) => Ok(()),
        }
    }

    /// The number of bytes of the body that have been written.
    fn bytes_sent(&self) -> usize {
        match self {
            Self::Session(session) => session.as_downstream().body_bytes_sent(),
            Self::Head(_) => 0,
        }
    }

    /// Returns whether the response goes to the client.
    pub(crate) fn takes_response(&self) -> bool {
        matches!(self, Self::Session(_))
    }

    /// Closes the client's connection after the response.
    pub(crate) fn close_after(&mut self) {
        if let Self::Session(session) = self {
            session.set_keepalive(None);
        }
    }
}

impl ResponseSink for ClientSide<'_> {
    async fn write_head(&mut self, head: Box<ResponseHeader>) -> pingora::Result<()> {
        match self {
            Self::Session(session) => session.as_downstream_mut().write_response_header(head).await,
            Self::Head(_) => no_response(),
        }
    }

    async fn write_body(&mut self, part: Bytes, is_end: bool) -> pingora::Result<()> {
        match self {
            Self::Session(session) => {
                session.as_downstream_mut().write_response_body(part, is_end).await
            }
            Self::Head(_) => no_response(),
        }
    }
}

fn no_response() -> pingora::Result<()> {
    debug_assert!(false, "a call of an ensemble has no response for the client");
    pingora::Error::e_explain(pingora::ErrorType::WriteError, "there is no client to write to")
}

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
    /// The reason why its key is refused.
    pub(crate) key_failure: Option<KeyFailure>,
    pub(crate) client: Option<Client>,
    /// The client behind trusted proxies; `None` over a Unix socket.
    pub(crate) client_address: Option<IpAddr>,
    /// The framing of the body; Pingora is made to believe that there is none.
    pub(crate) body_length: BodyLength,
    pub(crate) body_is_read: bool,
    /// Identifies the client and its credential to circuit breakers, cooldowns and queues.
    pub(crate) requester: Requester,
    /// The client's `Origin`, if CORS allows it to read the response.
    pub(crate) cors_origin: Option<HeaderValue>,
    /// The request's part of the client's limits, if there are any.
    pub(crate) rate: Option<Box<RateHold>>,
    /// The money that the request has reserved, if there are budgets.
    pub(crate) budget: Option<Box<RequestBudget>>,
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
    /// A request that arrives now, with nothing else known of it.
    pub(crate) fn new(generation: Arc<Generation>, counted: Counted) -> Self {
        Self {
            generation,
            arrived_at: now(),
            request_id: HeaderValue::from_static("-"),
            trace: None,
            dialect: Dialect::OpenAi,
            operation: None,
            identity: None,
            key_failure: None,
            client: None,
            client_address: None,
            body_length: BodyLength::None,
            body_is_read: false,
            requester: Requester::default(),
            cors_origin: None,
            rate: None,
            policy: None,
            budget: None,
            record: RequestRecord::default(),
            charge: None,
            refused: None,
            _counted: counted,
        }
    }

    /// Ends a request whose client has left with its whole response.
    pub(crate) fn left_after_end(&mut self) -> Served {
        let gone = self.end_cancelled();
        // The client has all that it came for: its departure is no cancellation.
        self.record.response.outcome = None;
        gone
    }

    /// Ends a request whose client has left: there is no reader for a response.
    pub(crate) fn end_cancelled(&mut self) -> Served {
        self.record.response.outcome = Some(Outcome::Cancel);
        if self.record.response.status == 0 {
            // The status of nginx for this case: for logs and metrics, since no client is left to
            // get it.
            self.record.response.status = 499;
        }
        pingora::Error::e_explain(pingora::ErrorType::ConnectionClosed, "the client left")
    }

    /// Records the backend whose response the client gets.
    pub(crate) fn record_backend(&mut self, serving: &Serving, backend: &Backend) {
        self.record.routing.provider = Some(backend.config.engine.provider());
        self.record.routing.backend = Some((serving.id, serving.state.name.clone()));
        self.record.routing.price.clone_from(&serving.price);
    }

    /// Returns whether the rate of the client's requests or tokens is limited.
    pub(crate) fn has_rate_limits(&self) -> bool {
        let config = &self.generation.config;
        let client = self.identity.as_ref();
        client.is_some_and(|client| !client.limits(&config.auth).is_unlimited())
            || (self.client_address.is_some() && !config.limits.per_client.is_unlimited())
    }

    /// Returns whether the request holds a part of its client's limits or budgets.
    pub(crate) fn holds_limits(&self) -> bool {
        self.rate.is_some() || self.budget.is_some()
    }

    /// Returns whether the client's key lists the models that it may use.
    pub(crate) fn is_limited_to_models(&self) -> bool {
        self.identity.as_ref().is_some_and(|client| !client.models.is_empty())
    }

    /// Returns whether there are policies, or zones that the client may not leave.
    pub(crate) fn has_policies(&self) -> bool {
        !self.generation.router.policies.is_empty()
            || self.identity.as_ref().is_some_and(|client| !client.zones.is_empty())
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
    /// True once the expected cost was replaced by the actual one.
    is_settled: AtomicBool,
}

impl ModelCharge {
    pub(crate) fn new(model: Box<str>, charge: Charge) -> Self {
        Self { model, charge, is_settled: AtomicBool::new(false) }
    }

    /// Marks it as settled; returns false if it was settled before.
    pub(crate) fn mark_settled(&self) -> bool {
        !self.is_settled.swap(true, Ordering::Relaxed)
    }
}

/// The details for logs and traces.
fn details_of<'a>(flow: &'a Flow<'_>) -> RequestDetails<'a> {
    let head = flow.client.head();
    // Pingora only sees a placeholder when the head was refused.
    let (method, path) = match flow.ctx.refused.as_deref() {
        Some(refused) => (refused.method.as_str(), refused.path.as_str()),
        None => (head.method.as_str(), head.uri.path()),
    };
    RequestDetails {
        request_id: flow.ctx.request_id(),
        key: flow.ctx.client_name(),
        account: flow.ctx.identity.as_ref().map(|client| &*client.account),
        client: flow.ctx.client_address,
        method,
        path,
        bytes_out: u64::try_from(flow.client.bytes_sent()).unwrap_or(u64::MAX),
        trace: flow.ctx.trace,
    }
}

/// The outcome of a request that penstock responded to itself.
pub(crate) fn own_outcome(code: Option<ErrorCode>, status: u16) -> Outcome {
    match (code, status) {
        (Some(code), status) if code.row().is_busy => {
            Outcome::Busy { cooldown: Duration::ZERO, status }
        }
        (_, 500..) => Outcome::Fault,
        (_, 400..=499) => Outcome::Client,
        _ => Outcome::Ok,
    }
}
