//! Trace export: an observer that records a span for each sampled request and each of its attempts,
//! by OpenTelemetry's conventions for generative AI, and sends them as OTLP/JSON over HTTP. Off the
//! hot path and bounded, like the access log.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod span;

use std::io;
use std::time::Duration;

#[cfg(feature = "otlp")]
use penstock_clock::unix_time;
use penstock_config::TracingConfig;
use penstock_core::routing::RequestObserver;
#[cfg(feature = "otlp")]
use penstock_core::routing::{AttemptEnded, RequestOutcome};

use crate::observe::queue::{BoundedQueue, Deliveries};

/// The maximum number of spans that wait for the collector; further ones are dropped and counted.
#[cfg(feature = "otlp")]
const MAX_QUEUED_SPANS: usize = 4096;

/// Exports a span per request and per attempt.
#[derive(Debug)]
pub struct SpanExporter(BoundedQueue);

impl SpanExporter {
    /// Starts the configured export; `None` without a collector.
    ///
    /// # Errors
    /// When the thread cannot be started.
    #[cfg(feature = "otlp")]
    pub fn start(config: &TracingConfig) -> io::Result<Option<Self>> {
        let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
        let collector = collector::OtlpCollector::new(endpoint, &config.service_name);
        BoundedQueue::start(collector, MAX_QUEUED_SPANS).map(|queue| Some(Self(queue)))
    }

    /// Starts nothing: this build has no export, and its configuration accepts no collector.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "otlp"))]
    pub fn start(_config: &TracingConfig) -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Waits until all queued spans are sent, at most `limit`.
    pub fn flush(&self, limit: Duration) {
        if !self.0.flush(limit) {
            tracing::warn!("shutdown: not all spans were sent");
        }
    }

    /// Returns the numbers of sent, dropped and failed spans.
    pub fn deliveries(&self) -> Deliveries {
        self.0.deliveries()
    }
}

#[cfg(not(feature = "otlp"))]
impl RequestObserver for SpanExporter {}

#[cfg(feature = "otlp")]
impl RequestObserver for SpanExporter {
    fn attempt_ended(&self, event: &AttemptEnded<'_>) {
        if let Some((trace, own)) = event.trace.filter(|(trace, _)| trace.is_sampled()) {
            self.0.put(span::of_attempt(event, trace, own, unix_time()));
        }
    }

    fn finished(&self, outcome: &RequestOutcome<'_>) {
        if let Some(trace) = outcome.details.trace.filter(|trace| trace.is_sampled()) {
            self.0.put(span::of_request(outcome, trace, unix_time()));
        }
    }
}
