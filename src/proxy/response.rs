//! The way of a backend's response to the client: its head completed, its body relayed, and a
//! visible end where the backend broke off.

mod converted;
mod gathered;
mod held;
mod progress;
mod switched;
mod timing;

use http::Version;
use http::header::{self, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;

use crate::proxy::attempt::Attempt;
use crate::proxy::context::{RequestContext, ScannedRequest, Served};
use crate::proxy::conversion::WayBack;
use crate::proxy::failure::{timeout_message, unreadable_outcome};
use crate::proxy::flow::{ClientSide, Flow};
use crate::proxy::own_response::{add_common_fields, keep_upstream_id};
use crate::proxy::rewrite::usage_filter::UsageFilter;
use crate::proxy::shift_state::CONTEXT_SHIFT;
use crate::upstream::beginning::Beginning;
use crate::upstream::http1::Exchange;
use crate::upstream::relay::ResponseSink;
use crate::upstream::relay::{HeldHead, RelayEnd, RelayObserver, RelayTerms, Timing, Transform};
use crate::upstream::response_head::{Framing, ResponseHead};
use crate::upstream::response_monitor::ResponseMonitor;
pub(super) use gathered::gather;
pub(crate) use held::{held_of, keep_connection};
use penstock_api::{ErrorCode, Operation, StreamFraming, Work, error_event};
use penstock_clock::now;
use penstock_core::fleet::Outcome;
use penstock_core::routing::EnsembleParts;
use penstock_core::routing::RoutingDecision;
use penstock_predict::Prediction;
use progress::Progress;
pub(super) use switched::switch;

/// The tier of a backend that is below the one that the request's policy prefers.
const TIER: HeaderName = HeaderName::from_static("x-penstock-tier");
const BACKEND: HeaderName = HeaderName::from_static("x-penstock-backend");
const DECISION: HeaderName = HeaderName::from_static("x-penstock-decision");
const ENSEMBLE: HeaderName = HeaderName::from_static("x-penstock-ensemble");
/// The capabilities removed from the request because a model lacks them.
const RETRIED_WITHOUT: HeaderName = HeaderName::from_static("x-penstock-retried-without");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A response whose head has been read.
pub(crate) struct Reply<'a> {
    pub(crate) exchange: Exchange<'a>,
    pub(crate) head: ResponseHead,
    pub(crate) attempt: &'a Attempt<'a>,
    /// The part of the body that has been read.
    pub(crate) started: Beginning,
}

/// Relays a response to the client. `way_back`: its conversion.
pub(crate) async fn relay(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    mut reply: Reply<'_>,
    way_back: Option<WayBack>,
) -> Served {
    record_head(flow.ctx, request, &reply.head, reply.attempt);
    close_if_stopping(flow);
    let is_stream = reply.head.stream.is_some();
    expect_whole(request, &mut reply);
    keep_upstream_id(&mut reply.head.header, flow.ctx)?;
    let is_whole = !is_stream && !flow.ctx.record.queue.is_kept_alive;
    let way_back = way_back.map(|way_back| way_back.for_response(is_whole));
    let way_back = match way_back {
        Some(way_back) if !way_back.is_stream() => {
            return converted::relay_whole(flow, request, reply, way_back).await;
        }
        way_back => way_back,
    };
    let operation = way_back.as_ref().map_or(request.profile.operation, WayBack::operation);
    let mut transform = transform_of(flow, &mut reply.head, request, way_back)?;
    let Reply { mut exchange, mut head, attempt, started } = reply;
    finish_head(flow, &mut head, request, attempt)?;
    if is_stream {
        attempt.client.shrink();
    }
    let mut monitor = request.monitor(operation, head.stream);
    let timing = timing::requested(flow).filter(|_| is_stream);
    let Flow { proxy, client, ctx } = &mut *flow;
    let progress = Progress::new(proxy, ctx, request, attempt, &head);
    let sent = match ctx.record.queue.is_kept_alive {
        true => Ok(None),
        false => send_head(client, head.header, timing).await,
    };
    let Ok(mut held) = sent else { return ctx.client_gone() };
    let terms = RelayTerms {
        started,
        timeouts: &attempt.serving.timeouts,
        observer: &progress,
        transform: transform.as_deref_mut(),
        held: held.as_mut(),
    };
    let end = exchange.relay(client, &mut monitor, terms).await;
    if end == RelayEnd::LeftAfterEnd {
        // The client has its whole response, and the engine has nothing left to do.
        progress.response_read(&monitor);
    }
    progress.learn_id(&monitor);
    record_relay(flow.ctx, &monitor, end);
    match end {
        RelayEnd::Complete => {
            if head.keeps_alive {
                flow.proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
            }
            Ok(())
        }
        RelayEnd::LeftAfterEnd => flow.ctx.left_after_end(),
        RelayEnd::ClientGone => flow.ctx.client_gone(),
        RelayEnd::Cut(code) => {
            // The connection closes first: the engine stops while a slow client takes the error.
            drop(exchange);
            break_off(flow, held, code, &monitor, transform).await
        }
    }
}

/// Closes the client's connection after the response if the process stops: it did not when the
/// request came.
fn close_if_stopping(flow: &mut Flow<'_>) {
    if flow.proxy.is_stopping() && !flow.ctx.record.queue.is_kept_alive {
        flow.client.close_after();
    }
}

/// Records the usage, the tokens and the end of a relay.
fn record_relay(ctx: &mut RequestContext, monitor: &ResponseMonitor, end: RelayEnd) {
    let is_stream = monitor.stream().is_some();
    ctx.record.response.usage = monitor.usage();
    ctx.record.response.token_events = monitor.tokens;
    if is_stream {
        ctx.record.response.first_token = monitor.first_token;
    }
    match end {
        RelayEnd::Complete if is_stream && monitor.has_failed() => {
            ctx.record.response.outcome = Some(Outcome::Fault);
        }
        RelayEnd::Cut(code) => {
            ctx.record.response.code = Some(code);
            ctx.record.response.outcome = Some(unreadable_outcome(code));
        }
        RelayEnd::Complete | RelayEnd::LeftAfterEnd | RelayEnd::ClientGone => {}
    }
}

/// Sends the head. Returns one that waits for the first token, to state its time.
async fn send_head(
    client: &mut ClientSide<'_>,
    header: Box<ResponseHeader>,
    timing: Option<Timing>,
) -> pingora::Result<Option<HeldHead>> {
    match timing {
        Some(timing) => Ok(Some(HeldHead::new(header, timing))),
        None => {
            client.write_head(header).await?;
            Ok(None)
        }
    }
}

/// Switches to `timeouts.response` if the backend sends a whole response to a request for a stream.
fn expect_whole(request: &ScannedRequest, reply: &mut Reply<'_>) {
    if request.profile.streaming && reply.head.stream.is_none() {
        let limit = reply.attempt.serving.timeouts.response;
        let deadline = &mut reply.exchange.interrupts.deadline;
        deadline.set(reply.attempt.started, limit, ErrorCode::ResponseTimeout);
    }
}

/// The transformation of the payload, with the head changed to match.
fn transform_of(
    flow: &Flow<'_>,
    head: &mut ResponseHead,
    request: &ScannedRequest,
    way_back: Option<WayBack>,
) -> pingora::Result<Option<Box<dyn Transform>>> {
    if let Some(way_back) = way_back {
        let claim = flow.proxy.claim_response();
        let converter = converted::converter(way_back, flow.ctx, request).with_claim(claim);
        converted::describe(head, converter.content_type())?;
        return Ok(Some(Box::new(converter)));
    }
    let filters = request.adds_usage && head.stream == Some(StreamFraming::Events);
    if !filters {
        return Ok(None);
    }
    // The length may count the event that is taken out.
    head.header.remove_header(&header::CONTENT_LENGTH);
    Ok(Some(Box::new(UsageFilter::new(request.profile.operation))))
}

/// Records the head of a response.
pub(super) fn record_head(
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    head: &ResponseHead,
    attempt: &Attempt<'_>,
) {
    let now = now();
    if head.stream.is_none() {
        // Tokens alone are the progress of a stream. An HTTP server may refuse requests for a dead
        // engine behind it.
        if head.status < 300 && ctx.operation.is_some_and(|it| it.row().work != Work::Text) {
            attempt.serving.state.note_response(now);
        }
        attempt.prompt_done();
    }
    ctx.record.response.status = head.status;
    ctx.record.response.first_token = head.stream.is_none().then_some(now);
    ctx.record_backend(attempt.serving, attempt.backend);
    if let Some(decision) = &request.decision {
        ctx.record.routing.is_fallback = decision.is_fallback;
        if decision.is_fallback {
            let model = request.fleet.model(decision.model);
            ctx.record.routing.model = model.map(|model| model.name.clone());
        }
    }
}

/// Completes the head the client gets.
fn finish_head(
    flow: &mut Flow<'_>,
    head: &mut ResponseHead,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> pingora::Result<()> {
    let header = &mut head.header;
    add_common_fields(header, flow.ctx)?;
    if head.stream.is_some() {
        add_stream_fields(header)?;
    }
    add_request_fields(header, flow.ctx)?;
    if let Some(decision) = request.decision.filter(|decision| decision.is_below_tier) {
        let tier = request.policy.restriction.preferred_tier.number();
        let own = decision.serving(&request.fleet).map_or(0, |serving| serving.tier.number());
        header.insert_header(TIER, format!("{own};min={tier}"))?;
        flow.ctx.record.routing.is_below_tier = true;
    }
    if flow.ctx.generation.config.routing.expose_decision {
        header.insert_header(BACKEND, &*attempt.serving.state.name)?;
        if let Some(decision) = &request.decision {
            header.insert_header(DECISION, decision_text(flow.ctx, decision, attempt))?;
        }
    }
    if head.stream.is_none()
        && let Some(timing) = timing::requested(flow)
    {
        timing.describe(header, Some(now()));
    }
    match head.framing {
        Framing::Chunked | Framing::UntilClose => frame_open_end(header, &mut flow.client),
        Framing::Empty | Framing::Length(_) => Ok(()),
    }
}

/// The decision and its prediction, as `x-penstock-decision` carries them.
fn decision_text(
    ctx: &RequestContext,
    decision: &RoutingDecision,
    attempt: &Attempt<'_>,
) -> String {
    let mut text = format!(
        "{};candidates={};attempt={}{}{}{}{}{}",
        decision.strategy.name(),
        decision.candidates,
        ctx.record.routing.attempts,
        if decision.is_fallback { ";fallback" } else { "" },
        if decision.is_assumed { ";assumed" } else { "" },
        if decision.is_below_tier { ";below_tier" } else { "" },
        if attempt.conversion.is_some() { ";converted=" } else { "" },
        attempt.converted_to().map_or("", Operation::name),
    );
    if let Some(weighted) = ctx.generation.router.weighted() {
        text.extend(decision.scores.map(|scores| weighted.to_text(&scores)));
    }
    if let Some(Prediction { ttft_us: ttft, ttft_p90_us: ttft_p90, tpot_us: tpot, .. }) =
        ctx.record.routing.prediction
    {
        let [ttft, ttft_p90, tpot] = [ttft, ttft_p90, tpot].map(|micros| micros / 1000.0);
        text += &format!(";ttft-ms={ttft:.0};ttft-p90-ms={ttft_p90:.0};tpot-ms={tpot:.1}");
    }
    text
}

/// Adds fields that keep proxies from buffering a stream.
pub(super) fn add_stream_fields(header: &mut ResponseHeader) -> pingora::Result<()> {
    header.insert_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))?;
    header.insert_header(ACCEL_BUFFERING, HeaderValue::from_static("no"))
}

/// Adds fields for the changes to the request, and for the ensemble behind it.
pub(super) fn add_request_fields(
    header: &mut ResponseHeader,
    ctx: &RequestContext,
) -> pingora::Result<()> {
    if let Some(dropped) = ctx.record.edits.dropped_messages {
        header.insert_header(CONTEXT_SHIFT, format!("dropped={dropped}"))?;
    }
    if let Some(parts) = ctx.record.edits.ensemble_parts {
        header.insert_header(ENSEMBLE, ensemble_text(parts))?;
    }
    if !ctx.record.edits.retried_without.is_empty() {
        let names: Vec<&str> = ctx.record.edits.retried_without.names().collect();
        header.insert_header(RETRIED_WITHOUT, names.join(", "))?;
    }
    Ok(())
}

/// Frames a body whose length is not known.
pub(super) fn frame_open_end(
    header: &mut ResponseHeader,
    client: &mut ClientSide<'_>,
) -> pingora::Result<()> {
    match client.head().version {
        Version::HTTP_11 => {
            let chunked = HeaderValue::from_static("chunked");
            header.insert_header(header::TRANSFER_ENCODING, chunked)?;
        }
        // HTTP/1.0 has no chunks: such a body ends with the connection, and the head must say so.
        Version::HTTP_10 => client.close_after(),
        // HTTP/2 frames its bodies itself.
        _ => {}
    }
    Ok(())
}

/// The counts behind an ensemble's response, as a field carries them.
fn ensemble_text(parts: EnsembleParts) -> String {
    let EnsembleParts { drafts, critiques, input_tokens, output_tokens } = parts;
    format!(
        "drafts={drafts};critiques={critiques};input_tokens={input_tokens};output_tokens={output_tokens}"
    )
}

/// Ends a response that broke off: a stream with an error event in the client's dialect, anything
/// else with framing that no client takes for a whole response.
async fn break_off(
    flow: &mut Flow<'_>,
    held: Option<HeldHead>,
    code: ErrorCode,
    monitor: &ResponseMonitor,
    transform: Option<Box<dyn Transform>>,
) -> Served {
    // Without a head the client could not read the error.
    if let Some(mut held) = held {
        held.write(&mut flow.client).await?;
    }
    let message = timeout_message(code);
    let end = match (transform, flow.ctx.operation.zip(monitor.stream())) {
        (Some(mut transform), _) => transform.cut(code, message),
        (None, Some((operation, framing))) => {
            let mut event = Vec::new();
            if !monitor.is_between_events() {
                // A half-sent event must end before the error can be read.
                event.extend_from_slice(framing.event_end());
            }
            event.extend_from_slice(&error_event(operation, framing, code, message));
            event.into()
        }
        (None, None) => {
            let cut = pingora::ErrorType::ConnectionClosed;
            return pingora::Error::e_explain(cut, "the backend's response broke off");
        }
    };
    let client = &mut flow.client;
    client.close_after();
    client.write_body(end, true).await
}
