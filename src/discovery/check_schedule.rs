//! The time of a backend's next check: after its interval, and sooner when something suggests that
//! its state has changed. Two checks are always at least `health.fast_interval` apart.

use std::future::poll_fn;
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_config::HealthConfig;
use penstock_core::fleet::{Backend, BackendState};
use rand::Rng;
use rand::rngs::SmallRng;

/// The number of fast intervals without progress of any response after which a backend with
/// requests in flight counts as silent.
const SILENT_INTERVALS: u32 = 3;

pub(super) struct CheckSchedule {
    backend: Backend,
    rng: SmallRng,
}

impl CheckSchedule {
    pub(super) fn new(backend: Backend, rng: SmallRng) -> Self {
        Self { backend, rng }
    }

    /// Waits for the first check after a reload, or after other backends came or went: the schedule
    /// before it continues. Overdue checks start at random times, not all at once.
    pub(super) async fn wait_at_start(&mut self) {
        let since = self.backend.state.checked_at().map_or(Duration::MAX, |at| now().since(at));
        let left = match self.interval().saturating_sub(since) {
            Duration::ZERO => self.health().fast_interval.mul_f64(self.rng.random()),
            left => left,
        };
        self.wait_at_most(left).await;
    }

    /// Waits until the next check is due.
    pub(super) async fn wait(&mut self) {
        let jitter = self.health().jitter * self.rng.random_range(-1.0..=1.0);
        let interval = self.interval().mul_f64((1.0 + jitter).max(0.0));
        self.wait_at_most(interval).await;
    }

    /// Judges whether requests make progress: no page reports that.
    pub(super) fn judge_progress(&self) {
        let (state, health) = (&self.backend.state, self.health());
        if state.judge_progress(health, now()) {
            let (in_flight, silent_s) = (state.load.in_flight(), health.frozen_after.as_secs_f64());
            tracing::warn!(
                backend = %state.name, in_flight, silent_s,
                "backend is frozen: its requests make no progress"
            );
        }
    }

    fn health(&self) -> &HealthConfig {
        &self.backend.config.health
    }

    fn interval(&self) -> Duration {
        self.backend.state.health.check_interval(self.health())
    }

    /// Waits for `interval`, or less if a check is due sooner: it is requested, responses make no
    /// progress, or requests fail to reach the backend. In the last case the backend is used again
    /// soon after it recovers.
    async fn wait_at_most(&self, interval: Duration) {
        let (state, health) = (&self.backend.state, self.health());
        let started = now();
        let until = started.after(interval);
        let fast = health.fast_interval.min(interval);
        tokio::time::sleep(fast).await;
        let mut silence = BackendSilence::new(started);
        loop {
            self.judge_progress();
            let left = until.since(now());
            let is_blocked = !state.breaker.is_closed();
            let is_retest_due = is_blocked && now().since(started) >= health.unhealthy_interval;
            let is_silent = silence.lasts(state, now()) >= health.fast_interval * SILENT_INTERVALS;
            if left.is_zero() || is_retest_due || is_silent {
                return;
            }
            let requested = poll_fn(|cx| state.poll_check_requested(cx));
            if tokio::time::timeout(fast.min(left), requested).await.is_ok() {
                return;
            }
        }
    }
}

/// The time since a backend with requests in flight has sent anything. A stopped process and
/// dropped packets show here long before a timeout passes. So does a long prefill, but its engine
/// passes a check.
struct BackendSilence {
    since: Timestamp,
}

impl BackendSilence {
    fn new(now: Timestamp) -> Self {
        Self { since: now }
    }

    fn lasts(&mut self, state: &BackendState, now: Timestamp) -> Duration {
        // An idle backend has nothing to send, so its silence shows nothing.
        if state.load.in_flight() == 0 {
            self.since = now;
        }
        self.since = self.since.max(state.last_response());
        now.since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use rand::SeedableRng;

    use super::*;
    use penstock_config::{BackendConfig, Config, Environment};
    use penstock_core::fleet::{BreakerState, CheckOutcome, CheckResult, Fleet};

    fn backend() -> Backend {
        let yaml = "health: { interval: 60s, unhealthy_interval: 60s, fast_interval: 20ms }\n\
                    backends: [{ url: 'http://127.0.0.1:1', engine: vllm }]";
        let config = Config::parse(yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        learn(&backend, true);
        backend
    }

    fn learn(backend: &Backend, is_passed: bool) {
        let passed = CheckOutcome::Passed(Duration::from_millis(1));
        let outcome = if is_passed { passed } else { CheckOutcome::Failed };
        let _verdict = backend.state.learn_check(
            CheckResult { at: now(), outcome },
            &penstock_config::HealthConfig {
                rise: 2,
                fall: 3,
                ..penstock_config::HealthConfig::default()
            },
        );
    }

    /// Returns the time that the schedule of a backend waits; 400 ms at most.
    async fn waited(backend: &Backend) -> Duration {
        let mut schedule = CheckSchedule::new(backend.clone(), SmallRng::seed_from_u64(1));
        let started = now();
        let limit = Duration::from_millis(400);
        let _waited = tokio::time::timeout(limit, schedule.wait()).await;
        now().since(started)
    }

    const LONG: Duration = Duration::from_millis(390);
    const FAST: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn requested_check_is_due_after_the_fast_interval() {
        let backend = backend();
        assert!(waited(&backend).await > LONG, "nothing suggests a check");
        backend.state.request_check();
        let first = waited(&backend).await;
        assert!((FAST..LONG).contains(&first), "{first:?}");
        assert!(waited(&backend).await > LONG, "one request, one check");
    }

    #[tokio::test]
    async fn failed_check_is_followed_by_fast_checks_until_the_verdict() {
        let backend = backend();
        learn(&backend, false);
        assert!(waited(&backend).await < LONG, "in doubt");
        learn(&backend, true);
        assert!(waited(&backend).await > LONG, "it passed again");
        (0..3).for_each(|_| learn(&backend, false));
        assert!(waited(&backend).await > LONG, "unhealthy: the interval of unhealthy backends");
    }

    #[tokio::test]
    async fn backend_behind_an_open_breaker_is_checked_by_the_unhealthy_interval() {
        let mut backend = backend();
        let mut config = BackendConfig::clone(&backend.config);
        config.health.unhealthy_interval = FAST * 5;
        backend.config = Arc::new(config);
        assert!(waited(&backend).await > LONG, "its breaker is closed");
        backend.state.breaker.set(BreakerState::Open, now());
        let open = waited(&backend).await;
        assert!((FAST * 5..LONG).contains(&open), "{open:?}");
    }

    #[tokio::test]
    async fn backend_that_falls_silent_is_checked_early() {
        let backend = backend();
        backend.state.load.set_in_flight(1);
        let silent = waited(&backend).await;
        assert!((FAST * SILENT_INTERVALS..LONG).contains(&silent), "{silent:?}");
        backend.state.load.set_in_flight(0);
        assert!(waited(&backend).await > LONG, "nothing is in flight");
    }

    #[test]
    fn silence_needs_requests_in_flight_and_no_progress() {
        let (state, second) = (&backend().state, Duration::from_secs(1));
        let at = |seconds: u64| Timestamp(0).after(second * u32::try_from(seconds).unwrap());
        let mut silence = BackendSilence::new(at(1));
        assert_eq!(silence.lasts(state, at(5)), Duration::ZERO, "nothing is in flight");
        state.load.set_in_flight(1);
        assert_eq!(silence.lasts(state, at(7)), second * 2);
        state.note_response(at(8));
        assert_eq!(silence.lasts(state, at(9)), second);
        assert_eq!(silence.lasts(state, at(11)), second * 3);
    }
}
