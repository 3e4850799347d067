//! What a backend's state learns from an attempt: health, circuit breaker, cooldown, latencies.

use std::time::Duration;

use pingora::http::ResponseHeader;

use super::attempt::{Attempt, AttemptEnd, Unsuited};
use super::context::RequestContext;
use super::failure::{code_of, outcome_of};
use super::observers::Observers;
use crate::api::{ErrorCode, Work};
use crate::clock::now;
use crate::fleet::{LatencySample, Outcome, OutcomeSource, Requester, cooldown_time};
use crate::routing::{AttemptEnded, Router};
use crate::scan::Usage;
use crate::units::{Timestamp, TokenCount};
use crate::upstream::failure::Failure;

/// How an attempt ended, as far as the backend is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptResult {
    pub(crate) outcome: Outcome,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) requester: Requester,
    pub(crate) is_streaming: bool,
    /// When the first token of a stream passed.
    pub(crate) first_token: Option<Timestamp>,
    /// Whether the response goes to the client.
    pub(crate) is_relayed: bool,
    /// Tokens the engine counted.
    pub(crate) usage: Option<Usage>,
    /// Whether the backend did not find what was requested.
    pub(crate) is_not_found: bool,
    /// Whether the request unloads the model.
    pub(crate) unloads: bool,
    /// Whether the model ran: other responses say nothing about its latency.
    pub(crate) runs_model: bool,
    /// Whether the request was moved elsewhere before its first token.
    pub(crate) is_moved: bool,
}

impl AttemptResult {
    /// The result by the response's status, where nothing goes wrong after its head.
    pub(crate) fn by_status(status: u16, ctx: &RequestContext) -> Self {
        let outcome = match status {
            500.. => Outcome::Fault,
            400..=499 => Outcome::Client,
            _ => Outcome::Ok,
        };
        Self {
            outcome,
            code: None,
            requester: ctx.requester,
            is_streaming: ctx.record.is_streaming,
            first_token: ctx.record.first_token,
            is_relayed: true,
            usage: ctx.record.usage,
            is_not_found: status == 404,
            unloads: ctx.record.unloads_model,
            runs_model: ctx.operation.is_some_and(|it| it.row().work != Work::Text),
            is_moved: false,
        }
    }

    /// The result of an attempt on a backend that does not serve the request.
    pub(crate) fn unsuited(reason: &Unsuited, ctx: &RequestContext) -> Self {
        let (outcome, code) = match reason {
            Unsuited::NotConverted(reason) => (Outcome::Client, Some(reason.to_error().code)),
            Unsuited::TooLong(_) => (Outcome::Client, Some(ErrorCode::ContextLengthExceeded)),
            Unsuited::Unsupported => (Outcome::Client, Some(ErrorCode::CapabilityMismatch)),
            Unsuited::Moved(_) => (Outcome::Cancel, None),
        };
        let is_moved = matches!(reason, Unsuited::Moved(_));
        let by_status = Self::by_status(ctx.record.status, ctx);
        Self { outcome, code, is_moved, is_relayed: false, ..by_status }
    }

    /// The result of an attempt that failed. `jitter` in 0..1 lengthens a cooldown.
    pub(crate) fn failed(failure: &Failure, ctx: &RequestContext, jitter: f64) -> Self {
        let config = &ctx.generation.config.routing.cooldown;
        let outcome = outcome_of(failure, cooldown_time(config, requested_wait(failure), jitter));
        let by_status = Self::by_status(ctx.record.status, ctx);
        Self { outcome, code: Some(code_of(failure)), is_relayed: false, ..by_status }
    }

    /// The result of an attempt that has ended. `jitter` in 0..1 lengthens a cooldown.
    pub(crate) fn of(end: &AttemptEnd, ctx: &RequestContext, jitter: f64) -> Self {
        match end {
            AttemptEnd::Failed(failure) => Self::failed(failure, ctx, jitter),
            AttemptEnd::Relayed(_) => {
                let by_status = Self::by_status(ctx.record.status, ctx);
                let outcome = ctx.record.outcome.unwrap_or(by_status.outcome);
                Self { outcome, code: ctx.record.code, ..by_status }
            }
        }
    }
}

/// Reports the result to the backend's health, circuit breaker, cooldown and latencies, and releases
/// the in-flight permit. Only the first call for an attempt counts: the permit is taken with it.
pub(crate) fn record_outcome(
    attempt: &Attempt<'_>,
    result: &AttemptResult,
    router: &Router,
    observers: &Observers,
) {
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
    learn_models(attempt, result, at);
    observers.attempt_ended(&AttemptEnded {
        backend: attempt.serving.id,
        name: &attempt.serving.state.name,
        provider: attempt.backend.config.engine.provider(),
        server: (&attempt.backend.config.url.host, attempt.backend.config.url.port),
        number: attempt.number,
        trace: attempt.trace,
        decision: attempt.decision,
        router,
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

/// What a response shows of the backend's models: that this one is in memory or not, or that what is known of
/// them is outdated.
fn learn_models(attempt: &Attempt<'_>, result: &AttemptResult, at: Timestamp) {
    let state = &attempt.serving.state;
    if !result.runs_model {
        return;
    }
    if result.is_not_found {
        state.invalidate_models();
    } else if result.outcome == Outcome::Ok
        // What a loaded model pushed out is in memory no longer.
        && (result.unloads || attempt.serving.model_state.learn_response(at))
    {
        state.invalidate_loaded();
    }
}

/// The wait that a refusal requests.
fn requested_wait(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Refused(held) => held.retry_after,
        Failure::NotSent(_)
        | Failure::NoResponse { .. }
        | Failure::ServerError(_)
        | Failure::TimedOut(_)
        | Failure::BadResponse(_)
        | Failure::ClientGone => None,
    }
}

/// The wait a response requests before a retry: `retry-after-ms`, or `Retry-After` in seconds or as a
/// date.
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
    Some(since_1970.saturating_sub(Duration::from_secs(crate::clock::unix_seconds())))
}
