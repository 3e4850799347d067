//! One call of an ensemble before the final one: a request like any other, except that its response
//! does not go to the client. The response is read whole and becomes text.

use std::sync::Arc;

use penstock_api::ErrorCode;
use penstock_api::units::Timestamp;
use penstock_core::fleet::{BackendSet, Outcome};
use penstock_core::routing::{EnsembleCall, EnsemblePlan, ModelAsked, RouteError};
use penstock_scan::Usage;

use crate::downstream::body::HeldBody;
use crate::downstream::counted::Counted;
use crate::ensemble::gathered::TextCall;
use crate::proxy::admission::admit;
use crate::proxy::attempt::{AttemptEnd, Elsewhere, HeldText};
use crate::proxy::decision::{DecisionFailure, decide, record_rejections};
use crate::proxy::failure::{OwnError, held_outcome};
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::forward::{Recipient, make_attempt};
use crate::proxy::queue::{AdmissionFailure, has_others_waiting};
use crate::proxy::rate_limits::settle_rate;
use crate::proxy::request::{Decided, Named, ScannedRequest};
use crate::proxy::retry::{decide_in_turn, route_error, take_retry};
use crate::upstream::failure::{AttemptFailure, HeldResponse, HoldReason};
use penstock_core::routing::{RequestFacts, RequestRecord};

/// The reason why a call has no text, as the client would get it.
pub(crate) enum FailedCall {
    /// An engine's own error.
    Held(HeldResponse, Outcome),
    Own(OwnError),
}

/// The report of a call that has ended.
pub(crate) struct CallReport {
    pub(crate) call: EnsembleCall,
    pub(crate) text: Result<HeldText, FailedCall>,
    pub(crate) usage: Option<Usage>,
}

impl CallReport {
    /// A call that was never made.
    pub(crate) fn failed(call: EnsembleCall, failure: FailedCall) -> Self {
        Self { call, text: Err(failure), usage: None }
    }
}

/// The end of a call, or of its client.
pub(crate) enum CallEnd {
    Done(CallReport),
    ClientGone,
}

/// A call that has not ended.
pub(crate) struct RunningCall {
    call: EnsembleCall,
    ctx: RequestContext,
    request: Box<ScannedRequest>,
    /// True if a backend has limited the call's rate. Only one other is tried then.
    has_met_limit: bool,
}

impl RunningCall {
    /// A call for a client, which ends at `stage_end` at the latest.
    ///
    /// # Errors
    /// When the client's key may not use the model.
    pub(crate) async fn new(
        flow: &Flow<'_>,
        call: EnsembleCall,
        named: Named,
        body: HeldBody,
        stage_end: Timestamp,
    ) -> Result<Self, OwnError> {
        let ctx = &*flow.ctx;
        let operation = named.profile.operation;
        let facts = RequestFacts {
            ensemble: Some(call),
            bytes_in: body.bytes.len(),
            ..RequestFacts::default()
        };
        // Not among the requests in flight, where the client's own is.
        let counted = Counted::new(&flow.proxy.ensembles.calls);
        // The client's own request holds its part of the limits, and each call reserves its own
        // cost.
        let mut own = RequestContext {
            request_id: ctx.request_id.clone(),
            trace: ctx.trace.map(|trace| trace.child(flow.proxy.seeds.next())),
            dialect: operation.row().dialect,
            operation: Some(operation),
            identity: ctx.identity.clone(),
            client: ctx.client.clone(),
            client_address: ctx.client_address,
            body_is_read: true,
            requester: ctx.requester,
            policy: ctx.policy,
            record: RequestRecord { request: facts, ..RequestRecord::default() },
            ..RequestContext::new(Arc::clone(&ctx.generation), counted)
        };
        let mut request = admit(&mut flow.of_call(&mut own), named, body).await?;
        request.must_end_by = Some(stage_end);
        Ok(Self { call, ctx: own, request, has_met_limit: false })
    }

    /// Decides the first backend of the call: none of `used`, while another backend can take it.
    pub(crate) fn place(
        &mut self,
        flow: &Flow<'_>,
        used: &BackendSet,
    ) -> Result<Box<Decided>, DecisionFailure> {
        let Self { ctx, request, .. } = self;
        let mut own = flow.of_call(ctx);
        own.proxy.retries.earn(&own.ctx.generation.config.routing.retry_budget);
        if own.proxy.has_waiting() && has_others_waiting(&own, request) {
            // Requests wait for the model: the call lines up behind them.
            return Err(DecisionFailure::NoRoute(request.saturated()));
        }
        let ScannedRequest { fleet, split, .. } = &**request;
        let model = ModelAsked { name: request.wanted_model(), fleet, split: *split };
        let names = &own.ctx.generation.router.names;
        if !EnsemblePlan::has_other_backend(names, &model, used) {
            return decide(&mut own, request);
        }
        let tried = request.tried;
        request.tried.insert_all(used);
        let decided = decide(&mut own, request);
        // Not tried in fact: a retry may go to a backend of another call.
        request.tried = tried;
        match decided {
            Err(DecisionFailure::NoRoute(_)) => decide(&mut own, request),
            Ok(_) | Err(DecisionFailure::ClientGone) => decided,
        }
    }

    /// Ends a call that no backend can take.
    pub(crate) fn end_without_route(mut self, flow: &Flow<'_>, error: &RouteError) -> CallReport {
        record_rejections(&mut self.ctx, &self.request);
        let error = route_error(flow.proxy, self.request.view(&self.ctx), error);
        self.end(flow, Err(FailedCall::Own(error)))
    }

    /// Makes the call once it is its turn in the queue.
    pub(crate) async fn run_in_turn(mut self, flow: &Flow<'_>) -> CallEnd {
        let Self { ctx, request, .. } = &mut self;
        let failure = match decide_in_turn(&mut flow.of_call(ctx), request).await {
            Ok(decided) => return self.run(flow, decided).await,
            Err(AdmissionFailure::Decision(DecisionFailure::ClientGone)) => {
                return self.cancel(flow);
            }
            Err(AdmissionFailure::Decision(DecisionFailure::NoRoute(error))) => {
                return CallEnd::Done(self.end_without_route(flow, &error));
            }
            Err(AdmissionFailure::Queue(error)) => FailedCall::Own(error),
        };
        CallEnd::Done(self.end(flow, Err(failure)))
    }

    pub(crate) async fn run(mut self, flow: &Flow<'_>, first: Box<Decided>) -> CallEnd {
        let mut decided = first;
        loop {
            let backend = decided.decision.backend;
            let Self { ctx, request, .. } = &mut self;
            let mut own = flow.of_call(ctx);
            let to = Recipient::Other(&TextCall);
            let end = match make_attempt(&mut own, to, request, decided).await {
                AttemptEnd::Gathered(text) => {
                    return CallEnd::Done(self.end(flow, text.map_err(FailedCall::Own)));
                }
                AttemptEnd::Failed(AttemptFailure::ClientGone) => return self.cancel(flow),
                end => end,
            };
            self.request.tried.insert(backend);
            if self.take_retry(flow, &end) {
                match decide(&mut flow.of_call(&mut self.ctx), &self.request) {
                    Ok(next) => {
                        decided = next;
                        continue;
                    }
                    Err(DecisionFailure::ClientGone) => return self.cancel(flow),
                    Err(DecisionFailure::NoRoute(_)) => {}
                }
            }
            return CallEnd::Done(self.end(flow, Err(failure_of(end))));
        }
    }

    fn take_retry(&mut self, flow: &Flow<'_>, end: &AttemptEnd) -> bool {
        let failure = match end {
            AttemptEnd::Failed(failure) => failure,
            // Another backend may serve the operation itself.
            AttemptEnd::Elsewhere(_) => return true,
            AttemptEnd::Relayed(_)
            | AttemptEnd::Own { .. }
            | AttemptEnd::Gathered(_)
            | AttemptEnd::Changed
            | AttemptEnd::Moved(_) => return false,
        };
        let is_server_error = matches!(failure, AttemptFailure::Held(HoldReason::ServerError, _));
        let is_allowed = !is_server_error || self.ctx.generation.config.routing.retry_5xx;
        let is_refused_again = self.has_met_limit && failure.is_turned_away();
        self.has_met_limit |= failure.is_rate_limit();
        let Self { ctx, request, .. } = self;
        is_allowed && !is_refused_again && take_retry(&mut flow.of_call(ctx), request, failure)
    }

    fn cancel(mut self, flow: &Flow<'_>) -> CallEnd {
        // Only the record matters: the error is that of the client's own request.
        let _gone = self.ctx.end_cancelled();
        if self.ctx.holds_limits() {
            settle_rate(&self.ctx);
        }
        flow.of_call(&mut self.ctx).report_end();
        CallEnd::ClientGone
    }

    fn end(mut self, flow: &Flow<'_>, text: Result<HeldText, FailedCall>) -> CallReport {
        let record = &mut self.ctx.record;
        match &text {
            Ok(_) => {}
            Err(FailedCall::Held(held, outcome)) => {
                record.response.status = held.status;
                record.response.outcome = Some(*outcome);
            }
            Err(FailedCall::Own(error)) => {
                record.response.status = error.code.row().status;
                record.response.code = Some(error.code);
            }
        }
        if self.ctx.holds_limits() {
            settle_rate(&self.ctx);
        }
        flow.of_call(&mut self.ctx).report_end();
        CallReport { call: self.call, text, usage: self.ctx.record.response.usage }
    }
}

fn failure_of(end: AttemptEnd) -> FailedCall {
    match end {
        AttemptEnd::Failed(AttemptFailure::Held(refusal, held)) => {
            let outcome = held_outcome(refusal, held.status);
            FailedCall::Held(held, outcome)
        }
        AttemptEnd::Failed(failure) => FailedCall::Own(OwnError::from_failure(&failure)),
        AttemptEnd::Elsewhere(Elsewhere::Conversion(reason)) => FailedCall::Own(reason.to_error()),
        AttemptEnd::Elsewhere(Elsewhere::TooLong(too_long)) => {
            FailedCall::Held(too_long.held, Outcome::Client)
        }
        AttemptEnd::Relayed(_)
        | AttemptEnd::Own { .. }
        | AttemptEnd::Gathered(_)
        | AttemptEnd::Elsewhere(Elsewhere::Missing)
        | AttemptEnd::Changed
        | AttemptEnd::Moved(_) => {
            debug_assert!(false, "a call ends with a text or an error");
            let message = "The call of the ensemble has no response";
            FailedCall::Own(OwnError::new(ErrorCode::InternalError, message))
        }
    }
}
