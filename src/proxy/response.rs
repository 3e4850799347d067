//! The way of a backend's response to the client: its head completed, its body relayed, and a visible
//! end where the backend broke off.

use bytes::Bytes;
use http::Version;
use http::header::{self, HeaderName, HeaderValue};
use pingora_proxy::Session;

use super::Proxy;
use super::attempt::Attempt;
use super::context::{RequestContext, ScannedRequest, Served};
use super::failure::timeout_message;
use super::outcome::{AttemptResult, record_outcome};
use super::own_response::{add_common_fields, keep_upstream_id};
use crate::api::{ErrorCode, error_event};
use crate::clock::now;
use crate::fleet::{Backend, InflightGuard, Outcome, Serving, SlotId};
use crate::routing::Router;
use crate::units::{Timestamp, TokenCount};
use crate::upstream::http1::Exchange;
use crate::upstream::relay::{RelayEnd, RelayObserver, RelayTerms};
use crate::upstream::response_head::{Framing, ResponseHead};
use crate::upstream::response_monitor::ResponseMonitor;

const BACKEND: HeaderName = HeaderName::from_static("x-penstock-backend");
const DECISION: HeaderName = HeaderName::from_static("x-penstock-decision");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A response whose head has been read.
pub(crate) struct Reply<'a> {
    pub(crate) exchange: Exchange<'a>,
    pub(crate) head: ResponseHead,
    pub(crate) attempt: &'a Attempt<'a>,
}

/// Relays a response to the client.
pub(crate) async fn relay(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    reply: Reply<'_>,
) -> Served {
    let Reply { mut exchange, mut head, attempt } = reply;
    let is_stream = head.is_event_stream;
    record_head(ctx, request, &head, attempt);
    if request.profile.streaming && !is_stream {
        // A stream was requested and a whole response came: its timeout applies.
        let limit = attempt.serving.timeouts.response;
        exchange.interrupts.deadline.set(attempt.started, limit, ErrorCode::ResponseTimeout);
    }
    keep_upstream_id(&mut head.header, ctx)?;
    finish_head(&mut head, ctx, session, request, attempt)?;
    if is_stream {
        attempt.client.shrink();
    }
    let mut monitor = ResponseMonitor::new(request.profile.operation, is_stream);
    let progress = Progress {
        proxy,
        id_limit: ctx.generation.config.limits.response_ids,
        router: &ctx.generation.router,
        attempt,
        arrived_at: ctx.arrived_at,
        drain_slot: attempt.permit.lock().as_ref().and_then(InflightGuard::drain_slot),
        result: AttemptResult { first_token: None, ..AttemptResult::by_status(head.status, ctx) },
        is_stream,
    };
    let terms = RelayTerms {
        framing: head.framing,
        timeouts: &attempt.serving.timeouts,
        observer: &progress,
    };
    let downstream = session.as_downstream_mut();
    if downstream.write_response_header(head.header).await.is_err() {
        return ctx.client_gone();
    }
    let end = exchange.relay(session, &mut monitor, terms).await;
    progress.learn_id(&monitor);
    ctx.record.usage = monitor.usage();
    ctx.record.token_events = monitor.tokens;
    if is_stream {
        ctx.record.first_token = monitor.first_token;
    }
    match end {
        RelayEnd::Complete => {
            if is_stream {
                attempt.serving.latency.learn_length(TokenCount(monitor.tokens));
            }
            if head.keeps_alive {
                proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
            }
            Ok(())
        }
        RelayEnd::ClientGone => ctx.client_gone(),
        RelayEnd::Cut(code) => {
            drop(exchange);
            ctx.record.code = Some(code);
            ctx.record.outcome = Some(Outcome::Fault);
            break_off(session, ctx, code, &monitor).await
        }
    }
}

/// Reports the progress of one relay to the backend's state and the observers.
struct Progress<'a> {
    proxy: &'a Proxy,
    /// The most ids of stored responses that are kept.
    id_limit: usize,
    router: &'a Router,
    attempt: &'a Attempt<'a>,
    arrived_at: Timestamp,
    /// The attempt's slot in the drain estimate.
    drain_slot: Option<SlotId>,
    /// The result of the attempt, if the response is complete.
    result: AttemptResult,
    is_stream: bool,
}

impl RelayObserver for Progress<'_> {
    fn tokens_passed(&self, is_first: bool, tokens: u32, now: Timestamp) {
        let serving = self.attempt.serving;
        serving.state.note_response(now);
        if let Some(slot) = self.drain_slot {
            serving.state.drain_estimate.add_tokens(slot, tokens);
        }
        if is_first {
            self.attempt.prompt_done();
            self.proxy.observers.first_token(serving.id, now.since(self.arrived_at));
        }
        self.proxy.observers.progress(serving.id, tokens);
    }

    // The permit is released before the last bytes are written: a client that sends its next request
    // at once must find the backend free.
    fn response_read(&self, monitor: &ResponseMonitor) {
        self.learn_id(monitor);
        let first_token = monitor.first_token.filter(|_| self.is_stream);
        let result = AttemptResult { first_token, usage: monitor.usage(), ..self.result };
        record_outcome(self.attempt, &result, self.router, &self.proxy.observers);
    }
}

impl Progress<'_> {
    /// Remembers where the response is stored.
    fn learn_id(&self, monitor: &ResponseMonitor) {
        if let Some(id) = monitor.response_id() {
            self.proxy.response_ids.learn(id, self.attempt.serving.id, self.id_limit);
        }
    }
}

fn record_head(
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    head: &ResponseHead,
    attempt: &Attempt<'_>,
) {
    let now = now();
    attempt.serving.state.note_response(now);
    if !head.is_event_stream {
        attempt.prompt_done();
    }
    ctx.record.status = head.status;
    ctx.record.first_token = (!head.is_event_stream).then_some(now);
    record_backend(ctx, attempt.serving, attempt.backend);
    if let Some(decision) = &request.decision {
        ctx.record.is_fallback = decision.is_fallback;
        if decision.is_fallback {
            let model = request.fleet.model(decision.model);
            ctx.record.model = model.map(|model| model.name.clone());
        }
    }
}

/// Records whose response the client gets.
pub(crate) fn record_backend(ctx: &mut RequestContext, serving: &Serving, backend: &Backend) {
    ctx.record.provider = Some(backend.config.engine.provider());
    ctx.record.backend = Some((serving.id, serving.state.name.clone()));
}

/// Completes the head the client gets.
fn finish_head(
    head: &mut ResponseHead,
    ctx: &RequestContext,
    session: &mut Session,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> pingora::Result<()> {
    let header = &mut head.header;
    add_common_fields(header, ctx)?;
    if head.is_event_stream {
        header.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))?;
        header.insert_header(ACCEL_BUFFERING, HeaderValue::from_static("no"))?;
    }
    if ctx.generation.config.routing.expose_decision {
        header.insert_header(BACKEND, &*attempt.serving.state.name)?;
        if let Some(decision) = &request.decision {
            let mut code = format!(
                "{};candidates={};attempt={}{}{}",
                decision.strategy.name(),
                decision.candidates,
                ctx.record.attempts,
                if decision.is_fallback { ";fallback" } else { "" },
                if decision.is_assumed { ";assumed" } else { "" },
            );
            if let Some(weighted) = ctx.generation.router.weighted() {
                code.extend(decision.scores.map(|scores| weighted.to_text(&scores)));
            }
            header.insert_header(DECISION, code)?;
        }
    }
    let is_open_ended = matches!(head.framing, Framing::Chunked | Framing::UntilClose);
    match session.req_header().version {
        Version::HTTP_11 if is_open_ended => {
            let chunked = HeaderValue::from_static("chunked");
            header.insert_header(header::TRANSFER_ENCODING, chunked)?;
        }
        // HTTP/1.0 has no chunks: such a body ends with the connection, and the head must say so.
        Version::HTTP_10 if is_open_ended => session.set_keepalive(None),
        _ => {}
    }
    Ok(())
}

/// Ends a response that broke off: a stream with an error event in the client's dialect, anything
/// else with framing that no client takes for a whole response.
async fn break_off(
    session: &mut Session,
    ctx: &RequestContext,
    code: ErrorCode,
    monitor: &ResponseMonitor,
) -> Served {
    let operation = ctx.operation.filter(|_| monitor.is_stream());
    let Some(operation) = operation else {
        let cut = pingora::ErrorType::ConnectionClosed;
        return pingora::Error::e_explain(cut, "the backend's response broke off");
    };
    let mut event = Vec::new();
    if !monitor.is_between_events() {
        // A half-sent event must end before the error can be read.
        event.extend_from_slice(b"\n\n");
    }
    let message = timeout_message(code);
    event.extend_from_slice(&error_event(operation, code, message));
    let downstream = session.as_downstream_mut();
    downstream.set_keepalive(None);
    downstream.write_response_body(Bytes::from(event), true).await
}
