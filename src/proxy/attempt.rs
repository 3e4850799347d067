//! One attempt: what is fixed when it starts, and how it ends.

use bytes::Bytes;
use parking_lot::Mutex;
use penstock_api::Engine;
use penstock_api::units::Timestamp;
use penstock_api::{ErrorCode, Operation, TraceContext, is_same_model};
use penstock_clock::now;
use penstock_core::fleet::{Backend, InflightGuard, Serving, Topology};
use penstock_core::routing::RoutingDecision;
use pingora::http::ResponseHeader;
use serde_json::Value;

use crate::downstream::body::BodyClaim;
use crate::downstream::client::Client;
use crate::proxy::context::{RequestContext, ScannedRequest, Served};
use crate::proxy::conversion::NotConverted;
use crate::proxy::failure::OwnError;
use crate::proxy::own_response::OwnResponse;
use crate::proxy::reserved::Reserved;
use crate::proxy::seeds::Seeds;
use crate::proxy::shift_state::TooLong;
use crate::upstream::failure::Failure;

pub(crate) enum AttemptEnd {
    /// A response went to the client, whole or visibly broken.
    Relayed(Served),
    /// The backend's part is over, and penstock responds itself. `status`: the status of the
    /// backend's response, or the one that it would have sent.
    Own { response: Result<OwnResponse, OwnError>, status: u16 },
    /// The text of a response that was read whole, for an ensemble.
    Text(HeldText),
    /// A response that was read whole, for an ensemble, and yields no text.
    Unreadable(OwnError),
    /// Not a byte went to the client.
    Failed(Failure),
    /// Another backend may serve the request.
    Elsewhere(Elsewhere),
    /// A part of the request has been removed: the same backend may serve the remainder.
    Changed,
    /// The request would have waited there for too long, and has a permit elsewhere.
    Moved(Box<Reserved>),
}

/// The text of a response, with its share of the memory for responses.
pub(crate) struct HeldText {
    pub(crate) text: String,
    pub(crate) _claim: BodyClaim,
}

/// The reason why another backend may serve a request that this one does not.
pub(crate) enum Elsewhere {
    /// The backend's API has no form for the request; nothing was sent.
    NotConverted(NotConverted),
    /// The backend's engine has no room for the prompt, and the request may be shortened.
    TooLong(Box<TooLong>),
    /// The backend lacks what a request for one backend names.
    Missing,
}

/// The end of an attempt that penstock responds to itself, with JSON.
pub(crate) fn own_json(body: &Value) -> AttemptEnd {
    let body = Bytes::from(body.to_string());
    let response = match ResponseHeader::build(200, Some(4)) {
        Ok(head) => Ok(OwnResponse { head, body, closes: false }),
        Err(_) => Err(OwnError::new(ErrorCode::InternalError, "The response cannot be made")),
    };
    AttemptEnd::Own { response, status: 200 }
}

/// The fixed parts of one attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) decision: &'a RoutingDecision,
    pub(crate) fleet: &'a Topology,
    pub(crate) serving: &'a Serving,
    pub(crate) backend: &'a Backend,
    pub(crate) client: &'a Client,
    pub(crate) started: Timestamp,
    /// The number of the attempt, from 1.
    pub(crate) number: u32,
    /// The request's trace, and the attempt's own span in it.
    pub(crate) trace: Option<(TraceContext, u64)>,
    /// The request's operation and the one it was converted to, if the backend does not serve the
    /// first.
    pub(crate) conversion: Option<(Operation, Operation)>,
    /// True if the attempt's tokens count in predictions.
    pub(crate) is_predicted: bool,
    /// The in-flight permit; gone once the backend's part is over.
    pub(crate) permit: Mutex<Option<InflightGuard>>,
}

impl<'a> Attempt<'a> {
    /// Starts an attempt at a decision. Returns `None` if the decision does not fit the fleet it
    /// was made on.
    pub(crate) fn start(
        ctx: &RequestContext,
        decision: &'a RoutingDecision,
        fleet: &'a Topology,
        client: &'a Client,
        mut permit: InflightGuard,
        seeds: &Seeds,
    ) -> Option<Self> {
        let serving = decision.serving(fleet)?;
        let is_predicted = permit.prediction().is_some();
        Some(Self {
            decision,
            fleet,
            serving,
            backend: fleet.backends.get(usize::from(serving.backend))?,
            client,
            started: now(),
            number: ctx.record.routing.attempts,
            // A span id of zero is invalid (W3C Trace Context).
            trace: ctx.trace.map(|trace| (trace, seeds.next().max(1))),
            conversion: None,
            is_predicted,
            permit: Mutex::new(Some(permit)),
        })
    }

    /// The operation that the request was converted to, if the backend does not serve its own.
    pub(crate) fn converted_to(&self) -> Option<Operation> {
        self.conversion.map(|(_, to)| to)
    }

    /// The backend's engine, configured or detected.
    pub(crate) fn engine(&self) -> Engine {
        self.serving.state.engine(self.backend.config.engine)
    }

    /// The backend's name for the model; `None` for the name that the client sent.
    pub(crate) fn upstream_name<'b>(&'b self, request: &'b ScannedRequest) -> Option<&'b str> {
        let decision = request.decision.as_ref();
        let resolved = decision.and_then(|decision| request.fleet.model(decision.model));
        let configured = self.serving.upstream_id.as_deref();
        let name = configured.or(resolved.map(|model| &*model.name));
        let takes_any = self.engine().row().takes_any_spelling;
        name.filter(|name| !(takes_any && is_same_model(name, &request.model)))
    }

    /// Records that the engine has computed the prompt: its tokens no longer count as waiting.
    pub(crate) fn prompt_done(&self) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.end_prefill();
        }
    }

    /// Records `count` tokens of a stream, received at `now`.
    pub(crate) fn tokens(&self, count: u32, now: Timestamp) {
        let mut permit = self.permit.lock();
        if let Some(ticket) = permit.as_mut().and_then(InflightGuard::prediction) {
            ticket.tokens(count, now.0 as f64);
        }
    }

    /// Records the first token of a stream.
    pub(crate) fn first_token(&self) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.first_token();
        }
    }
}
