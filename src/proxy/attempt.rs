//! One attempt: what is fixed when it starts, how it ends, and what its end teaches the backend's
//! state: health, circuit breaker, cooldown, latencies.

use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, Engine, ErrorCode, Operation, TraceContext, Work, is_same_model};
use penstock_clock::now;
use penstock_config::AuthorizationPolicy;
use penstock_core::fleet::{
    Backend, InflightGuard, LatencySample, Outcome, OutcomeSource, Serving, Topology, cooldown_time,
};
use penstock_core::routing::{AttemptEnded, RoutingDecision};
use penstock_scan::Usage;

use crate::downstream::body::BodyClaim;
use crate::downstream::client::Client;
use crate::proxy::Proxy;
use crate::proxy::conversion::ConversionFailure;
use crate::proxy::failure::{OwnError, code_of, outcome_of, unreadable_outcome};
use crate::proxy::flow::{RequestContext, Served};
use crate::proxy::own_response::OwnResponse;
use crate::proxy::request::{Reserved, ScannedRequest};
use crate::proxy::shift_state::TooLong;
use crate::seeds::Seeds;
use crate::upstream::disposition::{Contexts, ResponseTerms, SentKey};
use crate::upstream::failure::{AttemptFailure, HoldReason};

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
}

impl<'a> Attempt<'a> {
    /// Starts an attempt at a decision. Returns `None` if the decision does not fit the fleet it
    /// was made on.
    pub(crate) fn start(
        ctx: &RequestContext,
        decision: &'a RoutingDecision,
        fleet: &'a Topology,
        client: &'a Client,
        seeds: &Seeds,
    ) -> Option<Self> {
        let serving = decision.serving(fleet)?;
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
        })
    }

    /// The operation that the request was converted to, if the backend does not serve its own.
    pub(crate) fn converted_to(&self) -> Option<Operation> {
        self.conversion.map(|(_, to)| to)
    }

    /// The operation that the backend is sent.
    pub(crate) fn sent_operation(&self, request: &ScannedRequest) -> Operation {
        self.converted_to().unwrap_or(request.profile.operation)
    }

    /// The backend's engine, configured or detected.
    pub(crate) fn engine(&self) -> Engine {
        self.serving.state.engine(self.backend.config.engine)
    }

    /// The terms that decide about a response with this status.
    pub(crate) fn response_terms<'b>(
        &'b self,
        request: &'b ScannedRequest,
        ctx: &RequestContext,
        status: u16,
        is_gathered: bool,
    ) -> ResponseTerms<'b> {
        let sent = self.sent_operation(request);
        let passes = self.backend.config.authorization == AuthorizationPolicy::Pass;
        let needs = match status {
            400 | 404 | 422 | 500 | 501 => request.profile.needs,
            _ => Capabilities::NONE,
        };
        let may_differ = matches!(status, 400 | 404 | 413 | 422 | 500 | 501);
        let may_drop = matches!(status, 400 | 422 | 500 | 501);
        let model = self.fleet.model(self.decision.model).filter(|_| may_differ);
        let (profile, tried, own) = (&request.profile, &request.tried, self.serving);
        let is_elsewhere = model.is_some_and(|one| one.may_serve_elsewhere(profile, own, tried));
        ResponseTerms {
            operation: profile.operation,
            sent,
            model: self.sent_model(request),
            body: request.body(),
            key: if passes { SentKey::Clients } else { SentKey::Own },
            is_converted: self.conversion.is_some(),
            is_load: request.profile.residency_change.is_some(),
            has_head: ctx.record.queue.is_kept_alive,
            is_gathered,
            retries_5xx: ctx.generation.config.routing.retry_5xx,
            may_shorten: request.shift.as_ref().is_some_and(|shift| shift.reads(status)),
            may_drop: if may_drop { removable(request, ctx) } else { Capabilities::NONE },
            needs,
            elsewhere: if is_elsewhere { needs } else { Capabilities::NONE },
            contexts: model.and_then(|model| Contexts::of(model, own, profile, tried)),
            has_served: own.state.lessons.has_served(sent),
        }
    }

    /// The name for the model that the backend is sent.
    pub(crate) fn sent_model<'b>(&'b self, request: &'b ScannedRequest) -> &'b str {
        self.upstream_name(request).unwrap_or(&request.model)
    }

    /// The backend's name for the model; `None` for the name that the client sent.
    fn upstream_name<'b>(&'b self, request: &'b ScannedRequest) -> Option<&'b str> {
        let resolved = self.fleet.model(self.decision.model);
        let configured = self.serving.upstream_id.as_deref();
        let name = configured.or(resolved.map(|model| &*model.name));
        // Such an engine gets the client's spelling: the body then passes unchanged.
        let takes_any = self.engine().row().takes_any_spelling;
        name.filter(|name| !(takes_any && is_same_model(name, &request.model)))
    }
}

/// The capabilities that may be removed from the request (`routing.retry_without`).
fn removable(request: &ScannedRequest, ctx: &RequestContext) -> Capabilities {
    let operation = request.profile.operation;
    if operation != Operation::OllamaGenerate && operation.row().messages_member().is_none() {
        return Capabilities::NONE;
    }
    let allowed = ctx.generation.config.routing.retry_without;
    let needs = request.profile.needs;
    let kept = needs.without(allowed);
    needs.without(kept)
}

/// The in-flight permit of an attempt; empty once the backend's part is over.
// Beside the attempt, which the exchange and the relay share: the permit has one owner at a time,
// so that no token takes a lock.
pub(crate) type Permit = Option<InflightGuard>;

pub(crate) enum AttemptEnd {
    /// A response went to the client, whole or visibly broken.
    Relayed(Served),
    /// The backend's part is over, and penstock responds itself. `status`: the status of the
    /// backend's response, or the one that it would have sent.
    Own { response: Result<OwnResponse, OwnError>, status: u16 },
    /// The text of a response that was read whole, for an ensemble, or the reason why it has none.
    Gathered(Result<HeldText, OwnError>),
    /// Not a byte went to the client.
    Failed(AttemptFailure),
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
    Conversion(ConversionFailure),
    /// The backend's engine has no room for the prompt, and the request may be shortened.
    TooLong(Box<TooLong>),
    /// The backend lacks what a request for one backend names.
    Missing,
}

/// The result of an attempt, as far as the backend is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptResult {
    pub(crate) outcome: Outcome,
    pub(crate) code: Option<ErrorCode>,
    /// The time at which the first token of a stream passed, or the head of a whole response.
    pub(crate) first_token: Option<Timestamp>,
    /// True if the response goes to the client.
    pub(crate) is_relayed: bool,
    /// The tokens that the engine counted.
    pub(crate) usage: Option<Usage>,
    /// True if the backend did not find what was requested.
    pub(crate) is_not_found: bool,
    /// The reason why its response was withheld.
    pub(crate) refusal: Option<HoldReason>,
    /// True if the model ran: other responses say nothing about its latency.
    pub(crate) runs_model: bool,
    /// True if the request was moved elsewhere before its first token.
    pub(crate) is_moved: bool,
}

impl AttemptResult {
    /// The result by the response's status, if nothing goes wrong after its head.
    pub(crate) fn by_status(status: u16, ctx: &RequestContext) -> Self {
        let outcome = match status {
            // The backend waited in vain for a request that was sent whole.
            408 | 500.. => Outcome::Fault,
            400..=499 => Outcome::Client,
            _ => Outcome::Ok,
        };
        Self {
            outcome,
            code: None,
            first_token: ctx.record.response.first_token,
            is_relayed: true,
            usage: ctx.record.response.usage,
            is_not_found: status == 404,
            refusal: None,
            runs_model: ctx.operation.is_some_and(|it| it.row().work != Work::Text),
            is_moved: false,
        }
    }

    /// Returns the result of an attempt whose response does not go to the client.
    fn unserved(self, outcome: Outcome, code: Option<ErrorCode>) -> Self {
        Self { outcome, code, is_relayed: false, ..self }
    }

    /// The result of an attempt that has ended. `jitter` in 0..1 lengthens a cooldown.
    pub(crate) fn of(end: &AttemptEnd, ctx: &RequestContext, jitter: f64) -> Self {
        let by_status = Self::by_status(ctx.record.response.status, ctx);
        match end {
            AttemptEnd::Relayed(_) => {
                let outcome = ctx.record.response.outcome.unwrap_or(by_status.outcome);
                Self { outcome, code: ctx.record.response.code, ..by_status }
            }
            AttemptEnd::Own { status, .. } => {
                // A count of tokens, or a load, is no sample of the model's latency.
                Self { runs_model: false, ..Self::by_status(*status, ctx) }
            }
            AttemptEnd::Gathered(Ok(_)) => Self { first_token: None, ..by_status },
            AttemptEnd::Gathered(Err(error)) => {
                let outcome = unreadable_outcome(error.code);
                Self { outcome, code: Some(error.code), ..by_status }
            }
            AttemptEnd::Failed(failure) => {
                let config = &ctx.generation.config.routing.cooldown;
                let cooldown = cooldown_time(config, failure.requested_wait(), jitter);
                let ended = by_status.unserved(outcome_of(failure, cooldown), code_of(failure));
                let refusal = failure.refusal();
                let is_not_found = refusal == Some(HoldReason::ModelMissing);
                Self { is_not_found, refusal, ..ended }
            }
            AttemptEnd::Elsewhere(Elsewhere::Conversion(reason)) => {
                // The backend was sent nothing, so that it has done nothing wrong.
                by_status.unserved(Outcome::Client, Some(reason.to_error().code))
            }
            AttemptEnd::Elsewhere(Elsewhere::TooLong(_)) => {
                by_status.unserved(Outcome::Client, Some(ErrorCode::ContextLengthExceeded))
            }
            AttemptEnd::Elsewhere(Elsewhere::Missing) => Self::by_status(404, ctx),
            AttemptEnd::Changed => {
                by_status.unserved(Outcome::Client, Some(ErrorCode::CapabilityMismatch))
            }
            AttemptEnd::Moved(_) => {
                Self { is_moved: true, ..by_status.unserved(Outcome::Cancel, None) }
            }
        }
    }
}

/// Reports the result to the backend's health, circuit breaker, cooldown and latencies, and
/// releases the in-flight permit. Only the first call for an attempt counts: the permit is taken
/// with it.
pub(crate) fn record_outcome(
    attempt: &Attempt<'_>,
    permit: &mut Permit,
    result: &AttemptResult,
    // Not the flow: the relay calls this while it writes to the client.
    ctx: &RequestContext,
    proxy: &Proxy,
) {
    // Dropped at the end: a request that its release wakes sees what this attempt has taught.
    let Some(mut permit) = permit.take() else { return };
    let (at, outcome) = (now(), result.outcome);
    let tokens = result.usage.and_then(|usage| usage.completion_tokens).map(TokenCount);
    if outcome == Outcome::Ok {
        permit.complete(tokens, at);
    } else if outcome == Outcome::Cancel {
        // A stream that its client left shows no length of an output.
        permit.cut(at);
    }
    let state = &attempt.serving.state;
    let scope = attempt.serving.cooldown_scope(ctx.requester);
    let source = OutcomeSource {
        at,
        started: attempt.started,
        requester: ctx.requester,
        scope,
        probe: permit.probe(),
    };
    let sample = latency_sample(result, &permit, ctx.record.request.is_streaming, at);
    let health = &attempt.backend.config.health;
    if let Some(transition) = attempt.serving.learn_attempt(outcome, source, sample, health) {
        transition.log(&state.name);
    }
    // A tunnel lasts as long as its two sides like.
    let is_unread = ctx.operation == Some(Operation::Passthrough) && outcome == Outcome::Ok;
    if is_unread && ctx.record.response.status != 101 {
        state.unread_durations.learn(at.since(attempt.started));
    }
    attempt.serving.measure_quality(outcome, source, sample, tokens);
    if result.runs_model {
        let is_ok = result.outcome == Outcome::Ok;
        let unloads = ctx.record.request.unloads_model;
        attempt.serving.learn_models(result.is_not_found, is_ok, unloads, at);
    }
    learn_lessons(attempt, result, ctx, at);
    let ended = AttemptEnded {
        backend: attempt.serving.id,
        name: &attempt.serving.state.name,
        provider: attempt.backend.config.engine.provider(),
        server: (&attempt.backend.config.url.host, attempt.backend.config.url.port),
        number: attempt.number,
        trace: attempt.trace,
        decision: attempt.decision,
        router: &ctx.generation.router,
        fleet: attempt.fleet,
        is_relayed: result.is_relayed,
        is_moved: result.is_moved,
        has_output: result.first_token.is_some(),
        usage: result.usage,
        outcome,
        conversion: attempt.conversion,
        code: result.code,
        took: at.since(attempt.started),
    };
    for observer in &proxy.observers {
        observer.attempt_ended(&ended);
    }
}

/// Returns what an attempt shows of the backend's latency.
fn latency_sample(
    result: &AttemptResult,
    permit: &InflightGuard,
    is_streaming: bool,
    at: Timestamp,
) -> LatencySample {
    let is_left = result.outcome == Outcome::Cancel && !result.is_moved;
    match (is_streaming, result.first_token) {
        // The backend has refused nothing: it was sent nothing, or the request changes first.
        _ if result.outcome == Outcome::Client && !result.is_relayed => LatencySample::None,
        (true, _) if is_left && permit.has_stalled(at) => LatencySample::Stalled,
        (true, first) => LatencySample::Stream(first),
        (false, _) if result.runs_model => LatencySample::Whole,
        (false, _) => LatencySample::None,
    }
}

/// Learns from a response what the backend serves, and what it lacks.
fn learn_lessons(
    attempt: &Attempt<'_>,
    result: &AttemptResult,
    ctx: &RequestContext,
    at: Timestamp,
) {
    let Some(sent) = attempt.converted_to().or(ctx.operation) else { return };
    let (serving, asked) = (attempt.serving, ctx.operation.unwrap_or(sent));
    let (state, fleet) = (&serving.state, &ctx.generation.fleet);
    let model = attempt.fleet.model(attempt.decision.model);
    match result.refusal {
        _ if result.outcome == Outcome::Ok => state.lessons.note_served(sent),
        Some(HoldReason::OperationMissing)
            if model.is_some_and(|model| model.can_do_without(sent, serving, asked))
                && fleet.learn_lacking(state, sent, at) =>
        {
            tracing::info!(backend = %state.name, operation = sent.name(), "backend lacks an operation");
        }
        _ => {}
    }
}
