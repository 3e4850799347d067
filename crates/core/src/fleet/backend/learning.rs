//! State that health checks and attempts update.

use std::sync::atomic::Ordering;

use penstock_api::units::{Timestamp, to_micros};
use penstock_config::{BreakerConfig, HealthConfig};

use super::{BackendState, CheckVerdict};
use crate::fleet::circuit_breaker::{BreakerTransition, pauses_end};
use crate::fleet::cooldown::{CooldownCause, CooldownScope};
use crate::fleet::health::{CheckOutcome, CheckResult, Health};
use crate::fleet::outcome::{Outcome, OutcomeSource, RefusedPart};

impl BackendState {
    /// Records a health check. A backend that was away or joined a running fleet starts slowly.
    pub fn learn_check(&self, check: CheckResult, config: &HealthConfig) -> CheckVerdict {
        // At least 1, because 0 stands for no check so far.
        self.checked_at.store(check.at.0.max(1), Ordering::Relaxed);
        let is_passed = matches!(check.outcome, CheckOutcome::Passed(_));
        if let CheckOutcome::Passed(took) = check.outcome {
            let micros = u32::try_from(to_micros(took)).unwrap_or(u32::MAX);
            self.check_micros.store(micros.max(1), Ordering::Relaxed);
            self.progress.note_passed_check(check.at);
        }
        let was_away = self.health.status() == Health::Unhealthy;
        let breaker = self.breaker.learn_check(check, &config.breaker);
        let health = self.health.learn(is_passed, config.rise, config.fall);
        // `takes_slow_start` comes first, because it also clears the request.
        if health == Some(Health::Healthy) && (self.takes_slow_start() || was_away) {
            self.begin_slow_start(check.at, config.slow_start);
        }
        // Queues take recovered capacity at once, and stop waiting for capacity that is gone.
        if health.is_some() || breaker.is_some() {
            self.capacity.wake();
        }
        CheckVerdict { health, breaker }
    }

    /// Records the end of an attempt for cooldowns and breaker. Returns the breaker's transition,
    /// if it opened or closed.
    pub fn learn_outcome(
        &self,
        outcome: Outcome,
        source: OutcomeSource,
        config: &BreakerConfig,
    ) -> Option<BreakerTransition> {
        match outcome {
            Outcome::Busy { cooldown, status } => {
                let cause = CooldownCause { status, client: source.requester.client };
                self.cooldowns.start(source.scope, source.at.after(cooldown), cause, source.at);
            }
            Outcome::Refused { part, status } => {
                let cause = CooldownCause { status, client: source.requester.client };
                let scope = match part {
                    RefusedPart::Backend => CooldownScope { model: 0, ..source.scope },
                    RefusedPart::Model => source.scope,
                };
                self.cooldowns.pause(scope, cause, source.started, source.at);
            }
            Outcome::Fault => {
                self.note_fault(source.at, config);
                self.request_check();
            }
            Outcome::Unreachable => self.request_check(),
            Outcome::Ok
            | Outcome::Empty
            | Outcome::Client
            | Outcome::Cancel
            | Outcome::Shortage => {}
        }
        self.breaker.learn(outcome, source, config)
    }

    /// Makes decisions look at the evidence for the next `breaker.window`.
    pub(in crate::fleet) fn note_fault(&self, at: Timestamp, config: &BreakerConfig) {
        self.faults_until.fetch_max(at.after(config.window).0, Ordering::Relaxed);
    }

    /// Makes decisions look at the evidence until a pause that starts at `at` is forgotten.
    pub(in crate::fleet) fn note_pause(&self, at: Timestamp, config: &BreakerConfig) {
        self.faults_until.fetch_max(pauses_end(at, config).0, Ordering::Relaxed);
    }

    /// Returns whether faults of the last `breaker.window`, or a pause, may keep requests away.
    pub fn has_recent_faults(&self, now: Timestamp) -> bool {
        self.faults_until.load(Ordering::Relaxed) > now.0
    }
}
