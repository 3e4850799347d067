//! The way of a backend's response to the client: its head completed, its body relayed, and a
//! visible end where the backend broke off.

mod broken_end;
mod converted;
mod framing;
mod held;

use penstock_api::units::Timestamp;
use penstock_api::{Operation, Work};
use penstock_clock::now;
use penstock_core::fleet::{Outcome, TokenCounter};
use penstock_core::routing::ContextShift;
use penstock_scan::{RequestProfile, Usage, WholeResult};
use pingora::http::ResponseHeader;

use crate::proxy::Proxy;
use crate::proxy::attempt::{Attempt, AttemptResult, Permit, record_outcome};
use crate::proxy::exchange::Reply;
use crate::proxy::failure::unreadable_outcome;
use crate::proxy::flow::{ClientSide, Flow, RequestContext, Served};
use crate::proxy::own_response::{
    add_common_fields, add_stream_fields, frame_open_end, keep_upstream_id,
};
use crate::proxy::queue::settle_charge;
use crate::proxy::rate_limits::{Streamed, settle_rate_of};
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::proxy::response_fields::{add_decision, add_edits, add_tier, requested_timing};
use crate::proxy::rewrite::{ResponseChange, change_of};
use crate::upstream::own_key::OwnKey;
use crate::upstream::relay::{
    HeldHead, RelayEnd, RelayObserver, RelayOutput, RelayTerms, ResponseSink, ServerTiming,
};
use crate::upstream::response_head::{BodyEnd, ResponseHead};
use crate::upstream::response_monitor::ResponseMonitor;
use broken_end::break_off;

pub(crate) use converted::{claim_conversion, convert};
pub(crate) use framing::learn_framing;
pub(crate) use held::{held_of, keep_connection};

/// Relays a response to the client.
pub(crate) async fn relay(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
    mut reply: Reply<'_>,
) -> Served {
    let key = begin(flow, request, &mut reply).await;
    let is_stream = reply.head.stream.is_some();
    keep_upstream_id(&mut reply.head.header, flow.ctx)?;
    let is_changed = request.conversion.is_some() || request.adds_usage;
    let change = if is_changed { change_of(flow, request, &mut reply.head)? } else { None };
    let mut transform = match change {
        None => None,
        Some(ResponseChange::Payload(transform)) => Some(transform),
        Some(ResponseChange::Whole(way_back)) => {
            // Boxed, as other rare ways are: every open stream carries room for all that is not.
            return Box::pin(converted::relay_whole(flow, request, reply, way_back)).await;
        }
    };
    let Reply { mut exchange, mut head, attempt, permit, started, result } = reply;
    finish_head(flow, &mut head, request, attempt)?;
    // Streams are open for long: the buffer for the next head can wait.
    if is_stream {
        attempt.client.shrink();
    }
    let mut monitor = request.monitor(attempt.sent_operation(request), head.stream);
    expect_end(&head, result, &mut monitor);
    let timing = timing_of(flow).filter(|_| is_stream);
    let Flow { proxy, client, ctx } = &mut *flow;
    let mut progress = RelayProgress::new(proxy, request.view(ctx), attempt, permit, &head);
    let sent = match ctx.record.queue.is_kept_alive {
        true => Ok(None),
        false => send_head(client, head.header, timing).await,
    };
    let Ok(mut held) = sent else { return ctx.end_cancelled() };
    let terms = RelayTerms {
        started,
        timeouts: &attempt.serving.timeouts,
        observer: &mut progress,
        output: RelayOutput { transform: transform.as_deref_mut(), held: held.as_mut(), key },
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
        RelayEnd::Unterminated => Ok(()),
        RelayEnd::LeftAfterEnd => flow.ctx.left_after_end(),
        RelayEnd::ClientGone => flow.ctx.end_cancelled(),
        RelayEnd::Cut(code) => {
            // The connection closes first: the engine stops while a slow client takes the error.
            drop(exchange);
            Box::pin(break_off(flow, held, code, &monitor, transform)).await
        }
    }
}

/// Reads the part of the body that decides about the head, and records the head. Returns the key of
/// the backend, which the rest of the response may quote.
async fn begin<'a>(
    flow: &mut Flow<'_>,
    request: &ScannedRequest,
    reply: &mut Reply<'a>,
) -> Option<OwnKey<'a>> {
    if let Some(expected) = reply.open_framing(request) {
        framing::await_framing(expected, reply).await;
    }
    record_head(flow.ctx, request, reply);
    close_if_stopping(flow);
    let key = OwnKey::of(&reply.attempt.backend.config);
    if let Some(key) = key.filter(|_| reply.head.status >= 400) {
        held::mask_error(key, reply).await;
    }
    if request.profile.streaming && reply.head.stream.is_none() {
        framing::expect_whole(reply);
    }
    key
}

/// Makes the monitor report a success that ends before its result or its JSON is complete. An error
/// may end anywhere.
fn expect_end(head: &ResponseHead, result: Option<WholeResult>, monitor: &mut ResponseMonitor) {
    // An encoded one is passed on unread.
    if !matches!(head.status, 200..=299) || head.is_encoded {
        return;
    }
    monitor.expect_result(result);
    if head.framing == BodyEnd::UntilClose && head.is_json {
        monitor.expect_json();
    }
}

/// The timing that the client requests, if the configuration exposes decisions.
fn timing_of(flow: &Flow<'_>) -> Option<ServerTiming> {
    let is_exposed = flow.ctx.generation.config.routing.expose_decision;
    is_exposed.then(|| requested_timing(flow)).flatten()
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
        RelayEnd::Complete | RelayEnd::Unterminated
            if ctx.record.response.status < 400 && monitor.has_failed() =>
        {
            ctx.record.response.outcome = Some(Outcome::Fault);
        }
        RelayEnd::Cut(code) => {
            ctx.record.response.code = Some(code);
            ctx.record.response.outcome = Some(unreadable_outcome(code));
        }
        RelayEnd::Complete
        | RelayEnd::Unterminated
        | RelayEnd::LeftAfterEnd
        | RelayEnd::ClientGone => {}
    }
}

/// Sends the head. Returns one that waits for the first token, to state its time.
async fn send_head(
    client: &mut ClientSide<'_>,
    header: Box<ResponseHeader>,
    timing: Option<ServerTiming>,
) -> pingora::Result<Option<HeldHead>> {
    match timing {
        Some(timing) => Ok(Some(HeldHead::new(header, timing))),
        None => {
            client.write_head(header).await?;
            Ok(None)
        }
    }
}

/// Records the head of a response.
pub(crate) fn record_head(
    ctx: &mut RequestContext,
    request: &ScannedRequest,
    reply: &mut Reply<'_>,
) {
    let Reply { head, attempt, permit, .. } = reply;
    let now = now();
    if head.stream.is_none() {
        // Tokens alone are the progress of a stream. An HTTP server may refuse requests for a dead
        // engine behind it.
        let is_read = head.status < 300 && !head.is_encoded;
        if is_read && ctx.operation.is_some_and(|it| it.row().work != Work::Text) {
            attempt.serving.state.note_response(now);
        }
        if let Some(permit) = permit {
            // The prompt is computed: its tokens no longer count as waiting.
            permit.end_prefill();
        }
    }
    ctx.record.response.status = head.status;
    // All tokens of a whole response come with its head; an error has none.
    let has_tokens = head.stream.is_none() && head.status < 400;
    ctx.record.response.first_token = has_tokens.then_some(now);
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
    if !flow.ctx.record.edits.is_empty() {
        add_edits(header, &flow.ctx.record.edits)?;
    }
    if let Some(decision) = request.decision.filter(|decision| decision.is_below_tier) {
        add_tier(header, request.view(flow.ctx), &decision)?;
        flow.ctx.record.routing.is_below_tier = true;
    }
    if flow.ctx.generation.config.routing.expose_decision {
        add_decision(header, request.view(flow.ctx), attempt)?;
    }
    // The head of a stream with a timing waits for the first token, and states that time.
    if head.stream.is_none()
        && let Some(timing) = timing_of(flow)
    {
        timing.describe(header, Some(now()));
    }
    match head.framing {
        BodyEnd::Chunked | BodyEnd::UntilClose => frame_open_end(header, &mut flow.client),
        BodyEnd::Empty | BodyEnd::Length(_) => Ok(()),
    }
}

/// Reports the progress of one relay to the backend's state and the observers.
struct RelayProgress<'a> {
    proxy: &'a Proxy,
    view: RequestView<'a>,
    attempt: &'a Attempt<'a>,
    permit: &'a mut Permit,
    /// The result of the attempt, if the response is complete.
    result: AttemptResult,
    is_stream: bool,
    /// True if the body has a content coding, which penstock did not request and does not read.
    is_unread: bool,
    counter: TokenCounter,
}

impl RelayObserver for RelayProgress<'_> {
    fn tokens_passed(&mut self, is_first: bool, events: u32, now: Timestamp) {
        let serving = self.attempt.serving;
        let tokens = self.counter.count(events);
        serving.state.note_response(now);
        if let Some(permit) = self.permit {
            if let Some(slot) = permit.drain_slot() {
                serving.state.drain_estimate.add_tokens(slot, tokens);
            }
            // Before the requests that wait for capacity look at the backend.
            permit.note_tokens(tokens, now);
            if is_first {
                permit.first_token();
            }
        }
        for observer in &self.proxy.observers {
            if is_first {
                observer.first_token(serving.id, now.since(self.view.ctx.arrived_at));
            }
            observer.progress(serving.id, tokens);
        }
    }

    fn bytes_passed(&mut self, now: Timestamp) {
        self.attempt.serving.state.note_bytes(now);
    }

    fn client_waits(&mut self, waits: bool) {
        if let Some(permit) = self.permit {
            permit.wait_for_client(waits, now());
        }
    }

    // The permit is released before the last bytes are written: a client that sends its next
    // request at once must find the backend free.
    fn response_read(&mut self, monitor: &ResponseMonitor) {
        self.learn_id(monitor);
        let request = self.view.request;
        if let Some(usage) = monitor.usage().filter(|_| request.shift.is_some()) {
            let is_cut = monitor.is_ended_by_length();
            ContextShift::learn_end(&request.profile, self.attempt.serving, usage, is_cut);
        }
        // A response is committed by its head: a later failure shows only in its content.
        let outcome = match self.result.outcome {
            Outcome::Ok if monitor.has_failed() => Outcome::Fault,
            // What cannot be read proves no output.
            Outcome::Ok if monitor.is_empty() || self.is_unread => Outcome::Empty,
            outcome => outcome,
        };
        if self.is_stream {
            let counted = monitor.usage().and_then(Usage::shown_tokens);
            self.attempt.serving.latency.learn_stream(outcome, self.counter, counted);
        }
        let first_token = monitor.first_token.filter(|_| self.is_stream);
        let result = AttemptResult { outcome, first_token, usage: monitor.usage(), ..self.result };
        let ctx = self.view.ctx;
        // Before the release: the next owner in turn is picked then.
        if ctx.charge.is_some() {
            settle_charge(self.proxy, ctx, result.usage, monitor.tokens);
        }
        record_outcome(self.attempt, self.permit, &result, ctx, self.proxy);
        if ctx.holds_limits() {
            let streamed = Streamed { tokens: monitor.tokens, outcome: Some(outcome) };
            settle_rate_of(ctx, result.usage, streamed);
        }
    }
}

impl<'a> RelayProgress<'a> {
    fn new(
        proxy: &'a Proxy,
        view: RequestView<'a>,
        attempt: &'a Attempt<'a>,
        permit: &'a mut Permit,
        head: &ResponseHead,
    ) -> Self {
        let RequestProfile { operation, residency_change, .. } = view.request.profile;
        let yields_output = operation != Operation::Passthrough && residency_change.is_none();
        Self {
            proxy,
            view,
            attempt,
            permit,
            result: AttemptResult::by_status(head.status, view.ctx),
            is_stream: head.stream.is_some(),
            is_unread: head.is_encoded && yields_output,
            counter: attempt.serving.latency.token_counter(),
        }
    }

    /// Remembers where the response is stored.
    fn learn_id(&self, monitor: &ResponseMonitor) {
        let (ids, backend, ctx) =
            (&self.proxy.response_ids, self.attempt.serving.id, self.view.ctx);
        let limit = ctx.generation.config.limits.response_ids;
        if let Some(id) = monitor.response_id() {
            ids.learn(id, backend, ctx.key_owner(), limit);
        }
        let conversation = self.view.request.conversation.as_deref();
        // A request that failed has used no conversation, and must not claim it.
        if let Some(id) = conversation.filter(|_| self.result.outcome == Outcome::Ok) {
            ids.claim(id, backend, ctx.key_owner(), limit);
        }
    }
}
