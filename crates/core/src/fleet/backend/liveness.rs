//! The liveness of a backend: the progress of its responses, and the results of its checks.

use std::sync::atomic::Ordering;

use penstock_api::units::Timestamp;
use penstock_config::HealthConfig;

use super::BackendState;
use crate::fleet::circuit_breaker::BreakerState;

impl BackendState {
    /// Records progress of a response: tokens of a stream or a whole response arrived.
    pub fn note_response(&self, now: Timestamp) {
        if self.progress.note(now) {
            self.end_freeze();
        }
    }

    /// Records bytes of a response that carry no tokens: signs of life, and no progress.
    pub fn note_bytes(&self, now: Timestamp) {
        if self.progress.note_bytes(now) {
            self.end_freeze();
        }
    }

    fn end_freeze(&self) {
        self.health.set_frozen(false);
        tracing::info!(backend = &*self.name, "backend makes progress again");
    }

    /// The time of the last progress of a response, to within a twentieth of a second.
    pub fn last_response(&self) -> Timestamp {
        self.progress.last()
    }

    /// Records the engine's counter of work done.
    pub fn note_work(&self, work: f64, now: Timestamp) {
        self.progress.note_work(work, now);
    }

    /// Judges whether requests make progress. Returns whether they have just stopped.
    pub fn judge_progress(&self, config: &HealthConfig, now: Timestamp) -> bool {
        let is_new = self.progress.judge(self.load.in_flight(), config, now);
        self.health.set_frozen(self.progress.is_frozen());
        is_new
    }

    /// Returns whether its requests make no progress, although its checks may pass.
    pub fn is_frozen(&self) -> bool {
        self.health.is_frozen()
    }

    /// The start of the freeze; `None` if its requests make progress.
    pub fn frozen_since(&self) -> Option<Timestamp> {
        self.progress.frozen_since()
    }

    /// The breaker state that a freeze imposes on a request: `Open` if other backends are
    /// preferred, `HalfOpen` if it would probe.
    pub fn freeze(&self, now: Timestamp) -> BreakerState {
        if self.is_frozen() { self.progress.state(now) } else { BreakerState::Closed }
    }

    /// Returns whether a request in flight may take longer than it has so far. Until it is overdue,
    /// a check that hangs proves nothing: an engine with one thread shows no page meanwhile.
    pub fn has_work_due_later(&self, now: Timestamp) -> bool {
        self.progress.has_work_due_later(now)
    }

    /// The status of its last check if that passed without a 2xx.
    pub fn check_status(&self) -> Option<u16> {
        Some(self.check_status.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    /// Sets the status of a check that passed; `None` for a 2xx. Returns whether it differs from
    /// the last one.
    pub fn set_check_status(&self, status: Option<u16>) -> bool {
        let status = status.unwrap_or(0);
        self.check_status.swap(status, Ordering::Relaxed) != status
    }

    /// Ignores a failed check that a busy engine may cause, because requests prove that the backend
    /// works.
    pub fn veto_check(&self, now: Timestamp) {
        self.checked_at.store(now.0.max(1), Ordering::Relaxed);
        self.health.veto();
        self.breaker.veto_check();
    }
}
