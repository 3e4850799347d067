//! One attempt: a connection, the request on it, the answer's head, and the decision whether that
//! answer goes to the client.

use std::future::{Future, poll_fn};
use std::task::Poll;

use parking_lot::Mutex;
use pingora_proxy::Session;

use super::Proxy;
use super::context::{Call, RequestContext};
use super::failure::{Failure, HeldAnswer};
use super::outcome::{Ended, retry_after};
use super::response::{break_off, finish_head};
use super::retry::{Served, client_gone};
use crate::api::{ErrorCode, TraceContext};
use crate::clock::now;
use crate::downstream::client::Client;
use crate::fleet::{Backend, InflightGuard, Outcome, Serving};
use crate::units::{Timestamp, TokenCount};
use crate::upstream::connect::DialError;
use crate::upstream::deadline::Deadline;
use crate::upstream::exchange::{Exchange, Stop};
use crate::upstream::pool::Connection;
use crate::upstream::relay::{RelayEnd, RelayTerms, Watch};
use crate::upstream::request_writer::ask;
use crate::upstream::response_head::AnswerHead;

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
            place.answered();
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
            return AttemptEnd::Failed(Failure::NotSent(DialError::NoAddress));
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
        let mut deadline = Deadline::new(attempt.started, limit, code, total);
        let mut may_reuse = true;
        loop {
            let connected = self.open(attempt, &mut deadline, may_reuse).await;
            let connection = match connected {
                Ok(connection) => connection,
                Err(failure) => return AttemptEnd::Failed(failure),
            };
            let mut exchange = Exchange::new(connection, attempt.client, &mut deadline);
            let (asked, sent) = ask(&mut exchange, session, ctx, (call, attempt)).await;
            match asked {
                Ok(head) => return self.judge(session, ctx, call, (exchange, head, attempt)).await,
                // An idle connection may be closed at the very moment it is used again. That is
                // nobody's failure: once more, on a fresh one.
                Err(Stop::Closed | Stop::ClosedWhileSending) if exchange.connection.is_reused => {
                    may_reuse = false;
                }
                Err(stop) => {
                    let is_unread = exchange.connection.is_unread(sent);
                    return AttemptEnd::Failed(Failure::from_stop(stop, is_unread));
                }
            }
        }
    }

    async fn open(
        &self,
        attempt: &Attempt<'_>,
        deadline: &mut Deadline,
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
            if let Poll::Ready(connected) = connecting.as_mut().poll(cx) {
                return Poll::Ready(connected.map_err(Failure::NotSent));
            }
            if attempt.client.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            deadline.poll(cx).map(|code| Err(Failure::TimedOut(code)))
        })
        .await
    }

    /// Decides what to do with an answer: hold a refusal back, or relay it.
    async fn judge(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        call: &mut Call,
        (exchange, head, attempt): (Exchange<'_>, AnswerHead, &Attempt<'_>),
    ) -> AttemptEnd {
        let retries_5xx = ctx.generation.config.routing.retry_5xx;
        match head.status {
            429 | 503 => self.hold(exchange, head, (attempt, Failure::Refused)).await,
            500..=599 if retries_5xx => self.hold(exchange, head, (attempt, Failure::Failed)).await,
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
        head: AnswerHead,
        (attempt, into): (&Attempt<'_>, fn(HeldAnswer) -> Failure),
    ) -> AttemptEnd {
        let body = match exchange.hold(head.framing, HELD_LIMIT).await {
            Err(_client_gone) => return AttemptEnd::Failed(Failure::ClientGone),
            Ok(body) => body,
        };
        if body.is_some() && head.keeps_alive {
            self.upstreams.keep(&attempt.serving.state, exchange.connection, now());
        }
        AttemptEnd::Failed(into(HeldAnswer {
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
        (mut exchange, mut head, attempt): (Exchange<'_>, AnswerHead, &Attempt<'_>),
    ) -> Served {
        let mut watch = Watch::new(call.profile.operation, head.is_event_stream);
        self.note_head(ctx, call, (&head, attempt));
        if call.profile.streaming && !head.is_event_stream {
            let limit = attempt.serving.timeouts.response;
            exchange.deadline.set(attempt.started, limit, ErrorCode::ResponseTimeout);
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
        let on_tokens = self.on_tokens(attempt, ctx.arrived_at);
        let is_event_stream = head.is_event_stream;
        let by_status = |first_token| Ended { first_token, ..Ended::by_status(head.status, ctx) };
        // The backend is free as soon as its answer is read, before the client can come back.
        let on_whole = |first_token: Option<Timestamp>| {
            self.settle(attempt, &by_status(first_token.filter(|_| is_event_stream)));
        };
        let terms = RelayTerms {
            framing,
            timeouts: &attempt.serving.timeouts,
            on_tokens: &on_tokens,
            on_whole: &on_whole,
        };
        let end = exchange.relay(session, &mut watch, terms).await;
        ctx.ending.usage = watch.usage();
        ctx.ending.token_events = watch.tokens;
        if head.is_event_stream {
            ctx.ending.first_token = watch.first_token;
        }
        match end {
            RelayEnd::Complete => {
                if head.is_event_stream {
                    attempt.serving.latency.learn_length(TokenCount(watch.tokens));
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
                break_off(session, ctx, (code, &watch)).await
            }
        }
    }

    /// What is told when tokens of an answer have passed.
    fn on_tokens<'a>(
        &'a self,
        attempt: &'a Attempt<'_>,
        arrived_at: Timestamp,
    ) -> impl Fn(bool, u32) + use<'a> {
        let (id, state) = (attempt.serving.id, &attempt.serving.state);
        let forecast = attempt.place.lock().as_ref().and_then(InflightGuard::place);
        move |is_first: bool, tokens: u32| {
            if let Some(place) = forecast {
                state.forecasts.add(place, tokens);
            }
            if is_first {
                attempt.answered();
            }
            for observer in &self.observers {
                if is_first {
                    observer.first_token(id, now().since(arrived_at));
                }
                observer.progress(id, tokens);
            }
        }
    }

    fn note_head(
        &self,
        ctx: &mut RequestContext,
        call: &Call,
        (head, attempt): (&AnswerHead, &Attempt<'_>),
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
