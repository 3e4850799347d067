//! Reports what happens to requests to the observers (`routing::RequestObserver`): metrics, logs,
//! traces. The proxy imports none of them.

use std::net::IpAddr;
use std::time::Duration;

use penstock_api::ErrorCode;
use penstock_clock::now;
use penstock_core::fleet::{BackendId, Outcome};
use penstock_core::routing::{
    AttemptEnded, RequestDetails, RequestObserver, RequestOutcome, Routed,
};

use crate::proxy::context::RequestRecord;
use crate::proxy::flow::Flow;

/// All observers, in the order they are called.
pub(crate) struct Observers(Vec<Box<dyn RequestObserver>>);

impl Observers {
    pub(crate) fn new(observers: Vec<Box<dyn RequestObserver>>) -> Self {
        Self(observers)
    }

    /// Reports a decision that is acted on.
    pub(crate) fn routed(&self, event: &Routed<'_>) {
        for observer in &self.0 {
            observer.routed(event);
        }
    }

    /// Reports the first token of a stream, sent to the client `took` after the request arrived.
    pub(crate) fn first_token(&self, backend: BackendId, took: Duration) {
        for observer in &self.0 {
            observer.first_token(backend, took);
        }
    }

    /// Reports `tokens` more tokens sent to the client.
    pub(crate) fn progress(&self, backend: BackendId, tokens: u32) {
        for observer in &self.0 {
            observer.progress(backend, tokens);
        }
    }

    /// Reports the end of an attempt.
    pub(crate) fn attempt_ended(&self, event: &AttemptEnded<'_>) {
        for observer in &self.0 {
            observer.attempt_ended(event);
        }
    }

    /// Reports a connection that was rejected before it could send a request.
    pub(crate) fn refused(&self, code: ErrorCode, client: Option<IpAddr>) {
        let record = RequestRecord {
            status: code.row().status,
            code: Some(code),
            outcome: Some(Outcome::Client),
            ..RequestRecord::default()
        };
        let about = RequestDetails { client, ..RequestDetails::default() };
        self.report(&RequestOutcome {
            operation: None,
            first_token: None,
            took: Duration::ZERO,
            ..outcome_of(&record, about)
        });
    }

    /// Reports the end of a request.
    pub(crate) fn finished(&self, flow: &Flow<'_>) {
        let first_token = flow.ctx.record.first_token;
        self.report(&RequestOutcome {
            operation: flow.ctx.operation,
            first_token: first_token.map(|at| at.since(flow.ctx.arrived_at)),
            took: now().since(flow.ctx.arrived_at),
            ..outcome_of(&flow.ctx.record, about(flow))
        });
    }

    fn report(&self, outcome: &RequestOutcome<'_>) {
        for observer in &self.0 {
            observer.finished(outcome);
        }
    }
}

/// The outcome of a request, by its record.
fn outcome_of<'a>(record: &'a RequestRecord, about: RequestDetails<'a>) -> RequestOutcome<'a> {
    RequestOutcome {
        operation: None,
        model: record.model.as_deref(),
        backend: record.backend.as_ref().map(|(id, name)| (*id, &**name)),
        status: record.status,
        code: record.code,
        outcome: record.outcome.unwrap_or_else(|| own_outcome(record.code, record.status)),
        is_streaming: record.is_streaming,
        is_fallback: record.is_fallback,
        attempts: record.attempts,
        first_token: None,
        took: Duration::ZERO,
        usage: record.usage,
        expected_cached: record.expected_cached,
        queue_wait: record.queue_wait,
        dropped_messages: record.dropped_messages,
        retried_without: record.retried_without,
        token_events: record.token_events,
        details: about,
    }
}

/// The details for logs and traces.
fn about<'a>(flow: &'a Flow<'_>) -> RequestDetails<'a> {
    let head = flow.client.head();
    // Pingora only sees a placeholder when the head was refused.
    let (method, path) = match flow.ctx.record.refused.as_deref() {
        Some(refused) => (refused.method.as_str(), refused.path.as_str()),
        None => (head.method.as_str(), head.uri.path()),
    };
    let to_u64 = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
    RequestDetails {
        request_id: flow.ctx.request_id(),
        upstream_request_id: flow
            .ctx
            .record
            .upstream_request_id
            .as_ref()
            .and_then(|id| id.to_str().ok()),
        key: flow.ctx.key_name(),
        client: flow.ctx.client_address,
        method,
        path,
        requested_model: flow.ctx.record.requested_model.as_deref(),
        provider: flow.ctx.record.provider,
        prompt_tokens: flow.ctx.record.prompt_tokens,
        bytes_in: to_u64(flow.ctx.record.bytes_in),
        bytes_out: to_u64(flow.client.bytes_sent()),
        trace: flow.ctx.trace,
        ensemble: flow.ctx.record.ensemble,
        replay: flow.ctx.record.replay.as_deref(),
        prediction: flow.ctx.record.prediction,
    }
}

/// The outcome of a request that penstock responded to itself.
pub(crate) fn own_outcome(code: Option<ErrorCode>, status: u16) -> Outcome {
    let busy = [
        ErrorCode::AllBackendsBusy,
        ErrorCode::QueueFull,
        ErrorCode::QueueTimeout,
        ErrorCode::BackendsCoolingDown,
        ErrorCode::BodyMemoryFull,
        ErrorCode::ResponseMemoryFull,
        ErrorCode::DiscoveryPending,
        ErrorCode::TooManyEnsembles,
        ErrorCode::TooManyCommands,
        ErrorCode::RateLimited,
        ErrorCode::ObjectiveMissed,
    ];
    match (code, status) {
        (Some(code), status) if busy.contains(&code) => {
            Outcome::Busy { cooldown: Duration::ZERO, status }
        }
        (_, 500..) => Outcome::Fault,
        (_, 400..=499) => Outcome::Client,
        _ => Outcome::Ok,
    }
}
