//! Prometheus metrics: an observer of requests, and the page that Prometheus scrapes. Labels are
//! bounded: known models, backends, and closed sets. Counting takes no lock and, once a combination
//! of labels has been seen, allocates nothing.

mod admin_connections;
mod backends;
mod distribution;
mod outcome;
mod page;
mod process;
mod reloads;
mod requests;
mod row;
mod samples;
mod table;

pub use admin_connections::AdminConnections;
pub use reloads::Reloads;
pub use row::{MetricKind, MetricRow};
pub use table::metric_rows;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_api::{Capabilities, ERROR_CODES, KindCounters};
use penstock_clock::unix_seconds;
use penstock_config::MAX_BACKENDS;
use penstock_core::fleet::{BackendId, Topology};
use penstock_core::routing::{
    AttemptEnded, Generation, RejectReason, RequestObserver, RequestOutcome, Routed,
};
use prometheus::Histogram;

use crate::discovery::ScrapeBudget;
use crate::observe::access_log::AccessLog;
use crate::observe::names::{BoundedNames, NameId};
use crate::observe::otlp::SpanExporter;
use crate::observe::series::SeriesMap;
use crate::observe::usage::LiveUsage;
use crate::proxy::Proxy;
use backends::Backends;
use distribution::{Distributions, observe};
use outcome::{OutcomeId, status_label};
use requests::{Conversions, RequestKey, RequestMetrics};

/// The sources of a scrape: the owners of all figures that are not counted in [`Metrics`].
pub struct Scrape<'a> {
    /// The time of the scrape.
    pub now: Timestamp,
    /// The configuration and fleet in force.
    pub generation: &'a Generation,
    /// The fleet, read once, so that all metrics of a page agree.
    pub fleet: &'a Topology,
    pub proxy: &'a Proxy,
    /// The cost of scraping engines.
    pub scraping: &'a ScrapeBudget,
    /// The access log, if configured.
    pub access_log: Option<&'a AccessLog>,
    /// The span exporter, if configured.
    pub spans: Option<&'a SpanExporter>,
    /// Live usage and the token ledger, if they run.
    pub usage: Option<&'a LiveUsage>,
}

/// All counters, shared by the data plane and the admin port.
#[derive(Debug)]
pub struct Metrics {
    model_names: BoundedNames,
    backend_names: BoundedNames,
    kinds: Distributions,
    backends: Backends,
    requests: RequestMetrics,
    queue_waits: SeriesMap<NameId, Histogram>,
    errors: KindCounters<{ ERROR_CODES.len() }>,
    rejections: [AtomicU64; RejectReason::NAMES.len()],
    conversions: Conversions,
    retries: AtomicU64,
    fallbacks: AtomicU64,
    context_shifts: AtomicU64,
    dropped_messages: AtomicU64,
    without_tools: AtomicU64,
    without_vision: AtomicU64,
    assumed: AtomicU64,
    panics: AtomicU64,
    without_telemetry: AtomicU64,
    pub reloads: Reloads,
    /// Connections to the admin port.
    pub admin_connections: AdminConnections,
    /// The start time, in seconds since 1970.
    started_at: u64,
}

impl Metrics {
    /// Metrics for a configuration's fleet.
    ///
    /// # Errors
    /// When the metrics library refuses the buckets of a histogram.
    pub fn new(generation: &Generation) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            model_names: BoundedNames::new(generation.config.limits.metric_models, "unknown"),
            // Reloads bring new names, so there is room for four times the largest fleet.
            backend_names: BoundedNames::new(4 * MAX_BACKENDS, "none"),
            kinds: Distributions::new()?,
            backends: Backends::default(),
            requests: RequestMetrics::default(),
            queue_waits: SeriesMap::default(),
            errors: KindCounters::default(),
            rejections: std::array::from_fn(|_| AtomicU64::new(0)),
            conversions: Conversions::default(),
            retries: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            context_shifts: AtomicU64::new(0),
            dropped_messages: AtomicU64::new(0),
            without_tools: AtomicU64::new(0),
            without_vision: AtomicU64::new(0),
            assumed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            without_telemetry: AtomicU64::new(0),
            reloads: Reloads::default(),
            admin_connections: AdminConnections::default(),
            started_at: unix_seconds(),
        };
        metrics.learn_backends(&generation.fleet.topology());
        Ok(metrics)
    }

    /// Adds series for the backends of a topology; called for each new topology. A backend that
    /// returns under its old name continues its old counters.
    pub fn learn_backends(&self, topology: &Topology) {
        self.backends.learn(topology, &self.backend_names, &self.kinds.first_tokens);
    }

    /// The metrics page in Prometheus' text format.
    pub fn render(&self, scrape: &Scrape<'_>) -> String {
        page::render(self, scrape)
    }
}

impl RequestObserver for Metrics {
    fn routed(&self, event: &Routed<'_>) {
        if event.attempt > 1 {
            self.retries.fetch_add(1, Ordering::Relaxed);
        }
        if event.decision.is_assumed {
            self.assumed.fetch_add(1, Ordering::Relaxed);
        }
        if event.decision.in_panic {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
        if event.decision.scores.is_some_and(|scores| scores.has_no_telemetry) {
            self.without_telemetry.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn first_token(&self, backend: BackendId, took: Duration) {
        self.backends.with(backend, |series| observe(&series.first_token, took));
    }

    fn progress(&self, backend: BackendId, tokens: u32) {
        self.backends.with(backend, |series| {
            series.stream_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
        });
    }

    fn attempt_ended(&self, event: &AttemptEnded<'_>) {
        if let Some((from, to)) = event.conversion {
            self.conversions.count(from, to);
        }
        self.backends.with(event.backend, |series| {
            series.count_attempt(OutcomeId::of(event.outcome), event.code);
            series.moves.fetch_add(u64::from(event.is_moved), Ordering::Relaxed);
            series.count_cuts(event.usage.map(|usage| usage.cut).unwrap_or_default());
        });
    }

    fn finished(&self, outcome: &RequestOutcome<'_>) {
        if let Some(code) = outcome.record.response.code {
            self.errors.count(code as usize);
        }
        if let Some(found) = &outcome.record.routing.rejections {
            for (total, count) in self.rejections.iter().zip(found.counts()) {
                total.fetch_add(count.into(), Ordering::Relaxed);
            }
        }
        if outcome.record.routing.is_fallback {
            self.fallbacks.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(dropped) = outcome.record.edits.dropped_messages {
            self.context_shifts.fetch_add(1, Ordering::Relaxed);
            self.dropped_messages.fetch_add(dropped.into(), Ordering::Relaxed);
        }
        if outcome.record.edits.retried_without.contains(Capabilities::TOOLS) {
            self.without_tools.fetch_add(1, Ordering::Relaxed);
        }
        if outcome.record.edits.retried_without.contains(Capabilities::VISION) {
            self.without_vision.fetch_add(1, Ordering::Relaxed);
        }
        let model =
            outcome.model().map_or(BoundedNames::PLACEHOLDER, |name| self.model_names.id(name));
        if let Some(waited) = outcome.record.queue.wait {
            // For requests that have waited alone: without a queue no model has these series.
            let make = || Arc::new(self.kinds.durations.make());
            self.queue_waits.with(model, make, |waits| observe(waits, waited));
        }
        let (backend, provider) = match outcome.backend() {
            None => (BoundedNames::PLACEHOLDER, None),
            Some((id, name)) => self
                .backends
                .with(id, |series| (series.label, Some(series.provider)))
                // Removed by a reload while its request was in flight.
                .unwrap_or_else(|| (self.backend_names.id(name), None)),
        };
        let key = RequestKey {
            model,
            backend,
            operation: outcome.operation,
            status: status_label(outcome.record.response.status),
            outcome: OutcomeId::of(outcome.outcome),
        };
        self.requests.count(key, provider, outcome, &self.kinds);
    }
}

#[cfg(test)]
mod tests;
