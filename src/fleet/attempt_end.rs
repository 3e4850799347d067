//! What a candidate's state learns from the end of an attempt: breaker, cooldown, slow start, latencies.

use std::time::Duration;

use super::circuit_breaker::BreakerTransition;
use super::load::Probe;
use super::outcome::{Outcome, OutcomeSource};
use super::serving::Serving;
use crate::config::{CooldownConfig, HealthConfig};
use crate::units::Timestamp;

/// The share by which a cooldown may be longer than requested.
const COOLDOWN_JITTER: f64 = 0.1;

/// What a successful attempt shows of the model's latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencySample {
    /// A stream, and when its first token passed, if one did.
    Stream(Option<Timestamp>),
    /// A response that is not streamed.
    Whole,
    /// Nothing: the model did not run.
    None,
}

impl Serving {
    /// Records how an attempt ended. Returns the breaker's transition, if it opened or closed.
    pub fn learn_attempt(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        sample: LatencySample,
        health: &HealthConfig,
    ) -> Option<BreakerTransition> {
        let transition = self.state.learn_outcome(outcome, source, &health.breaker);
        if transition == Some(BreakerTransition::Closed) {
            self.state.begin_slow_start(source.at, health.slow_start);
        }
        if outcome == Outcome::Ok {
            // Only the probe starts during a cooldown: a response to an older request says nothing
            // about it.
            if source.probe == Probe::Cooldown {
                self.state.cooldowns.clear(source.scope);
            }
            match sample {
                LatencySample::Stream(Some(first)) => {
                    self.latency.learn_first_token(first.since(source.started), first);
                }
                LatencySample::Whole => {
                    self.latency.learn_response(source.at.since(source.started), source.at);
                }
                LatencySample::Stream(None) | LatencySample::None => {}
            }
        }
        transition
    }
}

/// How long a refusal pauses a backend: what its `Retry-After` requests, within the configured bounds. Up
/// to a tenth is added by `jitter` in 0..1, so that backends that refused together, or one backend that refused
/// several balancers, do not get all requests back at the same moment (thundering herd).
pub fn cooldown_time(
    config: &CooldownConfig,
    requested: Option<Duration>,
    jitter: f64,
) -> Duration {
    let time = requested.unwrap_or(config.default);
    let added = time.min(config.max).mul_f64(COOLDOWN_JITTER * jitter.clamp(0.0, 1.0));
    time.saturating_add(added).clamp(config.min, config.max.max(config.min))
}
