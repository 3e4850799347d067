//! What observers are told once a request is over.

use std::net::IpAddr;
use std::time::Duration;

use pingora_proxy::Session;

use super::Proxy;
use super::context::{Ending, RequestContext};
use crate::api::ErrorCode;
use crate::clock::now;
use crate::fleet::Outcome;
use crate::routing::{About, RequestOutcome};

impl Proxy {
    /// A client got no further than the guard.
    pub(crate) fn tell_refused(&self, code: ErrorCode, client: Option<IpAddr>) {
        let told = RequestOutcome {
            operation: None,
            model: None,
            backend: None,
            status: code.row().status,
            code: Some(code),
            outcome: Outcome::Client,
            is_streaming: false,
            is_fallback: false,
            attempts: 0,
            first_token: None,
            took: Duration::ZERO,
            usage: None,
            expected_cached: None,
            token_events: 0,
            about: About { client, ..About::default() },
        };
        for observer in &self.observers {
            observer.finished(&told);
        }
    }

    pub(crate) fn finish(&self, session: &Session, ctx: &RequestContext) {
        let ending = &ctx.ending;
        let outcome = ending.outcome.unwrap_or_else(|| own_outcome(ending));
        let told = RequestOutcome {
            operation: ctx.operation,
            model: ending.model.as_deref(),
            backend: ending.backend.as_ref().map(|(id, name)| (*id, &**name)),
            status: ending.status,
            code: ending.code,
            outcome,
            is_streaming: ending.is_streaming,
            is_fallback: ending.is_fallback,
            attempts: ending.attempts,
            first_token: ending.first_token.map(|at| at.since(ctx.arrived_at)),
            took: now().since(ctx.arrived_at),
            usage: ending.usage,
            expected_cached: ending.expected_cached,
            token_events: ending.token_events,
            about: about(session, ctx),
        };
        for observer in &self.observers {
            observer.finished(&told);
        }
    }
}

/// Who asked, and for what.
fn about<'a>(session: &'a Session, ctx: &'a RequestContext) -> About<'a> {
    let head = session.req_header();
    // Pingora was given a stand-in for a head that was refused.
    let (method, path) = match ctx.ending.refused.as_deref() {
        Some(asked) => (asked.method.as_str(), asked.path.as_str()),
        None => (head.method.as_str(), head.uri.path()),
    };
    let keys = &ctx.generation.config.auth.keys;
    let to_u64 = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
    About {
        request_id: ctx.request_id.to_str().unwrap_or_default(),
        key: ctx.key.and_then(|position| keys.get(position)).map(|key| key.name.as_str()),
        client: ctx.client_address,
        method,
        path,
        asked: ctx.ending.asked.as_deref(),
        provider: ctx.ending.provider,
        estimated_tokens: ctx.ending.estimated_tokens,
        bytes_in: to_u64(ctx.ending.bytes_in),
        bytes_out: to_u64(session.as_downstream().body_bytes_sent()),
        trace: ctx.trace,
    }
}

/// The class of an answer penstock gave itself.
fn own_outcome(ending: &Ending) -> Outcome {
    let busy = [
        ErrorCode::AllBackendsBusy,
        ErrorCode::BackendsCoolingDown,
        ErrorCode::BodyMemoryFull,
        ErrorCode::DiscoveryPending,
    ];
    match (ending.code, ending.status) {
        (Some(code), status) if busy.contains(&code) => {
            Outcome::Busy { cooldown: Duration::ZERO, status }
        }
        (_, 500..) => Outcome::Fault,
        (_, 400..=499) => Outcome::Client,
        _ => Outcome::Ok,
    }
}
