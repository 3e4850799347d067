//! Metrics of the state of each backend.

use std::time::Duration;

use super::super::row::{MetricRow, gauge};
use super::super::samples::{flag, from_size, per_backend};
use super::BACKEND;
use crate::fleet::{BreakerState, Health};

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_backend_up",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| flag(backend.state.health.status() == Health::Healthy))
        },
        "1 while health checks pass",
    ),
    gauge(
        "penstock_backend_draining",
        BACKEND,
        |_, scrape| per_backend(scrape, |backend| flag(backend.state.status() == Health::Draining)),
        "1 while an operator drains the backend: it receives no new requests",
    ),
    gauge(
        "penstock_backend_in_flight",
        BACKEND,
        |_, scrape| per_backend(scrape, |backend| Some(backend.state.load.in_flight().into())),
        "requests dispatched to the backend that have not ended",
    ),
    gauge(
        "penstock_backend_max_in_flight",
        BACKEND,
        |_, scrape| per_backend(scrape, |backend| backend.config.max_in_flight.map(f64::from)),
        "the backend's `max_in_flight`; absent without a limit",
    ),
    gauge(
        "penstock_backend_breaker_open",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                flag(backend.state.breaker.state(scrape.now) != BreakerState::Closed)
            })
        },
        "1 while the circuit breaker is open or half-open",
    ),
    gauge(
        "penstock_backend_cooldown",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                flag(backend.state.cooldown.ends_at(scrape.now).is_some())
            })
        },
        "1 while the backend is in cooldown after it returned 429 or 503",
    ),
    gauge(
        "penstock_backend_slow_start_share",
        BACKEND,
        |_, scrape| per_backend(scrape, |backend| Some(backend.state.share(scrape.now).into())),
        "fraction of its normal traffic the backend receives during slow start (`health.slow_start`); 1 otherwise",
    ),
    gauge(
        "penstock_backend_idle_connections",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                Some(from_size(scrape.proxy.idle_connections(backend.state.id)))
            })
        },
        "idle connections to the backend in the connection pool",
    ),
    gauge(
        "penstock_backend_check_seconds",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                let took = backend.state.check_latency();
                (took > Duration::ZERO).then_some(took.as_secs_f64())
            })
        },
        "duration of the last successful health check; absent before the first",
    ),
];
