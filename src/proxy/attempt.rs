//! One attempt: what is fixed when it starts, and how it ends.

use bytes::Bytes;
use parking_lot::Mutex;
use pingora::http::ResponseHeader;
use serde_json::Value;

use super::context::{RequestContext, ScannedRequest, Served};
use super::conversion::NotConverted;
use super::failure::OwnError;
use super::own_response::OwnResponse;
use super::reserved::Reserved;
use super::seeds::Seeds;
use super::shift_state::TooLong;
use crate::api::{ErrorCode, Operation, TraceContext, is_same_model};
use crate::clock::now;
use crate::config::Engine;
use crate::downstream::body::BodyClaim;
use crate::downstream::client::Client;
use crate::fleet::{Backend, InflightGuard, Serving, Topology};
use crate::routing::RoutingDecision;
use crate::units::Timestamp;
use crate::upstream::failure::Failure;

/// How an attempt ended.
pub(crate) enum AttemptEnd {
    /// A response went to the client, whole or visibly broken.
    Relayed(Served),
    /// The backend's part is over, and the client gets a response of penstock's own. `status`: what the backend
    /// responded with, or would have.
    Own { response: Result<OwnResponse, OwnError>, status: u16 },
    /// The response was read whole, for an ensemble, and holds this text.
    Text(HeldText),
    /// The response was read whole, for an ensemble, and no text can be made of it.
    Unreadable(OwnError),
    /// Not a byte went to the client.
    Failed(Failure),
    /// Another backend may serve the request.
    Elsewhere(Elsewhere),
    /// Something has been taken out of the request: the same backend may serve what is left.
    Changed,
    /// The request would have waited there for too long, and has a permit elsewhere.
    Moved(Box<Reserved>),
}

/// The text of a response, with its share of the memory for responses.
pub(crate) struct HeldText {
    pub(crate) text: String,
    pub(crate) _claim: BodyClaim,
}

/// Why another backend may serve a request that this one does not.
pub(crate) enum Elsewhere {
    /// Its API has no form for the request; it has got nothing.
    NotConverted(NotConverted),
    /// Its engine has no room for the prompt, and the request may be shortened.
    TooLong(Box<TooLong>),
    /// It does not have what a request for one backend is about.
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
    /// 1 for the first one.
    pub(crate) number: u32,
    /// The request's trace, and the attempt's own span in it.
    pub(crate) trace: Option<(TraceContext, u64)>,
    /// The request's operation and what it became, where the backend does not serve it.
    pub(crate) conversion: Option<(Operation, Operation)>,
    /// Whether its tokens count in predictions.
    pub(crate) is_predicted: bool,
    /// The in-flight permit; gone once the backend's part is over.
    pub(crate) permit: Mutex<Option<InflightGuard>>,
}

impl<'a> Attempt<'a> {
    /// An attempt at a decision; `None` when the decision does not fit the fleet it was made on.
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
            number: ctx.record.attempts,
            trace: ctx.trace.map(|trace| (trace, seeds.next().max(1))),
            conversion: None,
            is_predicted,
            permit: Mutex::new(Some(permit)),
        })
    }

    /// What the request became for this backend, where that does not serve its operation.
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
        // Ollama takes every spelling, and responds with the one it was sent.
        let takes_any = self.engine() == Engine::Ollama;
        name.filter(|name| !(takes_any && is_same_model(name, &request.model)))
    }

    /// The engine has computed the prompt: its tokens no longer count as waiting.
    pub(crate) fn prompt_done(&self) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.end_prefill();
        }
    }

    /// Tokens of a stream have come at `now`.
    pub(crate) fn tokens(&self, count: u32, now: Timestamp) {
        let mut permit = self.permit.lock();
        if let Some(ticket) = permit.as_mut().and_then(InflightGuard::prediction) {
            ticket.tokens(count, now.0 as f64);
        }
    }

    /// The first token of a stream has come.
    pub(crate) fn first_token(&self) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.first_token();
        }
    }
}
