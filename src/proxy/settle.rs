//! What a backend's state learns from an attempt: health, breaker, rest, latencies.

use std::time::Duration;

use pingora::http::ResponseHeader;

use super::Proxy;
use super::context::RequestContext;
use super::failure::Failure;
use super::forward::{Attempt, AttemptEnd};
use crate::clock::now;
use crate::config::RestConfig;
use crate::registry::{InflightGuard, Outcome, Probe, Source};
use crate::routing::AttemptEnded;

impl Proxy {
    /// Lets the backend's health, breaker, rest and latencies learn how the attempt ended.
    pub(super) fn settle(
        &self,
        ctx: &RequestContext,
        attempt: &Attempt<'_>,
        end: &AttemptEnd,
        guard: &InflightGuard,
    ) {
        let at = now();
        let rest = &ctx.generation.config.routing.rest;
        let (outcome, code) = match end {
            AttemptEnd::Failed(failure) => {
                (failure.outcome(rest_time(rest, failure)), Some(failure.code()))
            }
            AttemptEnd::Relayed(_) => (relayed_outcome(ctx), ctx.ending.code),
        };
        let state = &attempt.serving.state;
        let source =
            Source { at, client: ctx.client_hash, probe: guard.probe() == Probe::Breaker };
        state.learn_outcome(outcome, source, &attempt.backend.config.health.breaker);
        if outcome == Outcome::Ok {
            // Only the first-due probe begins during a rest; an older answer says nothing about it.
            if guard.probe() == Probe::Rest {
                state.rest.end();
            }
            let latency = &attempt.serving.latency;
            match (ctx.ending.is_streaming, ctx.ending.first_token) {
                (true, Some(first)) => latency.learn_first_token(first.since(attempt.started)),
                (true, None) => {}
                (false, _) => latency.learn_answer(at.since(attempt.started)),
            }
        }
        let took = at.since(attempt.started);
        let event = AttemptEnded { backend: attempt.serving.id, outcome, code, took };
        for observer in &self.observers {
            observer.attempt_ended(&event);
        }
    }
}

fn relayed_outcome(ctx: &RequestContext) -> Outcome {
    ctx.ending.outcome.unwrap_or(match ctx.ending.status {
        500.. => Outcome::Fault,
        400..=499 => Outcome::Client,
        _ => Outcome::Ok,
    })
}

fn rest_time(config: &RestConfig, failure: &Failure) -> Duration {
    let asked = match failure {
        Failure::Refused(held) => held.retry_after,
        Failure::NotSent(_)
        | Failure::Unanswered { .. }
        | Failure::Failed(_)
        | Failure::TimedOut(_)
        | Failure::BadAnswer(_)
        | Failure::ClientGone => None,
    };
    asked.unwrap_or(config.default).clamp(config.min, config.max.max(config.min))
}

/// How long an answer says to stay away: `retry-after-ms`, or `Retry-After` in seconds or as a
/// date.
pub(super) fn retry_after(header: &ResponseHeader) -> Option<Duration> {
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
