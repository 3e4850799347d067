//! The samples of what is read at the time of a scrape: the fleet, the proxy, the process.

use std::time::Duration;

use super::Metrics;
use super::samples::{Sample, Samples, from_size, number, one, to_sample};
use crate::config::LimitsConfig;
use crate::discovery::ScrapeBudget;
use crate::downstream::close_reasons::{CloseReason, CloseReasons};
use crate::fleet::{Backend, BackendId, BreakerState, Health, Readings, Topology};
use crate::observe::queue::Deliveries;
use crate::prefix::MemoryBudget;
use crate::shadow::ShadowFigures;
use crate::units::{Timestamp, widen};

/// What is read at the time of a scrape.
pub struct Scrape<'a> {
    /// When.
    pub now: Timestamp,
    /// The fleet.
    pub fleet: &'a Topology,
    /// Requests under way.
    pub in_flight: usize,
    /// Bytes of request bodies held.
    pub held_body_bytes: usize,
    /// What the prefix indexes of all models have in common.
    pub prefix_memory: &'a MemoryBudget,
    /// Client connections open.
    pub connections: usize,
    /// Connections to the admin port.
    pub admin_connections: usize,
    /// The most there may be.
    pub max_admin_connections: usize,
    /// Connections to the admin port that were turned away.
    pub admin_refused: u64,
    /// Requests to the admin port whose head came too slowly.
    pub admin_late: u64,
    /// The bounds in force.
    pub limits: &'a LimitsConfig,
    /// Idle connections kept to a backend.
    pub idle_connections: &'a dyn Fn(BackendId) -> usize,
    /// Why client connections were closed without an answer.
    pub close_reasons: &'a CloseReasons,
    /// When the certificate of each listener expires, in seconds since 1970.
    pub certificates: &'a [(String, u64)],
    /// How often a changed certificate could not be used.
    pub certificate_failures: u64,
    /// What asking engines for their metrics costs.
    pub scraping: &'a ScrapeBudget,
    /// What the system says of this process.
    pub process: ProcessFigures,
    /// What became of the access log's lines.
    pub access_log: Deliveries,
    /// What became of the spans of traces.
    pub spans: Deliveries,
    /// What a strategy that is tried out has found.
    pub shadow: Option<ShadowFigures>,
}

/// What the system says of this process; `None` where it does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessFigures {
    /// Memory in use.
    pub resident_bytes: Option<u64>,
    /// Open files and sockets.
    pub open_files: Option<u64>,
    /// The most open files and sockets.
    pub max_open_files: Option<u64>,
    /// Time spent on processors, in seconds.
    pub cpu_seconds: Option<f64>,
}

/// One sample per backend that `read` has a value for.
fn per_backend(scrape: &Scrape<'_>, read: impl Fn(&Backend) -> Option<f64>) -> Samples {
    let backends = scrape.fleet.backends.iter();
    backends.filter_map(|backend| Some(number(&[&backend.state.name], read(backend)?))).collect()
}

fn flag(is_set: bool) -> Option<f64> {
    Some(if is_set { 1.0 } else { 0.0 })
}

fn from_option(value: Option<f64>) -> Samples {
    value.map(|value| number(&[], value)).into_iter().collect::<Vec<Sample>>()
}

pub(super) fn up(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| flag(backend.state.health.status() == Health::Healthy))
}

pub(super) fn draining(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| flag(backend.state.status() == Health::Draining))
}

pub(super) fn backend_in_flight(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| Some(backend.state.load.in_flight().into()))
}

pub(super) fn max_in_flight(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| backend.config.max_in_flight.map(f64::from))
}

pub(super) fn breaker_open(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let is_open = |backend: &Backend| backend.state.breaker.state(scrape.now);
    per_backend(scrape, |backend| flag(is_open(backend) != BreakerState::Closed))
}

pub(super) fn cooldown(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| flag(backend.state.cooldown.ends_at(scrape.now).is_some()))
}

pub(super) fn slow_start(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| Some(backend.state.share(scrape.now).into()))
}

pub(super) fn idle_connections(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| Some(from_size((scrape.idle_connections)(backend.state.id))))
}

pub(super) fn check_seconds(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let latency = |backend: &Backend| {
        Some(backend.state.check_latency()).filter(|took| *took > Duration::ZERO)
    };
    per_backend(scrape, |backend| latency(backend).map(|took| took.as_secs_f64()))
}

/// One sample per backend whose telemetry has a value for it.
fn told(scrape: &Scrape<'_>, read: impl Fn(Readings) -> Option<f64>) -> Samples {
    per_backend(scrape, |backend| {
        let state = &backend.state;
        read(state.telemetry.read(&state.load, scrape.now))
    })
}

pub(super) fn waiting(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    told(scrape, |readings| readings.waiting.map(f64::from))
}

pub(super) fn running(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    told(scrape, |readings| readings.running.map(f64::from))
}

pub(super) fn kv_utilization(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    told(scrape, |readings| readings.kv_utilization.map(widen))
}

pub(super) fn telemetry_age(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    told(scrape, |readings| readings.age.map(|age| age.to_duration().as_secs_f64()))
}

pub(super) fn scrapes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let mut samples = Vec::new();
    for backend in &scrape.fleet.backends {
        let (passed, failed) = backend.state.telemetry.scrapes();
        if passed + failed > 0 {
            let row = |result, count| number(&[&backend.state.name, result], to_sample(count));
            samples.extend([row("passed", passed), row("failed", failed)]);
        }
    }
    samples
}

pub(super) fn restarts(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    per_backend(scrape, |backend| {
        let telemetry = &backend.state.telemetry;
        telemetry.sample().map(|_| telemetry.restarts().into())
    })
}

pub(super) fn scrape_stretch(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(scrape.scraping.stretch())
}

pub(super) fn scraped_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(to_sample(scrape.scraping.bytes()))
}

pub(super) fn scrape_cpu(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(scrape.scraping.cpu_time().as_secs_f64())
}

pub(super) fn in_flight(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.in_flight))
}

pub(super) fn held_body_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.held_body_bytes))
}

pub(super) fn max_held_body_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(to_sample(scrape.limits.buffered_bodies.0))
}

pub(super) fn prefix_index_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.prefix_memory.used()))
}

pub(super) fn max_prefix_index_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.prefix_memory.limit()))
}

pub(super) fn prefix_blocks(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let models = scrape.fleet.models();
    per_backend(scrape, |backend| {
        let rows =
            models.iter().flat_map(|model| model.serving.iter().map(move |row| (model, row)));
        let own = rows.filter(|(_, row)| row.id == backend.state.id);
        let held: u64 = own.map(|(model, row)| u64::from(model.prefixes.held(row.slot))).sum();
        Some(to_sample(held))
    })
}

pub(super) fn connections(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.connections))
}

pub(super) fn max_connections(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.limits.connections))
}

pub(super) fn admin_connections(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.admin_connections))
}

pub(super) fn max_admin_connections(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.max_admin_connections))
}

pub(super) fn admin_refused(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(to_sample(scrape.admin_refused))
}

pub(super) fn admin_late(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(to_sample(scrape.admin_late))
}

pub(super) fn close_reasons(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let count = |reason: CloseReason| to_sample(scrape.close_reasons.count(reason));
    CloseReason::ALL.iter().map(|reason| number(&[reason.name()], count(*reason))).collect()
}

pub(super) fn certificates(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    let certificates = scrape.certificates.iter();
    certificates.map(|(listen, expires_at)| number(&[listen], to_sample(*expires_at))).collect()
}

pub(super) fn certificate_failures(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(to_sample(scrape.certificate_failures))
}

pub(super) fn models(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    one(from_size(scrape.fleet.models().len()))
}

pub(super) fn access_log_lines(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    by_result("written", scrape.access_log)
}

pub(super) fn spans(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    by_result("sent", scrape.spans)
}

fn by_result(delivered: &str, counts: Deliveries) -> Samples {
    let Deliveries { delivered: count, dropped, failed } = counts;
    let pairs = [(delivered, count), ("dropped", dropped), ("failed", failed)];
    pairs.map(|(result, count)| number(&[result], to_sample(count))).into()
}

pub(super) fn build_info(_metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    vec![number(&[env!("CARGO_PKG_VERSION")], 1.0)]
}

pub(super) fn start_time(metrics: &Metrics, _scrape: &Scrape<'_>) -> Samples {
    one(to_sample(metrics.started_at))
}

pub(super) fn resident_bytes(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    from_option(scrape.process.resident_bytes.map(to_sample))
}

pub(super) fn open_files(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    from_option(scrape.process.open_files.map(to_sample))
}

pub(super) fn max_open_files(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    from_option(scrape.process.max_open_files.map(to_sample))
}

pub(super) fn cpu_seconds(_metrics: &Metrics, scrape: &Scrape<'_>) -> Samples {
    from_option(scrape.process.cpu_seconds)
}
