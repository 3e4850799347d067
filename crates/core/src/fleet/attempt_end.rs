//! The end of an attempt and its effect on a candidate: breaker, cooldown, slow start, latencies.

use std::time::Duration;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_config::{BreakerConfig, CooldownConfig, HealthConfig};

use super::circuit_breaker::{BreakerState, BreakerTransition, ModelTransition, OpenReason};
use super::evidence::Learned;
use super::fault_shares::Sign;
use super::load::Probe;
use super::outcome::{Outcome, OutcomeSource, Requester};
use super::progress::ExpectedWait;
use super::quality::QualitySample;
use super::serving::Serving;

/// The number of further requests in flight that add one more expected duration to a whole
/// response.
const SLOWING_BATCH: u32 = 32;
/// The assumed time per token of a whole response: an engine may use all that the client allows.
const WHOLE_TOKEN_TIME: Duration = Duration::from_millis(20);
/// The longest time that is expected for it: a large limit must not hide a dead engine.
const MAX_ALLOWED_TIME: Duration = Duration::from_secs(10);
/// The time after a response of a model on a backend during which a 4xx there is no evidence.
const SERVED: Duration = Duration::from_secs(10);
/// The largest relative extension of a default cooldown by jitter.
const MAX_COOLDOWN_JITTER: f64 = 0.1;

/// The latency information in a successful attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencySample {
    /// A stream, with the time of its first token if there was one.
    Stream(Option<Timestamp>),
    /// A stream that had stalled when its client left.
    Stalled,
    /// A response that is not streamed.
    Whole,
    /// Nothing: the model did not run.
    None,
}

impl Serving {
    /// Records how an attempt ended. Returns the transition of the backend's breaker or of the
    /// model's, if one opened or closed.
    pub fn learn_attempt(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        sample: LatencySample,
        health: &HealthConfig,
    ) -> Option<BreakerTransition> {
        if sample == LatencySample::Stalled {
            return self.learn_stall(source, health);
        }
        let transition = self.state.learn_outcome(outcome, source, &health.breaker);
        let learned = self.learn_evidence(outcome, source, sample, &health.breaker);
        if transition == Some(BreakerTransition::Closed) || learned.is_own_released {
            self.state.begin_slow_start(source.at, health.slow_start);
        }
        let transition = transition.or_else(|| self.model_transition(learned, outcome, source.at));
        if outcome == Outcome::Ok {
            // Only the probe starts during a cooldown. A response to an older request proves
            // nothing about it.
            if source.probe == Probe::Cooldown {
                self.state.cooldowns.clear(source.scope);
            }
            if matches!(sample, LatencySample::Stream(_) | LatencySample::Whole) {
                self.latency.durations.learn(source.at.since(source.started));
            }
            match sample {
                LatencySample::Stream(Some(first)) => {
                    let took = first.since(source.started);
                    self.latency.learn_first_token(took, first);
                    self.evidence.longest_first_token.learn(took, first);
                }
                LatencySample::Whole => {
                    let took = source.at.since(source.started);
                    self.latency.learn_response(took, source.at);
                    self.evidence.longest.learn(took, source.at);
                }
                LatencySample::Stream(None) | LatencySample::Stalled | LatencySample::None => {}
            }
        }
        transition
    }

    /// Records that a client left a stream that had stalled. That is evidence against the model on
    /// this backend, as a fault is, and none for the breaker: a cancelled request is neutral there.
    fn learn_stall(
        &self,
        source: OutcomeSource,
        health: &HealthConfig,
    ) -> Option<BreakerTransition> {
        self.state.note_fault(source.at, &health.breaker);
        let (outcome, sample) = (Outcome::Fault, LatencySample::None);
        let learned = self.learn_evidence(outcome, source, sample, &health.breaker);
        self.model_transition(learned, outcome, source.at)
    }

    /// Measures an attempt that ended for the policies that have bounds for quality. `tokens`: the
    /// tokens of the whole response.
    pub fn measure_quality(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        sample: LatencySample,
        tokens: Option<TokenCount>,
    ) {
        let Some(quality) = &self.quality else { return };
        let OutcomeSource { at, started, requester, .. } = source;
        let is_fault = matches!(outcome, Outcome::Fault | Outcome::Unreachable);
        // Prompts that fail everywhere say nothing about this backend.
        let is_own = is_fault && self.evidence.has_bad_prompts(requester.client, at);
        if is_own
            || !(is_fault || outcome == Outcome::Ok)
            || sample == LatencySample::None && !is_fault
        {
            return;
        }
        let first = match sample {
            LatencySample::Stream(first) if !is_fault => first,
            LatencySample::Stream(_)
            | LatencySample::Stalled
            | LatencySample::Whole
            | LatencySample::None => None,
        };
        let further = tokens.and_then(|tokens| tokens.0.checked_sub(1)).filter(|more| *more > 0);
        quality.learn(&QualitySample {
            at,
            is_fault,
            ttft: first.map(|first| first.since(started)),
            tpot: first.zip(further).map(|(first, further)| at.since(first) / further),
        });
    }

    /// Records whether the model works on this backend, for the client and for all clients.
    fn learn_evidence(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        sample: LatencySample,
        config: &BreakerConfig,
    ) -> Learned {
        let is_refusal = outcome.is_refusal();
        let is_fault = is_refusal || outcome == Outcome::Fault;
        // A response that does not run the model proves nothing about it.
        let proves = outcome == Outcome::Fault || sample != LatencySample::None;
        if !(is_fault || outcome == Outcome::Ok) || !proves {
            return Learned::default();
        }
        // An engine that works may lack a capability, or one user behind a gateway may send bad
        // requests. Neither explains a success without output.
        let last = self.model_state.last_used();
        let has_served = last.is_some_and(|last| source.at.since(last) < SERVED);
        if outcome == Outcome::Client && has_served {
            return Learned::default();
        }
        let OutcomeSource { at, started, requester, .. } = source;
        let (backend, client) = (self.state.serial, requester.client);
        let sign = Sign { backend, is_fault, is_refusal, client, started, at };
        let backends = match is_fault {
            true => self.evidence.usable_backends(backend),
            false => Vec::new(),
        };
        let learned = self.evidence.learn(&sign, &self.state.name, config, &backends);
        // Refusals are frequent: only those that steer requests make decisions look at them.
        if learned.has_pause() {
            self.state.note_pause(at, config);
        }
        learned
    }

    fn model_transition(
        &self,
        learned: Learned,
        outcome: Outcome,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        let Learned { paused, released, is_own_released, .. } = learned;
        let reason = match outcome {
            _ if outcome.is_refusal() => OpenReason::Refusals,
            _ => OpenReason::Faults,
        };
        if is_own_released {
            self.state.breaker.count_sound_model();
        }
        if let Some((_, paused)) = &paused {
            self.state.breaker.count_faulty_model(reason);
            self.state.faulty_models.add(self.cooldown.model, paused, now);
        }
        let paused = paused.map(|(pause, _)| (pause, reason));
        let is_change = paused.is_some() || !released.is_empty();
        let model = || self.model.clone();
        is_change
            .then(|| BreakerTransition::Model(ModelTransition { model: model(), paused, released }))
    }

    /// Returns the expected wait for the first byte of a request. `max_tokens`: the limit of the
    /// response, if the client set one.
    pub(crate) fn expected_wait(
        &self,
        uncached_tokens: u64,
        is_streaming: bool,
        max_tokens: Option<TokenCount>,
        now: Timestamp,
    ) -> ExpectedWait {
        if is_streaming {
            // A model may think before its first token, so prefill alone underestimates the wait.
            let usual = self.latency.first_token().unwrap_or_default();
            return ExpectedWait {
                uncached_tokens,
                generation: Some(usual),
                longest: usual,
                first_token: self.evidence.longest_first_token.value(now),
            };
        }
        // A larger batch slows every token of a whole response.
        let batch = f64::from(self.state.load.in_flight() / SLOWING_BATCH + 1);
        let allowed =
            max_tokens.map(|limit| WHOLE_TOKEN_TIME.saturating_mul(limit.0).min(MAX_ALLOWED_TIME));
        let known = self.evidence.longest.value(now).map(|longest| longest.mul_f64(batch));
        ExpectedWait {
            uncached_tokens,
            generation: known.map(|known| known.max(allowed.unwrap_or_default())),
            // Without a limit it may be as long as any.
            longest: known.unwrap_or_default().max(allowed.unwrap_or(MAX_ALLOWED_TIME)),
            first_token: None,
        }
    }

    /// Returns the breaker state that recent faults impose on a request of `requester`: `Open` if
    /// other backends are preferred, `HalfOpen` if the request would probe.
    pub fn evidence_against(&self, requester: Requester, now: Timestamp) -> BreakerState {
        if !self.state.has_recent_faults(now) {
            return BreakerState::Closed;
        }
        match self.evidence.state(requester.client, self.state.serial, now) {
            BreakerState::Closed if self.state.faulty_models.are_several(now) => BreakerState::Open,
            state => state,
        }
    }
}

/// Returns the duration of a cooldown: the requested `Retry-After` within the configured bounds, or
/// the default. `jitter` in 0..1 adds up to a tenth to the default. Otherwise backends that refused
/// together would get all requests back at the same moment (thundering herd). A requested time has
/// nothing added: clients get it as well, and would be refused when they come.
pub fn cooldown_time(
    config: &CooldownConfig,
    requested: Option<Duration>,
    jitter: f64,
) -> Duration {
    let time = requested.unwrap_or_else(|| {
        let default = config.default.min(config.max);
        default.saturating_add(default.mul_f64(MAX_COOLDOWN_JITTER * jitter.clamp(0.0, 1.0)))
    });
    time.clamp(config.min, config.max.max(config.min))
}
