//! What a backend's state learns from an attempt: health, breaker, rest, latencies.

use std::time::Duration;

use pingora::http::ResponseHeader;

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd};
use super::context::RequestContext;
use super::failure::{code_of, outcome_of};
use crate::api::ErrorCode;
use crate::clock::now;
use crate::config::CooldownConfig;
use crate::fleet::{Outcome, OutcomeSource, Probe};
use crate::routing::AttemptEnded;
use crate::units::Timestamp;
use crate::upstream::failure::Failure;

/// The share by which a rest may be longer than was asked for.
const LONGER: f64 = 0.1;

/// How an attempt ended, as far as the backend is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) code: Option<ErrorCode>,
    /// Hash of who asked.
    pub(crate) client: u64,
    pub(crate) is_streaming: bool,
    /// When the first token of a stream passed.
    pub(crate) first_token: Option<Timestamp>,
}

impl Ended {
    /// The end of an attempt by its status, where nothing went wrong behind the head.
    pub(crate) fn by_status(status: u16, ctx: &RequestContext) -> Self {
        let outcome = match status {
            500.. => Outcome::Fault,
            400..=499 => Outcome::Client,
            _ => Outcome::Ok,
        };
        Self {
            outcome,
            code: None,
            client: ctx.client_hash,
            is_streaming: ctx.ending.is_streaming,
            first_token: ctx.ending.first_token,
        }
    }

    /// The end of an attempt as its caller sees it.
    /// `spread` says by how much of its tenth a rest is longer than was asked for.
    pub(crate) fn of(end: &AttemptEnd, ctx: &RequestContext, spread: f64) -> Self {
        let by_status = Self::by_status(ctx.ending.status, ctx);
        match end {
            AttemptEnd::Failed(failure) => {
                let rest = rest_time(&ctx.generation.config.routing.cooldown, failure, spread);
                let code = Some(code_of(failure));
                Self { outcome: outcome_of(failure, rest), code, ..by_status }
            }
            AttemptEnd::Relayed(_) => {
                let outcome = ctx.ending.outcome.unwrap_or(by_status.outcome);
                Self { outcome, code: ctx.ending.code, ..by_status }
            }
        }
    }
}

impl Proxy {
    /// Lets the backend's health, breaker, rest and latencies learn how the attempt ended, and
    /// gives its place in flight back. Only the first call counts.
    pub(crate) fn settle(&self, attempt: &Attempt<'_>, ended: &Ended) {
        let Some(place) = attempt.place.lock().take() else { return };
        let at = now();
        let outcome = ended.outcome;
        let state = &attempt.serving.state;
        let source =
            OutcomeSource { at, client: ended.client, probe: place.probe() == Probe::Breaker };
        let health = &attempt.backend.config.health;
        state.learn_outcome(outcome, source, &health.breaker);
        if source.probe && state.breaker.is_closed() {
            state.begin_slow_start(at, health.slow_start);
        }
        if outcome == Outcome::Ok {
            // Only the first-due probe begins during a rest; an older answer says nothing about it.
            if place.probe() == Probe::Cooldown {
                state.cooldown.clear();
            }
            let latency = &attempt.serving.latency;
            match (ended.is_streaming, ended.first_token) {
                (true, Some(first)) => {
                    latency.learn_first_token(first.since(attempt.started), first);
                }
                (true, None) => {}
                (false, _) => latency.learn_response(at.since(attempt.started)),
            }
        }
        let took = at.since(attempt.started);
        let event = AttemptEnded {
            backend: attempt.serving.id,
            name: &attempt.serving.state.name,
            provider: attempt.backend.config.engine.provider(),
            server: (&attempt.backend.config.url.host, attempt.backend.config.url.port),
            number: attempt.number,
            trace: attempt.trace,
            outcome,
            code: ended.code,
            took,
        };
        for observer in &self.observers {
            observer.attempt_ended(&event);
        }
    }
}

/// A rest, up to a tenth longer than was asked for: backends that refused together, or one backend
/// that refused several penstocks, must not be asked again together.
fn rest_time(config: &CooldownConfig, failure: &Failure, spread: f64) -> Duration {
    let asked = match failure {
        Failure::Refused(held) => held.retry_after,
        Failure::NotSent(_)
        | Failure::NoResponse { .. }
        | Failure::ServerError(_)
        | Failure::TimedOut(_)
        | Failure::BadResponse(_)
        | Failure::ClientGone => None,
    };
    let rest = asked.unwrap_or(config.default);
    let rest = rest.saturating_add(rest.min(config.max).mul_f64(LONGER * spread.clamp(0.0, 1.0)));
    rest.clamp(config.min, config.max.max(config.min))
}

/// How long an answer says to stay away: `retry-after-ms`, or `Retry-After` in seconds or as a
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
