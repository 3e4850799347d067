//! One call of an ensemble before the final one: a request like any other, made for a client whose response
//! it is not. Its response is read whole and becomes text.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use pingora_proxy::Session;

use crate::api::ErrorCode;
use crate::clock::now;
use crate::dialect::response_text;
use crate::downstream::body::{BodyClaim, BodyLength, HeldBody};
use crate::downstream::counted::Counted;
use crate::fleet::{BackendSet, InflightGuard, Outcome};
use crate::proxy::Proxy;
use crate::proxy::attempt::{Attempt, Unsuited};
use crate::proxy::context::{RequestContext, RequestRecord, ScannedRequest};
use crate::proxy::conversion::{Converter, NotConverted, WayBack, convert_held};
use crate::proxy::decision::{Undecided, decide};
use crate::proxy::failure::{OwnError, timeout_message};
use crate::proxy::forward::{exchange, hold, prepare};
use crate::proxy::outcome::{AttemptResult, record_outcome};
use crate::proxy::queue::{Unadmitted, Waiter, decide_in_turn, has_others_waiting};
use crate::proxy::rate_hold::RateHold;
use crate::proxy::request_body::{Named, admit};
use crate::proxy::reserved::Decided;
use crate::proxy::response::{
    Reply, claim_conversion, converter, outcome_of, reason_of, record_head,
};
use crate::proxy::retry::{is_rate_limit, may_retry, route_error};
use crate::routing::{EnsembleCall, EnsemblePlan, RouteError, RoutingDecision};
use crate::scan::Usage;
use crate::units::Timestamp;
use crate::upstream::failure::{ConnectError, ExchangeError, Failure, HeldResponse};
use crate::upstream::relay::{ReadWholeError, Transform};
use crate::upstream::response_monitor::ResponseMonitor;

/// Why a call has no text, as the client would get it.
pub(super) enum CallFailure {
    /// An engine's own error.
    Held(HeldResponse, Outcome),
    Own(OwnError),
}

/// The text of a response, with its share of the memory for responses.
pub(super) struct HeldText {
    pub(super) text: String,
    _claim: BodyClaim,
}

/// How a call ended.
pub(super) struct CallReport {
    pub(super) call: EnsembleCall,
    pub(super) text: Result<HeldText, CallFailure>,
    pub(super) usage: Option<Usage>,
}

impl CallReport {
    /// A call that was never made.
    pub(super) fn failed(call: EnsembleCall, failure: CallFailure) -> Self {
        Self { call, text: Err(failure), usage: None }
    }
}

/// The end of a call, or of its client.
pub(super) enum CallEnd {
    Done(CallReport),
    ClientGone,
}

/// Why an attempt has no text.
enum NoText {
    Failed(Failure),
    NotConverted(NotConverted),
    /// The engine responded with an error that no other backend would respond better to.
    Rejected(HeldResponse),
    /// The engine's response is none.
    Unreadable(OwnError),
}

/// A call that has not ended.
pub(super) struct Call {
    call: EnsembleCall,
    ctx: RequestContext,
    request: ScannedRequest,
    /// Whether a backend has limited its rate. Only one other is tried then.
    has_met_limit: bool,
}

impl Call {
    /// A call for the client of `ctx`, that ends at `deadline` at the latest.
    ///
    /// # Errors
    /// When the client's key may not use the model.
    pub(super) fn new(
        proxy: &Proxy,
        session: &Session,
        (ctx, call): (&RequestContext, EnsembleCall),
        named: Named,
        body: HeldBody,
        deadline: Timestamp,
    ) -> Result<Self, OwnError> {
        let operation = named.profile.operation;
        let mut own = RequestContext {
            generation: Arc::clone(&ctx.generation),
            arrived_at: now(),
            request_id: ctx.request_id.clone(),
            trace: ctx.trace.map(|trace| trace.child(proxy.seeds.next())),
            dialect: operation.row().dialect,
            operation: Some(operation),
            key: ctx.key,
            client: ctx.client.clone(),
            client_address: ctx.client_address,
            body_length: BodyLength::None,
            body_is_read: true,
            requester: ctx.requester,
            cors_origin: None,
            // The client's own request holds its part of the limits.
            rate: RateHold::default(),
            record: RequestRecord {
                ensemble: Some(call),
                bytes_in: body.bytes.len(),
                ..RequestRecord::default()
            },
            _counted: Counted::new(&proxy.ensembles.calls),
        };
        let request = admit(proxy, session, &mut own, named, body)?;
        let request = ScannedRequest { deadline: Some(deadline), ..request };
        Ok(Self { call, ctx: own, request, has_met_limit: false })
    }

    /// Decides where the call goes first: to none of `used`, while another backend can take it.
    pub(super) fn place(
        &mut self,
        proxy: &Proxy,
        headers: &HeaderMap,
        used: &BackendSet,
    ) -> Result<Decided, Undecided> {
        proxy.retries.earn(&self.ctx.generation.config.routing.retry_budget);
        if !proxy.queues.is_empty() && has_others_waiting(proxy, &self.ctx, &self.request) {
            let model = self.request.model.to_string();
            return Err(Undecided::NoRoute(RouteError::Saturated { model }));
        }
        let ScannedRequest { fleet, model, split, .. } = &self.request;
        let names = &self.ctx.generation.router.names;
        if !EnsemblePlan::has_other_backend(names, fleet, (model, *split), used) {
            return decide(proxy, &mut self.ctx, headers, &self.request);
        }
        let tried = self.request.tried;
        self.request.tried.insert_all(used);
        let decided = decide(proxy, &mut self.ctx, headers, &self.request);
        self.request.tried = tried;
        match decided {
            Err(Undecided::NoRoute(_)) => decide(proxy, &mut self.ctx, headers, &self.request),
            Ok(_) | Err(Undecided::ClientGone) => decided,
        }
    }

    /// Ends a call that no backend can take.
    pub(super) fn end_without_route(
        self,
        proxy: &Proxy,
        session: &Session,
        error: &RouteError,
    ) -> CallReport {
        let failure =
            CallFailure::Own(route_error(self.ctx.dialect, error, proxy.seeds.next_share()));
        self.end(proxy, session, Err(failure))
    }

    /// Makes the call once it is its turn in the queue.
    pub(super) async fn run_in_turn(mut self, proxy: &Proxy, session: &Session) -> CallEnd {
        let Self { ctx, request, .. } = &mut self;
        let failure = match decide_in_turn(proxy, Waiter::Call(session), ctx, request).await {
            Ok(decided) => return self.run(proxy, session, decided).await,
            Err(Unadmitted::Undecided(Undecided::ClientGone)) => {
                return self.cancel(proxy, session);
            }
            Err(Unadmitted::Undecided(Undecided::NoRoute(error))) => {
                return CallEnd::Done(self.end_without_route(proxy, session, &error));
            }
            Err(Unadmitted::Queue(error)) => CallFailure::Own(error),
        };
        CallEnd::Done(self.end(proxy, session, Err(failure)))
    }

    /// Makes the call.
    pub(super) async fn run(mut self, proxy: &Proxy, session: &Session, first: Decided) -> CallEnd {
        let mut decided = first;
        loop {
            let Decided { decision, permit } = decided;
            let no_text = match self.attempt(proxy, session, &decision, permit).await {
                Ok(text) => return CallEnd::Done(self.end(proxy, session, Ok(text))),
                Err(NoText::Failed(Failure::ClientGone)) => return self.cancel(proxy, session),
                Err(no_text) => no_text,
            };
            self.request.tried.insert(decision.backend);
            if self.may_retry(proxy, &no_text) {
                let headers = &session.req_header().headers;
                match decide(proxy, &mut self.ctx, headers, &self.request) {
                    Ok(next) => {
                        decided = next;
                        continue;
                    }
                    Err(Undecided::ClientGone) => return self.cancel(proxy, session),
                    Err(Undecided::NoRoute(_)) => {}
                }
            }
            return CallEnd::Done(self.end(proxy, session, Err(failure_of(no_text))));
        }
    }

    fn may_retry(&mut self, proxy: &Proxy, no_text: &NoText) -> bool {
        let failure = match no_text {
            NoText::Failed(failure) => failure,
            // Another backend may serve the operation itself.
            NoText::NotConverted(_) => return true,
            NoText::Rejected(_) | NoText::Unreadable(_) => return false,
        };
        let is_server_error = matches!(failure, Failure::ServerError(_));
        let is_allowed = !is_server_error || self.ctx.generation.config.routing.retry_5xx;
        let is_refused_again = self.has_met_limit && matches!(failure, Failure::Refused(_));
        self.has_met_limit |= is_rate_limit(failure);
        is_allowed && !is_refused_again && may_retry(proxy, &self.ctx, failure)
    }

    async fn attempt(
        &mut self,
        proxy: &Proxy,
        session: &Session,
        decision: &RoutingDecision,
        permit: InflightGuard,
    ) -> Result<HeldText, NoText> {
        let Self { ctx, request, .. } = self;
        request.decision = Some(*decision);
        let fleet = Arc::clone(&request.fleet);
        let client = ctx.client.clone();
        let attempt = client
            .as_ref()
            .and_then(|client| Attempt::start(ctx, decision, &fleet, client, permit, &proxy.seeds));
        let Some(mut attempt) = attempt else {
            debug_assert!(false, "a decision names a backend of the fleet it was made on");
            return Err(NoText::Failed(Failure::NotSent(ConnectError::NoAddress)));
        };
        let text = match prepare(proxy, ctx, request, &attempt) {
            Ok(conversion) => {
                attempt.conversion = conversion;
                match exchange(proxy, session, ctx, request, &attempt).await {
                    Ok(reply) => read_reply(proxy, ctx, request, reply).await,
                    Err(failure) => Err(NoText::Failed(failure)),
                }
            }
            Err(reason) => Err(NoText::NotConverted(reason)),
        };
        let by_status = AttemptResult::by_status(ctx.record.status, ctx);
        let result = match &text {
            Ok(_) | Err(NoText::Rejected(_)) => AttemptResult { first_token: None, ..by_status },
            Err(NoText::Failed(failure)) => {
                AttemptResult::failed(failure, ctx, proxy.seeds.next_share())
            }
            Err(NoText::NotConverted(reason)) => {
                AttemptResult::unsuited(&Unsuited::NotConverted(*reason), ctx)
            }
            Err(NoText::Unreadable(error)) => {
                let outcome = outcome_of(error.code);
                AttemptResult { outcome, code: Some(error.code), ..by_status }
            }
        };
        ctx.record.outcome = Some(result.outcome);
        ctx.record.code = result.code;
        record_outcome(&attempt, &result, &ctx.generation.router, &proxy.observers);
        text
    }

    fn cancel(mut self, proxy: &Proxy, session: &Session) -> CallEnd {
        // Only the record matters: the error is that of the client's own request.
        let _gone = self.ctx.client_gone();
        proxy.observers.finished(session, &self.ctx);
        CallEnd::ClientGone
    }

    fn end(
        mut self,
        proxy: &Proxy,
        session: &Session,
        text: Result<HeldText, CallFailure>,
    ) -> CallReport {
        let record = &mut self.ctx.record;
        match &text {
            Ok(_) => {}
            Err(CallFailure::Held(held, outcome)) => {
                record.status = held.status;
                record.outcome = Some(*outcome);
            }
            Err(CallFailure::Own(error)) => {
                record.status = error.code.row().status;
                record.code = Some(error.code);
            }
        }
        proxy.observers.finished(session, &self.ctx);
        CallReport { call: self.call, text, usage: self.ctx.record.usage }
    }
}

/// Reads a whole response as text.
async fn read_reply(
    proxy: &Proxy,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    reply: Reply<'_>,
) -> Result<HeldText, NoText> {
    record_head(ctx, request, &reply.head, reply.attempt);
    let operation = request.profile.operation;
    let status = reply.head.status;
    if !matches!(status, 200..=299) {
        let held = hold(proxy, reply).await.map_err(NoText::Failed)?;
        let held = match request.conversion {
            Some(_) => convert_held(held, operation),
            None => held,
        };
        return Err(match status {
            429 | 503 => NoText::Failed(Failure::Refused(held)),
            500.. => NoText::Failed(Failure::ServerError(held)),
            _ => NoText::Rejected(held),
        });
    }
    let way_back = request.conversion.take().map(|conversion| conversion.into_way_back());
    let Reply { mut exchange, head, attempt } = reply;
    let limit = ctx.generation.config.limits.converted_response.to_usize();
    let mut claim = proxy.claim_response();
    let body = exchange.read_whole(head.framing, limit, &mut claim).await.map_err(unread)?;
    let sent = way_back.as_ref().map_or(operation, WayBack::operation);
    let mut monitor = ResponseMonitor::new(sent, None);
    monitor.observe(&body, true);
    ctx.record.usage = monitor.usage();
    if head.keeps_alive {
        proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
    if !claim_conversion(&mut claim, body.len()) {
        return Err(unread(ReadWholeError::MemoryFull));
    }
    let body = match way_back {
        None => body,
        Some(way_back) => {
            let mut converter = converter(way_back, ctx, request);
            converter.apply(body, true, now()).map_err(|code| unreadable(&converter, code))?
        }
    };
    let none = || {
        let message = "The backend's response to a call of the ensemble has no text";
        NoText::Unreadable(OwnError::new(ErrorCode::BadUpstreamResponse, message))
    };
    let text = response_text(operation, &body).ok_or_else(none)?;
    claim.shrink_to(text.len());
    Ok(HeldText { text, _claim: claim })
}

fn unreadable(converter: &Converter, code: ErrorCode) -> NoText {
    let message = converter.failure().unwrap_or_else(|| timeout_message(code).to_owned());
    NoText::Unreadable(OwnError::new(code, message))
}

fn unread(error: ReadWholeError) -> NoText {
    if matches!(error, ReadWholeError::Broken(ExchangeError::ClientGone)) {
        return NoText::Failed(Failure::ClientGone);
    }
    let (code, message) = reason_of(error);
    NoText::Unreadable(OwnError::new(code, message))
}

fn failure_of(no_text: NoText) -> CallFailure {
    match no_text {
        NoText::Failed(Failure::Refused(held)) => {
            let outcome = Outcome::Busy { cooldown: Duration::ZERO, status: held.status };
            CallFailure::Held(held, outcome)
        }
        NoText::Failed(Failure::ServerError(held)) => CallFailure::Held(held, Outcome::Fault),
        NoText::Failed(failure) => CallFailure::Own(OwnError::from_failure(&failure)),
        NoText::NotConverted(reason) => CallFailure::Own(reason.to_error()),
        NoText::Rejected(held) => CallFailure::Held(held, Outcome::Client),
        NoText::Unreadable(error) => CallFailure::Own(error),
    }
}
