//! The time at which a full backend has room, and one that is out of use may be used again. Read
//! for refusals only, by what is known without predictions: the requests in flight, their usual
//! duration, the next health checks and the circuit breaker.

use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_config::HealthConfig;

use super::backend::BackendState;
use super::drain_estimate::Running;
use super::durations::{UNKNOWN_DURATION, time_left};
use super::health::Health;
use super::model_state::ModelState;
use super::openings::Openings;
use super::serving::Serving;

/// The duration of a probe on a backend of which no response is known.
const UNKNOWN_PROBE: Duration = Duration::from_secs(1);

/// The limit that leaves the least room for a request.
struct TightestLimit {
    limit: u32,
    in_flight: u32,
    is_of_model: bool,
}

impl TightestLimit {
    fn room(&self) -> u32 {
        self.limit.saturating_sub(self.in_flight)
    }
}

impl BackendState {
    /// The time until it may be used, if its checks pass from now on. Zero if neither these nor its
    /// circuit breaker keep it out of use. Nothing says when an operator ends a drain: the next
    /// check is as good a time as any.
    pub fn time_until_usable(&self, config: &HealthConfig, now: Timestamp) -> Duration {
        let probe = self.breaker.time_until_probe(now);
        let is_down = self.status() != Health::Healthy;
        if probe.is_zero() && !is_down {
            return Duration::ZERO;
        }
        let interval = match is_down {
            true => self.health.check_interval(config),
            // An open breaker is checked as often as a backend that is down.
            false => config.unhealthy_interval,
        };
        // As late as it may be: a request that comes before it is refused.
        let interval = interval.mul_f64(1.0 + config.jitter) + self.check_latency();
        let passed = self.checked_at().map_or(Duration::MAX, |at| now.since(at));
        // A check that is overdue is under way.
        let next = interval.saturating_sub(passed);
        match is_down {
            true => {
                let further = self.health.checks_until_healthy(config).saturating_sub(1);
                next.saturating_add(interval.saturating_mul(further))
            }
            // A passed check lets a request probe at once.
            false => next.min(probe),
        }
    }
}

impl Serving {
    /// The time within which nine of ten of its requests end; `None` before the first has.
    pub(crate) fn usual_duration(&self) -> Option<Duration> {
        self.latency.durations.usual()
    }

    /// Returns the times at which requests find room there, once its checks pass. `config`: of the
    /// checks of its backend.
    pub fn openings(&self, config: &HealthConfig, now: Timestamp) -> Openings {
        let mut openings = Openings::default();
        let usual = self.state.unread_durations.usual();
        self.add_openings(self.state.time_until_usable(config, now), usual, now, &mut openings);
        openings
    }

    /// Adds the times at which requests find room there, from `usable_in` on. `usual`: the duration
    /// of requests, if this backend has not shown it.
    pub(crate) fn add_openings(
        &self,
        usable_in: Duration,
        usual: Option<Duration>,
        now: Timestamp,
        openings: &mut Openings,
    ) {
        let usual = self.usual_duration().or(usual).unwrap_or(UNKNOWN_DURATION);
        let mut usable_in = usable_in;
        if !self.state.breaker.is_closed() {
            // One request probes, and the others wait for its first token or its end.
            let probe = self.latency.first_token().or(self.usual_duration());
            openings.add(usable_in, 1, usual);
            usable_in = usable_in.saturating_add(probe.unwrap_or(UNKNOWN_PROBE));
        }
        let Some(limit) = self.tightest_limit() else { return openings.add_unlimited(usable_in) };
        openings.add(usable_in, limit.room(), usual);
        let mut left = limit.in_flight.min(limit.limit);
        for running in self.running(limit.is_of_model) {
            if left == 0 {
                return;
            }
            left -= 1;
            let takes = match running.model == ModelState::tag(&self.model_state) {
                false if !running.usual.is_zero() => running.usual,
                _ => usual,
            };
            let wait = time_left(takes, now.since(running.started));
            openings.add(wait.max(usable_in), 1, usual);
        }
        // Those that are not tracked.
        openings.add(usual.max(usable_in), left, usual);
    }

    /// The requests in flight, of the backend or of the model alone.
    fn running(&self, is_of_model: bool) -> impl Iterator<Item = Running> {
        let tag = ModelState::tag(&self.model_state);
        let all = self.state.drain_estimate.running();
        all.filter(move |one| !is_of_model || one.model == tag)
    }

    fn tightest_limit(&self) -> Option<TightestLimit> {
        let (load, model) = (&self.state.load, &self.model_state.load);
        let limits =
            [(load, self.max_in_flight, false), (model, self.max_in_flight_of_model, true)];
        let limits = limits.into_iter().filter(|(_, limit, _)| *limit != u32::MAX);
        let limits = limits.map(|(load, limit, is_of_model)| TightestLimit {
            limit: load.own_limit(limit),
            in_flight: load.in_flight(),
            is_of_model,
        });
        limits.min_by_key(|one| (one.room(), one.limit))
    }
}
