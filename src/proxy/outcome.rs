//! The lessons of an attempt for its backend's state: health, circuit breaker, cooldown, latencies.

use std::time::Duration;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{ErrorCode, Operation, Operations, Work};
use penstock_clock::now;
use penstock_core::fleet::{LatencySample, Outcome, OutcomeSource, Requester, cooldown_time};
use penstock_core::routing::{AttemptEnded, Generation};
use penstock_scan::Usage;
use pingora::http::ResponseHeader;

use crate::proxy::attempt::{Attempt, AttemptEnd, Elsewhere};
use crate::proxy::context::RequestContext;
use crate::proxy::failure::{code_of, outcome_of, unreadable_outcome};
use crate::proxy::observers::Observers;
use crate::upstream::failure::{Failure, Refusal};

/// The result of an attempt, as far as the backend is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptResult {
    pub(crate) outcome: Outcome,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) requester: Requester,
    pub(crate) is_streaming: bool,
    /// The time at which the first token of a stream passed.
    pub(crate) first_token: Option<Timestamp>,
    /// True if the response goes to the client.
    pub(crate) is_relayed: bool,
    /// The tokens that the engine counted.
    pub(crate) usage: Option<Usage>,
    /// True if the backend did not find what was requested.
    pub(crate) is_not_found: bool,
    /// True if the backend does not know the path that it was sent.
    pub(crate) lacks_operation: bool,
    /// The operation that the client requested.
    pub(crate) operation: Option<Operation>,
    /// True if the request unloads the model.
    pub(crate) unloads: bool,
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
            requester: ctx.requester,
            is_streaming: ctx.record.request.is_streaming,
            first_token: ctx.record.response.first_token,
            is_relayed: true,
            usage: ctx.record.response.usage,
            is_not_found: status == 404,
            lacks_operation: false,
            operation: ctx.operation,
            unloads: ctx.record.request.unloads_model,
            runs_model: ctx.operation.is_some_and(|it| it.row().work != Work::Text),
            is_moved: false,
        }
    }

    /// The result of an attempt that has ended. `jitter` in 0..1 lengthens a cooldown.
    pub(crate) fn of(end: &AttemptEnd, ctx: &RequestContext, jitter: f64) -> Self {
        let by_status = Self::by_status(ctx.record.response.status, ctx);
        let unserved = |outcome, code| Self { outcome, code, is_relayed: false, ..by_status };
        match end {
            AttemptEnd::Relayed(_) => {
                let outcome = ctx.record.response.outcome.unwrap_or(by_status.outcome);
                Self { outcome, code: ctx.record.response.code, ..by_status }
            }
            AttemptEnd::Own { status, .. } => {
                Self { runs_model: false, ..Self::by_status(*status, ctx) }
            }
            AttemptEnd::Text(_) => Self { first_token: None, ..by_status },
            AttemptEnd::Unreadable(error) => {
                let outcome = unreadable_outcome(error.code);
                Self { outcome, code: Some(error.code), ..by_status }
            }
            AttemptEnd::Failed(failure) => {
                let config = &ctx.generation.config.routing.cooldown;
                let cooldown = cooldown_time(config, requested_wait(failure), jitter);
                let ended = unserved(outcome_of(failure, cooldown), Some(code_of(failure)));
                let refusal = match failure {
                    Failure::Held(refusal, _) => Some(*refusal),
                    _ => None,
                };
                let is_not_found = refusal == Some(Refusal::ModelMissing);
                let lacks_operation = refusal == Some(Refusal::OperationMissing);
                Self { is_not_found, lacks_operation, ..ended }
            }
            AttemptEnd::Elsewhere(Elsewhere::NotConverted(reason)) => {
                unserved(Outcome::Client, Some(reason.to_error().code))
            }
            AttemptEnd::Elsewhere(Elsewhere::TooLong(_)) => {
                unserved(Outcome::Client, Some(ErrorCode::ContextLengthExceeded))
            }
            AttemptEnd::Elsewhere(Elsewhere::Missing) => Self::by_status(404, ctx),
            AttemptEnd::Changed => unserved(Outcome::Client, Some(ErrorCode::CapabilityMismatch)),
            AttemptEnd::Moved(_) => Self { is_moved: true, ..unserved(Outcome::Cancel, None) },
        }
    }
}

/// Reports the result to the backend's health, circuit breaker, cooldown and latencies, and
/// releases the in-flight permit. Only the first call for an attempt counts: the permit is taken
/// with it.
pub(crate) fn record_outcome(
    attempt: &Attempt<'_>,
    result: &AttemptResult,
    generation: &Generation,
    observers: &Observers,
) {
    // Dropped at the end: a request that its release wakes sees what this attempt has taught.
    let Some(mut permit) = attempt.permit.lock().take() else { return };
    let at = now();
    let outcome = result.outcome;
    if outcome == Outcome::Ok {
        let counted = result.usage.and_then(|usage| usage.completion_tokens);
        permit.complete(counted.map(TokenCount), at);
    } else if outcome == Outcome::Cancel {
        permit.cut(at);
    }
    let state = &attempt.serving.state;
    let scope = attempt.serving.cooldown_scope(result.requester);
    let source = OutcomeSource {
        at,
        started: attempt.started,
        requester: result.requester,
        scope,
        probe: permit.probe(),
    };
    let sample = match (result.is_streaming, result.first_token) {
        (true, first) => LatencySample::Stream(first),
        (false, _) if result.runs_model => LatencySample::Whole,
        (false, _) => LatencySample::None,
    };
    let health = &attempt.backend.config.health;
    if let Some(transition) = attempt.serving.learn_attempt(outcome, source, sample, health) {
        transition.log(&state.name);
    }
    let tokens = result.usage.and_then(|usage| usage.completion_tokens).map(TokenCount);
    attempt.serving.measure_quality(outcome, source, sample, tokens);
    learn_models(attempt, result, at);
    learn_operation(attempt, result, generation, at);
    observers.attempt_ended(&AttemptEnded {
        backend: attempt.serving.id,
        name: &attempt.serving.state.name,
        provider: attempt.backend.config.engine.provider(),
        server: (&attempt.backend.config.url.host, attempt.backend.config.url.port),
        number: attempt.number,
        trace: attempt.trace,
        decision: attempt.decision,
        router: &generation.router,
        fleet: attempt.fleet,
        is_relayed: result.is_relayed,
        is_moved: result.is_moved,
        usage: result.usage,
        outcome,
        conversion: attempt.conversion,
        code: result.code,
        took: at.since(attempt.started),
    });
}

/// Learns about the backend's models from a response: that this one is in memory or not, or that
/// the known lists are outdated.
fn learn_models(attempt: &Attempt<'_>, result: &AttemptResult, at: Timestamp) {
    let state = &attempt.serving.state;
    if !result.runs_model {
        return;
    }
    if result.is_not_found {
        state.invalidate_models();
    } else if result.outcome == Outcome::Ok
        // A model that was loaded may have evicted others.
        && (result.unloads || attempt.serving.model_state.learn_response(at))
    {
        state.invalidate_loaded();
    }
}

/// Learns from a response about the operations that the backend serves.
fn learn_operation(
    attempt: &Attempt<'_>,
    result: &AttemptResult,
    generation: &Generation,
    at: Timestamp,
) {
    let Some(sent) = attempt.converted_to().or(result.operation) else { return };
    let state = &attempt.serving.state;
    if result.outcome == Outcome::Ok {
        state.lessons.note_served(sent);
    } else if result.lacks_operation
        && has_other_way(attempt, result.operation.unwrap_or(sent), sent)
        && generation.fleet.learn_lacking(state, sent, at)
    {
        tracing::info!(backend = %state.name, operation = sent.name(), "backend lacks an operation");
    }
}

/// Returns whether a request for `operation` can be served without sending `sent` to this backend.
/// Otherwise the lesson gains nothing, and an engine's own error says more than that no backend is
/// left.
fn has_other_way(attempt: &Attempt<'_>, operation: Operation, sent: Operation) -> bool {
    let serving = attempt.serving;
    let without = serving.native_operations.without(Operations::of(&[sent]));
    let model = attempt.fleet.model(attempt.decision.model);
    let mut others =
        model.iter().flat_map(|model| &model.serving).filter(|row| row.id != serving.id);
    without.target_of(operation).is_some()
        || others.any(|row| row.usable_operations.contains(operation))
}

/// The wait that a refusal requests.
fn requested_wait(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Held(_, held) => held.retry_after,
        Failure::NotSent(_)
        | Failure::NoResponse { .. }
        | Failure::TimedOut(_)
        | Failure::BadResponse(_)
        | Failure::ClientGone => None,
    }
}

/// The wait a response requests before a retry: `retry-after-ms`, or `Retry-After` in seconds or as
/// a date.
pub(crate) fn retry_after(header: &ResponseHeader) -> Option<Duration> {
    let text = |name: &str| header.headers.get(name)?.to_str().ok();
    if let Some(millis) = text("retry-after-ms").and_then(|value| value.parse().ok()) {
        return Some(Duration::from_millis(millis));
    }
    let value = text("retry-after")?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    let since_1970 = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since_1970.saturating_sub(Duration::from_secs(penstock_clock::unix_seconds())))
}
