//! Metrics of the state of each backend, and of groups: backends that stand for every address of a
//! name.

use std::time::Duration;

use penstock_core::fleet::{BreakerState, Health, OpenReason};

use super::super::Scrape;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{Samples, flag, from_size, number, per_backend, to_sample};
use super::BACKEND;

const GROUP: &[&str] = &["group"];

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
        "penstock_backend_frozen",
        BACKEND,
        |_, scrape| per_backend(scrape, |backend| flag(backend.state.is_frozen())),
        "1 while requests to the backend make no progress, although its health checks may pass",
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
        "penstock_backend_others_in_flight",
        BACKEND,
        |_, scrape| {
            let shares = scrape.proxy.shared_state().is_some();
            per_backend(scrape, |one| shares.then(|| one.state.load.peers_in_flight().into()))
        },
        "requests of other penstocks in flight on the backend, as they reported it last; with `shared_state`",
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
                let state = scrape.fleet.breaker_state(&backend.state, scrape.now);
                flag(state != BreakerState::Closed)
            })
        },
        "1 while the circuit breaker is open or half-open, or those of all models of the backend are",
    ),
    counter(
        "penstock_breaker_transitions_total",
        &["backend", "to", "reason"],
        |_, scrape| breaker_transitions(scrape),
        "circuit breakers that opened or closed; `to` is open or closed, `reason` is unreachable, faults, refusals, health_check or probe",
    ),
    gauge(
        "penstock_backend_clients_avoiding",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| {
                Some(from_size(scrape.fleet.clients_avoiding(&backend.state, scrape.now)))
            })
        },
        "clients whose requests avoid a model of the backend because it fails for them more than on other backends",
    ),
    gauge(
        "penstock_backend_cooldown",
        BACKEND,
        |_, scrape| {
            per_backend(scrape, |backend| flag(backend.state.cooldowns.is_active(scrape.now)))
        },
        "1 while the backend or one of its models is in cooldown after it returned 429 or 503",
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
                Some(from_size(scrape.proxy.pool.idle_count(backend.state.id)))
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
    gauge(
        "penstock_group_backends",
        GROUP,
        |_, scrape| {
            let groups = scrape.fleet.groups.iter();
            groups.map(|one| number(&[&one.name], from_size(one.addresses.len()))).collect()
        },
        "backends that a name with `resolve: each` or `srv` stands for now",
    ),
    gauge(
        "penstock_group_unused_addresses",
        GROUP,
        |_, scrape| {
            let groups = scrape.fleet.groups.iter();
            groups.map(|one| number(&[&one.name], from_size(one.unused))).collect()
        },
        "addresses of the name that are not used, because there are more than `discovery.max_addresses`",
    ),
    counter(
        "penstock_group_lookups_total",
        &["group", "result"],
        |_, scrape| {
            let groups = scrape.fleet.groups.iter();
            let samples = groups.flat_map(|one| {
                let (found, failed) = one.lookups.counts();
                [("found", found), ("failed", failed)]
                    .map(|(result, count)| number(&[&one.name, result], to_sample(count)))
            });
            samples.collect()
        },
        "lookups of the name; `result` is found, or failed (the addresses before it stay in use)",
    ),
];

fn breaker_transitions(scrape: &Scrape<'_>) -> Samples {
    let mut samples = Samples::new();
    for backend in &scrape.fleet.backends {
        let (name, breaker) = (&*backend.state.name, &backend.state.breaker);
        for reason in OpenReason::ALL {
            let count = to_sample(breaker.times_opened(reason));
            samples.push(number(&[name, "open", reason.name()], count));
        }
        let count = to_sample(breaker.times_closed());
        samples.push(number(&[name, "closed", OpenReason::Probe.name()], count));
    }
    samples
}
