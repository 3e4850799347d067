//! One attempt on one backend: a connection, the request on it, the response's head, and the decision
//! whether that response goes to the client.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{Method, Uri};
use pingora_proxy::Session;

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd};
use super::context::{RequestContext, ScannedRequest};
use super::outcome::{AttemptResult, record_outcome, retry_after};
use super::response::{Reply, relay};
use crate::api::{ErrorCode, Operation};
use crate::downstream::client::Client;
use crate::fleet::InflightGuard;
use crate::routing::RoutingDecision;
use crate::upstream::connection::Connection;
use crate::upstream::deadline::Deadline;
use crate::upstream::failure::{ConnectError, ExchangeError, Failure, HeldResponse};
use crate::upstream::http1::Exchange;
use crate::upstream::interrupt::{ClientWatch, Interrupts};
use crate::upstream::pool::ConnectionPool;
use crate::upstream::request_writer::{Forwarding, OwnFields, RequestBytes};
use crate::upstream::response_head::{Framing, ResponseHead};
use crate::upstream::retry_safety::request_is_unread;
use crate::upstream::splice::{splice, total_len, wire_name};

/// The most bytes of a refusal that are held back.
const HELD_LIMIT: usize = 64 * 1024;

impl ClientWatch for Client {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        Client::poll_gone(self, cx)
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Client::poll_flush(self, cx)
    }
}

/// Makes one attempt at a decision, and reports its outcome to the backend's state.
pub(crate) async fn make_attempt(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    decision: &RoutingDecision,
    permit: InflightGuard,
) -> AttemptEnd {
    let fleet = Arc::clone(&request.fleet);
    let client = ctx.client.clone();
    let attempt = client
        .as_ref()
        .and_then(|client| Attempt::start(ctx, decision, &fleet, client, permit, &proxy.seeds));
    let Some(attempt) = attempt else {
        debug_assert!(false, "a decision names a backend of the fleet it was made on");
        return AttemptEnd::Failed(Failure::NotSent(ConnectError::NoAddress));
    };
    let end = match exchange(proxy, session, ctx, request, &attempt).await {
        Ok(reply) => deliver(proxy, session, ctx, request, reply).await,
        Err(failure) => AttemptEnd::Failed(failure),
    };
    let result = AttemptResult::of(&end, ctx, proxy.seeds.next_share());
    record_outcome(&attempt, &result, &ctx.generation.router, &proxy.observers);
    end
}

/// Sends the request and reads the response's head.
pub(super) async fn exchange<'a>(
    proxy: &Proxy,
    session: &Session,
    ctx: &RequestContext,
    request: &ScannedRequest,
    attempt: &'a Attempt<'a>,
) -> Result<Reply<'a>, Failure> {
    let mut interrupts = Interrupts::new(attempt.client, deadline(ctx, request, attempt));
    let mut may_reuse = true;
    loop {
        let connection = connect(&proxy.pool, attempt, &mut interrupts, may_reuse).await?;
        let mut exchange = Exchange::new(connection, interrupts);
        exchange.accepts_switch = request.upgrade.is_some();
        let error = match send(&mut exchange, session, ctx, request, attempt).await {
            Ok(mut head) => {
                if session.req_header().method == Method::HEAD {
                    head.framing = Framing::Empty;
                }
                return Ok(Reply { exchange, head, attempt });
            }
            Err(error) => error,
        };
        let is_unread = request_is_unread(&exchange.connection, error);
        let failure = Failure::from_exchange(error, is_unread);
        // A server may close an idle connection at the very moment it is reused. Where it cannot have
        // read the request, that is no failure of the backend: the request goes out again at once, on
        // a fresh connection.
        if !(exchange.connection.is_reused && failure.is_unread_end()) {
            return Err(failure);
        }
        may_reuse = false;
        interrupts = exchange.interrupts;
    }
}

fn deadline(ctx: &RequestContext, request: &ScannedRequest, attempt: &Attempt<'_>) -> Deadline {
    let timeouts = &attempt.serving.timeouts;
    let total = timeouts.total.map(|limit| ctx.arrived_at.after(limit));
    let (limit, code) = match request.profile.streaming {
        true => (timeouts.first_token, ErrorCode::FirstTokenTimeout),
        false => (timeouts.response, ErrorCode::ResponseTimeout),
    };
    Deadline::new(attempt.started, limit, code, total)
}

/// An idle connection where `may_reuse` allows it and one is open, else a new one.
async fn connect(
    pool: &ConnectionPool,
    attempt: &Attempt<'_>,
    interrupts: &mut Interrupts<'_>,
    may_reuse: bool,
) -> Result<Connection, Failure> {
    if may_reuse && let Some(idle) = pool.take_idle(&attempt.serving.state, attempt.started) {
        return Ok(idle);
    }
    let timeout = attempt.serving.timeouts.connect;
    // Boxed: Pingora's connect is large, and every open stream would carry room for it along.
    let mut connecting = Box::pin(pool.connect(attempt.backend, timeout));
    let connected = poll_fn(|cx| {
        let connected = connecting.as_mut().poll(cx);
        interrupts.or_interrupted(connected, cx)
    })
    .await;
    match connected {
        Ok(connected) => connected.map_err(Failure::NotSent),
        Err(interrupted) => Err(Failure::from_exchange(interrupted, true)),
    }
}

/// Writes the request and reads the response's head.
async fn send(
    exchange: &mut Exchange<'_>,
    session: &Session,
    ctx: &RequestContext,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> Result<ResponseHead, ExchangeError> {
    let body = request.body();
    let name = upstream_name(request, attempt);
    let wire_name = wire_name(&request.profile, body, name);
    // Compared decoded: a name the client wrote with escapes is still that name.
    let keeps_body = match request.profile.names_model() {
        true => *name == *request.model,
        false => !request.inserts_model,
    };
    let body = match keeps_body {
        true => [body, &[], &[]],
        false => splice(body, &request.profile, &wire_name),
    };
    let client = session.req_header();
    let target = upstream_target(&client.uri, request.profile.operation);
    let own = OwnFields {
        method: client.method.as_str(),
        authority: &attempt.backend.authority,
        body_length: total_len(&body),
        request_id: &ctx.request_id,
        trace: attempt.trace,
        upgrade: request.upgrade.as_ref(),
        key_header: ctx.dialect.row().key_header,
        forwarding: forwarding(ctx, attempt.client),
    };
    let config = &attempt.backend.config;
    let bytes = RequestBytes::write(&target, &client.headers, config, own, body);
    exchange.request(bytes.parts()).await
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

/// The target a backend gets: the client's, with the path that all engines serve the operation at.
fn upstream_target(uri: &Uri, operation: Operation) -> Cow<'_, str> {
    match (operation.row().path(), uri.query()) {
        (Some(path), None) => path.into(),
        (Some(path), Some(query)) if uri.path() != path => format!("{path}?{query}").into(),
        (Some(_) | None, _) => uri.path_and_query().map_or("/", PathAndQuery::as_str).into(),
    }
}

/// The backend's name for the model.
fn upstream_name<'a>(request: &'a ScannedRequest, attempt: &Attempt<'a>) -> &'a str {
    let decision = request.decision.as_ref();
    let resolved = decision.and_then(|decision| request.fleet.model(decision.model));
    let configured = attempt.serving.upstream_id.as_deref();
    configured.or(resolved.map(|model| &*model.name)).unwrap_or(&request.model)
}

/// Holds a refusal back, because another backend may do better; relays everything else.
async fn deliver(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    reply: Reply<'_>,
) -> AttemptEnd {
    let retries_5xx = ctx.generation.config.routing.retry_5xx;
    let status = reply.head.status;
    let is_refusal = matches!(status, 429 | 503);
    let is_held = is_refusal || (retries_5xx && matches!(status, 500..=599));
    if !is_held {
        // From here on there is no retry, so the body is released.
        request.body = None;
        return AttemptEnd::Relayed(relay(proxy, session, ctx, request, reply).await);
    }
    match hold(proxy, reply).await {
        Ok(held) if is_refusal => AttemptEnd::Failed(Failure::Refused(held)),
        Ok(held) => AttemptEnd::Failed(Failure::ServerError(held)),
        Err(client_gone) => AttemptEnd::Failed(client_gone),
    }
}

pub(super) async fn hold(proxy: &Proxy, reply: Reply<'_>) -> Result<HeldResponse, Failure> {
    let Reply { mut exchange, head, attempt } = reply;
    let body = exchange.hold(head.framing, HELD_LIMIT).await;
    let body = body.map_err(|_client_gone| Failure::ClientGone)?;
    if body.is_some() && head.keeps_alive {
        proxy.pool.keep(&attempt.serving.state, exchange.connection, head.keep_alive);
    }
    Ok(HeldResponse {
        retry_after: retry_after(&head.header),
        status: head.status,
        header: head.header,
        // A refusal that is too large or broke off is passed on without its body.
        body: body.unwrap_or_default(),
    })
}
