//! Reports what happens to requests to the observers (`routing::RequestObserver`): metrics, logs,
//! traces. The proxy imports none of them.

use std::net::IpAddr;
use std::time::Duration;

use penstock_api::ErrorCode;
use penstock_clock::now;
use penstock_core::fleet::{BackendId, Outcome};
use penstock_core::routing::{
    AttemptEnded, RequestDetails, RequestObserver, RequestOutcome, ResponseFacts, Routed,
};

use crate::proxy::context::RequestContext;
use crate::proxy::flow::Flow;
use penstock_core::routing::RequestRecord;

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
        let response = ResponseFacts {
            status: code.row().status,
            code: Some(code),
            ..ResponseFacts::default()
        };
        self.report(&RequestOutcome {
            record: &RequestRecord { response, ..RequestRecord::default() },
            operation: None,
            outcome: Outcome::Client,
            first_token: None,
            took: Duration::ZERO,
            details: RequestDetails { client, ..RequestDetails::default() },
        });
    }

    /// Reports the end of a request.
    pub(crate) fn finished(&self, flow: &Flow<'_>) {
        let RequestContext { record, operation, arrived_at, .. } = &*flow.ctx;
        let response = &record.response;
        self.report(&RequestOutcome {
            record,
            operation: *operation,
            outcome: response
                .outcome
                .unwrap_or_else(|| own_outcome(response.code, response.status)),
            first_token: response.first_token.map(|at| at.since(*arrived_at)),
            took: now().since(*arrived_at),
            details: details_of(flow),
        });
    }

    fn report(&self, outcome: &RequestOutcome<'_>) {
        for observer in &self.0 {
            observer.finished(outcome);
        }
    }
}

/// The details for logs and traces.
fn details_of<'a>(flow: &'a Flow<'_>) -> RequestDetails<'a> {
    let head = flow.client.head();
    // Pingora only sees a placeholder when the head was refused.
    let (method, path) = match flow.ctx.refused.as_deref() {
        Some(refused) => (refused.method.as_str(), refused.path.as_str()),
        None => (head.method.as_str(), head.uri.path()),
    };
    RequestDetails {
        request_id: flow.ctx.request_id(),
        key: flow.ctx.client_name(),
        client: flow.ctx.client_address,
        method,
        path,
        bytes_out: u64::try_from(flow.client.bytes_sent()).unwrap_or(u64::MAX),
        trace: flow.ctx.trace,
    }
}

/// The outcome of a request that penstock responded to itself.
pub(crate) fn own_outcome(code: Option<ErrorCode>, status: u16) -> Outcome {
    match (code, status) {
        (Some(code), status) if code.row().is_busy => {
            Outcome::Busy { cooldown: Duration::ZERO, status }
        }
        (_, 500..) => Outcome::Fault,
        (_, 400..=499) => Outcome::Client,
        _ => Outcome::Ok,
    }
}
