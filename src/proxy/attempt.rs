//! One attempt: a connection, the request on it, the answer's head, and the decision whether that
//! answer goes to the client.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use pingora_proxy::Session;

use super::Proxy;
use super::context::{Call, RequestContext};
use super::outcome::{Ended, retry_after};
use super::response::{break_off, finish_head};
use super::retry::{Served, client_gone};
use crate::api::{ErrorCode, TraceContext};
use crate::clock::now;
use crate::downstream::client::Client;
use crate::fleet::{Backend, InflightGuard, Outcome, Serving, SlotId};
use crate::units::{Timestamp, TokenCount};
use crate::upstream::deadline::Deadline;
use crate::upstream::failure::{ConnectError, ExchangeError, Failure, HeldResponse};
use crate::upstream::http1::Exchange;
use crate::upstream::interrupt::{ClientWatch, Interrupts};
use crate::upstream::pool::Connection;
use crate::upstream::relay::{RelayEnd, RelayObserver, RelayTerms};
use crate::upstream::request_writer::{Forwarding, OwnFields, RequestBytes};
use crate::upstream::response_head::ResponseHead;
use crate::upstream::response_monitor::ResponseMonitor;
use crate::upstream::retry_safety::request_is_unread;
use crate::upstream::splice::{splice, total_len, wire_name};

/// The most bytes of a refusal that are held back.
const HELD_LIMIT: usize = 64 * 1024;

/// How an attempt ended.
pub(crate) enum AttemptEnd {
    /// An answer went to the client, whole or visibly broken.
    Relayed(Served),
    /// Not a byte went to the client.
    Failed(Failure),
}

/// The fixed parts of one attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) serving: &'a Serving,
    pub(crate) backend: &'a Backend,
    pub(crate) client: &'a Client,
    pub(crate) started: Timestamp,
    /// 1 for the first one.
    pub(crate) number: u32,
    /// The request's trace, and the attempt's own span in it.
    pub(crate) trace: Option<(TraceContext, u64)>,
    /// The place in flight; gone once the backend's part is over.
    pub(crate) place: Mutex<Option<InflightGuard>>,
}

impl Attempt<'_> {
    /// The prompt has been computed: its tokens wait for nothing any more.
    fn answered(&self) {
        if let Some(place) = &mut *self.place.lock() {
            place.end_prefill();
        }
    }
}

impl Proxy {
    /// Makes one attempt with the decision in `call`, and lets the backend's state learn from it.
    pub(crate) async fn attempt(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        call: &mut Call,
        guard: InflightGuard,
    ) -> AttemptEnd {
        let fleet = std::sync::Arc::clone(&call.fleet);
        let serving = call.decision.as_ref().and_then(|found| found.serving(&fleet));
        let backend = serving.and_then(|row| fleet.backends.get(usize::from(row.backend)));
        let client = ctx.client.clone();
        let (Some(serving), Some(backend), Some(client)) = (serving, backend, client) else {
            return AttemptEnd::Failed(Failure::NotSent(ConnectError::NoAddress));
        };
        let place = Mutex::new(Some(guard));
        let attempt = Attempt {
            serving,
            backend,
            client: &client,
            started: now(),
            number: ctx.ending.attempts,
            trace: ctx.trace.map(|trace| (trace, self.next_seed().max(1))),
            place,
        };
        let end = self.forward(session, ctx, call, &attempt).await;
        self.settle(&attempt, &Ended::of(&end, ctx, self.next_share()));
        end
    }

    async fn forward(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        call: &mut Call,
        attempt: &Attempt<'_>,
    ) -> AttemptEnd {
        let timeouts = &attempt.serving.timeouts;
        let total = timeouts.total.map(|limit| ctx.arrived_at.after(limit));
        let (limit, code) = if call.profile.streaming {
            (timeouts.first_token, ErrorCode::FirstTokenTimeout)
        } else {
            (timeouts.response, ErrorCode::ResponseTimeout)
        };
        let deadline = Deadline::new(attempt.started, limit, code, total);
        let mut interrupts = Interrupts::new(attempt.client, deadline);
        let mut may_reuse = true;
        loop {
            let connected = self.open(attempt, &mut interrupts, may_reuse).await;
            let connection = match connected {
                Ok(connection) => connection,
                Err(failure) => return AttemptEnd::Failed(failure),
            };
            let mut exchange = Exchange::new(connection, interrupts);
            let (response, sent) = send(&mut exchange, session, ctx, (call, attempt)).await;
            match response {
                Ok(head) => return self.judge(session, ctx, call, (exchange, head, attempt)).await,
                // An idle connection may be closed at the very moment it is used again. That is
                // nobody's failure: once more, on a fresh one.
                Err(ExchangeError::Closed | ExchangeError::ClosedWhileSending)
                    if exchange.connection.is_reused =>
                {
                    may_reuse = false;
                    interrupts = exchange.interrupts;
                }
                Err(error) => {
                    let is_unread = request_is_unread(&exchange.connection, sent);
                    return AttemptEnd::Failed(Failure::from_exchange(error, is_unread));
                }
            }
        }
    }

    async fn open(
        &self,
        attempt: &Attempt<'_>,
        interrupts: &mut Interrupts<'_>,
        may_reuse: bool,
    ) -> Result<Connection, Failure> {
        if may_reuse
            && let Some(idle) = self.upstreams.take_idle(&attempt.serving.state, attempt.started)
        {
            return Ok(idle);
        }
        let timeout = attempt.serving.timeouts.connect;
        // Boxed: Pingora's connect is large, and every open stream would carry room for it along.
        let mut connecting = Box::pin(self.upstreams.connect(attempt.backend, timeout));
        poll_fn(|cx| {
            let connected = connecting.as_mut().poll(cx);
            interrupts.or_interrupted(connected, cx)
        })
        .await
        .map_err(|error| Failure::from_exchange(error, true))?
        .map_err(Failure::NotSent)
    }

    /// Decides what to do with an answer: hold a refusal back, or relay it.
    async fn judge(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        call: &mut Call,
        (exchange, head, attempt): (Exchange<'_>, ResponseHead, &Attempt<'_>),
    ) -> AttemptEnd {
        let retries_5xx = ctx.generation.config.routing.retry_5xx;
        match head.status {
            429 | 503 => self.hold(exchange, head, (attempt, Failure::Refused)).await,
            500..=599 if retries_5xx => {
                self.hold(exchange, head, (attempt, Failure::ServerError)).await
            }
            _ => {
                // From here on the request cannot be repeated, so its body is not needed any more.
                call.body = None;
                AttemptEnd::Relayed(self.relay(session, ctx, call, (exchange, head, attempt)).await)
            }
        }
    }

    async fn hold(
        &self,
        mut exchange: Exchange<'_>,
        head: ResponseHead,
        (attempt, into): (&Attempt<'_>, fn(HeldResponse) -> Failure),
    ) -> AttemptEnd {
        let body = match exchange.hold(head.framing, HELD_LIMIT).await {
            Err(_client_gone) => return AttemptEnd::Failed(Failure::ClientGone),
            Ok(body) => body,
        };
        if body.is_some() && head.keeps_alive {
            self.upstreams.keep(&attempt.serving.state, exchange.connection, now());
        }
        AttemptEnd::Failed(into(HeldResponse {
            retry_after: retry_after(&head.header),
            status: head.status,
            header: head.header,
            body: body.unwrap_or_default(),
        }))
    }

    async fn relay(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        call: &Call,
        (mut exchange, mut head, attempt): (Exchange<'_>, ResponseHead, &Attempt<'_>),
    ) -> Served {
        let mut monitor = ResponseMonitor::new(call.profile.operation, head.is_event_stream);
        self.note_head(ctx, call, (&head, attempt));
        if call.profile.streaming && !head.is_event_stream {
            let limit = attempt.serving.timeouts.response;
            exchange.interrupts.deadline.set(attempt.started, limit, ErrorCode::ResponseTimeout);
        }
        finish_head(&mut head, ctx, session, (call, attempt))?;
        if head.is_event_stream {
            attempt.client.shrink();
        }
        let framing = head.framing;
        let downstream = session.as_downstream_mut();
        if downstream.write_response_header(head.header).await.is_err() {
            return client_gone(ctx);
        }
        let is_event_stream = head.is_event_stream;
        let progress = Progress {
            proxy: self,
            attempt,
            arrived_at: ctx.arrived_at,
            estimate: attempt.place.lock().as_ref().and_then(InflightGuard::drain_slot),
            ended: Ended { first_token: None, ..Ended::by_status(head.status, ctx) },
            is_event_stream,
        };
        let terms =
            RelayTerms { framing, timeouts: &attempt.serving.timeouts, observer: &progress };
        let end = exchange.relay(session, &mut monitor, terms).await;
        ctx.ending.usage = monitor.usage();
        ctx.ending.token_events = monitor.tokens;
        if head.is_event_stream {
            ctx.ending.first_token = monitor.first_token;
        }
        match end {
            RelayEnd::Complete => {
                if head.is_event_stream {
                    attempt.serving.latency.learn_length(TokenCount(monitor.tokens));
                }
                if head.keeps_alive {
                    self.upstreams.keep(&attempt.serving.state, exchange.connection, now());
                }
                Ok(())
            }
            RelayEnd::ClientGone => client_gone(ctx),
            RelayEnd::Cut(code) => {
                drop(exchange);
                ctx.ending.code = Some(code);
                ctx.ending.outcome = Some(Outcome::Fault);
                break_off(session, ctx, (code, &monitor)).await
            }
        }
    }

    fn note_head(
        &self,
        ctx: &mut RequestContext,
        call: &Call,
        (head, attempt): (&ResponseHead, &Attempt<'_>),
    ) {
        if !head.is_event_stream {
            attempt.answered();
        }
        ctx.ending.status = head.status;
        ctx.ending.first_token = (!head.is_event_stream).then(now);
        ctx.ending.provider = Some(attempt.backend.config.engine.provider());
        ctx.ending.backend = Some((attempt.serving.id, attempt.serving.state.name.clone()));
        if let Some(decision) = &call.decision {
            ctx.ending.is_fallback = decision.is_fallback;
            if decision.is_fallback {
                let model = call.fleet.model(decision.model);
                ctx.ending.model = model.map(|model| model.name.clone());
            }
        }
    }
}

/// Reports the progress of one relay.
struct Progress<'a> {
    proxy: &'a Proxy,
    attempt: &'a Attempt<'a>,
    arrived_at: Timestamp,
    /// The attempt's slot in the drain estimate.
    estimate: Option<SlotId>,
    /// The end of the attempt, if the response is complete.
    ended: Ended,
    is_event_stream: bool,
}

impl RelayObserver for Progress<'_> {
    fn tokens_passed(&self, is_first: bool, tokens: u32) {
        let (id, state) = (self.attempt.serving.id, &self.attempt.serving.state);
        if let Some(slot) = self.estimate {
            state.drain_estimate.add_tokens(slot, tokens);
        }
        if is_first {
            self.attempt.answered();
        }
        for observer in &self.proxy.observers {
            if is_first {
                observer.first_token(id, now().since(self.arrived_at));
            }
            observer.progress(id, tokens);
        }
    }

    // The backend is free as soon as its response is read, before the client can come back.
    fn response_read(&self, first_token: Option<Timestamp>) {
        let first_token = first_token.filter(|_| self.is_event_stream);
        self.proxy.settle(self.attempt, &Ended { first_token, ..self.ended });
    }
}

impl ClientWatch for Client {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        Client::poll_gone(self, cx)
    }
}

/// Sends the request and reads the head of the response; also says how many bytes the request has.
async fn send(
    exchange: &mut Exchange<'_>,
    session: &Session,
    ctx: &RequestContext,
    (call, attempt): (&Call, &Attempt<'_>),
) -> (Result<ResponseHead, ExchangeError>, usize) {
    let body = call.body.as_ref().map(|held| &*held.bytes).unwrap_or_default();
    let name = upstream_name(call, attempt.serving);
    let wire = wire_name(call.profile.operation.row().body, name);
    // Compared decoded: a name the client wrote with escapes is still that name.
    let parts =
        if *name == *call.model { [body, &[], &[]] } else { splice(body, &call.profile, &wire) };
    let client = session.req_header();
    let target = client.uri.path_and_query().map_or("/", |target| target.as_str());
    let own = OwnFields {
        authority: &attempt.backend.authority,
        body_length: total_len(&parts),
        request_id: &ctx.request_id,
        trace: attempt.trace,
        key_in_anthropic_style: ctx.dialect == crate::api::Dialect::Anthropic,
        forwarding: forwarding(ctx, attempt.client),
    };
    let config = &attempt.backend.config;
    let request = RequestBytes::write(target, &client.headers, config, own, parts);
    (exchange.request(request.parts()).await, request.len())
}

fn forwarding(ctx: &RequestContext, client: &Client) -> Forwarding {
    let server = &ctx.generation.config.server;
    let origin = client.origin();
    Forwarding {
        policy: server.forwarded_for,
        is_trusted: origin.peer.is_trusted(&server.trusted_proxies),
        peer: origin.peer.address(),
        is_tls: origin.is_tls,
    }
}

/// The name the backend knows the model by.
fn upstream_name<'a>(call: &'a Call, serving: &'a Serving) -> &'a str {
    let resolved = call.decision.as_ref().and_then(|found| call.fleet.model(found.model));
    let own = serving.upstream_id.as_deref();
    own.or(resolved.map(|model| &*model.name)).unwrap_or(&call.model)
}
