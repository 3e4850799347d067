//! One attempt on one backend: a connection, the request on it, the response's head, and the decision
//! whether that response goes to the client.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Uri};
use pingora_proxy::Session;

use super::Proxy;
use super::attempt::{Attempt, AttemptEnd, Unsuited};
use super::context::{RequestContext, ScannedRequest};
use super::conversion::{Conversion, NotConverted, Terms, convert_held};
use super::failure::OwnError;
use super::kept_alive::continues;
use super::moves::{Movable, Unresponded};
use super::outcome::{AttemptResult, record_outcome, retry_after};
use super::own_response::{send_error, send_held};
use super::residency;
use super::response::{Reply, record_backend, relay};
use super::shift_state::TooLong;
use super::target::with_query_model;
use super::token_count;
use super::unsupported;
use crate::api::{Dialect, ErrorCode, Operation};
use crate::config::Engine;
use crate::dialect::read_refusal;
use crate::downstream::body::BodyClaim;
use crate::downstream::client::Client;
use crate::fleet::{InflightGuard, Outcome};
use crate::routing::RoutingDecision;
use crate::upstream::connection::Connection;
use crate::upstream::deadline::Deadline;
use crate::upstream::failure::{ConnectError, ExchangeError, Failure, HeldResponse};
use crate::upstream::http1::Exchange;
use crate::upstream::interrupt::{ClientWatch, Interrupts};
use crate::upstream::pool::ConnectionPool;
use crate::upstream::request_writer::{Forwarding, KeyForm, OwnFields, RequestBytes};
use crate::upstream::response_head::{Framing, ResponseHead};
use crate::upstream::retry_safety::request_is_unread;
use crate::upstream::splice::{BodyParts, splice, splice_usage, total_len, whole, wire_name};

/// How long a connection must be idle before it carries another request, where the engine may close it after a response without
/// saying so.
const SETTLE: Duration = Duration::from_millis(10);
/// The most bytes of a refusal that are held back.
const HELD_LIMIT: usize = 64 * 1024;
/// The same as a `content-length`.
const HELD_LENGTH: u64 = HELD_LIMIT as u64;

impl ClientWatch for Client {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        Client::poll_gone(self, cx)
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Client::poll_flush(self, cx)
    }
}

/// Makes one attempt at a decision, and reports its outcome to the backend's state.
///
/// # Errors
/// [`Unsuited`] when the backend's API has no form for the request, its engine no room, or the request goes on elsewhere.
pub(crate) async fn make_attempt(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    decision: &RoutingDecision,
    permit: InflightGuard,
) -> Result<AttemptEnd, Unsuited> {
    let fleet = Arc::clone(&request.fleet);
    let client = ctx.client.clone();
    let attempt = client
        .as_ref()
        .and_then(|client| Attempt::start(ctx, decision, &fleet, client, permit, &proxy.seeds));
    let Some(mut attempt) = attempt else {
        debug_assert!(false, "a decision names a backend of the fleet it was made on");
        return Ok(AttemptEnd::Failed(Failure::NotSent(ConnectError::NoAddress)));
    };
    if let Some(change) = residency::change_of(request, &attempt) {
        return Ok(residency::respond(proxy, session, ctx, request, &attempt, change).await);
    }
    if token_count::is_in_steps(request, &attempt) {
        return token_count::respond(proxy, session, ctx, request, &attempt).await;
    }
    let end = match prepare(proxy, ctx, request, &attempt) {
        Ok(conversion) => {
            attempt.conversion = conversion;
            let reply = exchange(proxy, session, ctx, request, &attempt);
            let reply = match Movable::of(ctx, request, &attempt) {
                // Boxed: no other request should carry room for it.
                Some(movable) => Box::pin(movable.wait(proxy, ctx, request, &attempt, reply)).await,
                None => reply.await.map_err(Unresponded::Failed),
            };
            match reply {
                Ok(reply) => deliver(proxy, session, ctx, request, reply).await,
                Err(Unresponded::Failed(failure)) => Ok(AttemptEnd::Failed(failure)),
                Err(Unresponded::Moved(reserved)) => Err(Unsuited::Moved(reserved)),
            }
        }
        Err(reason) => Err(Unsuited::NotConverted(reason)),
    };
    let result = match &end {
        Ok(end) => AttemptResult::of(end, ctx, proxy.seeds.next_share()),
        Err(reason) => AttemptResult::unsuited(reason, ctx),
    };
    record_outcome(&attempt, &result, &ctx.generation.router, &proxy.observers);
    end
}

/// Converts the request if the backend does not serve its operation. Returns what it was and became.
pub(super) fn prepare(
    proxy: &Proxy,
    ctx: &RequestContext,
    request: &mut ScannedRequest,
    attempt: &Attempt<'_>,
) -> Result<Option<(Operation, Operation)>, NotConverted> {
    let from = request.profile.operation;
    let Some(target) = attempt.serving.conversion(from) else {
        request.conversion = None;
        return Ok(None);
    };
    let model = attempt.upstream_name(request).unwrap_or(&request.model).into();
    let terms = Terms { target, engine: attempt.engine(), model };
    let conversion = match request.conversion.take() {
        // Of an earlier attempt.
        Some(kept) if kept.fits(&terms) => kept,
        _ => {
            let limit = ctx.generation.config.limits.buffered_bodies.to_usize();
            let claim = |bytes| BodyClaim::take(&proxy.bodies, bytes, limit);
            Box::new(Conversion::new(from, request.body(), terms, claim)?)
        }
    };
    let became = conversion.operation();
    request.conversion = Some(conversion);
    Ok(Some((from, became)))
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
    // Of those that waited, the next one is sent in the moment that the last response has ended. llama.cpp closes after some
    // streams: of streams sent directly after others 1 % failed.
    let settles = ctx.record.queue_wait.is_some() || attempt.engine() == Engine::LlamaCpp;
    let mut reuse_after = Some(if settles { SETTLE } else { Duration::ZERO });
    loop {
        let connection = connect(&proxy.pool, attempt, &mut interrupts, reuse_after).await?;
        let mut exchange = Exchange::new(connection, interrupts);
        exchange.accepts_switch = request.upgrade.is_some();
        exchange.needs_payload = request.conversion.is_some();
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
        reuse_after = None;
        interrupts = exchange.interrupts;
    }
}

fn deadline(ctx: &RequestContext, request: &ScannedRequest, attempt: &Attempt<'_>) -> Deadline {
    let timeouts = &attempt.serving.timeouts;
    let total = timeouts.total.map(|limit| ctx.arrived_at.after(limit));
    let total = [total, request.deadline].into_iter().flatten().min();
    let (limit, code) = match request.profile.streaming {
        true => (timeouts.first_token, ErrorCode::FirstTokenTimeout),
        false => (timeouts.response, ErrorCode::ResponseTimeout),
    };
    Deadline::new(attempt.started, limit, code, total)
}

/// A connection that has been idle for `reuse_after`, where there is one, else a new one.
async fn connect(
    pool: &ConnectionPool,
    attempt: &Attempt<'_>,
    interrupts: &mut Interrupts<'_>,
    reuse_after: Option<Duration>,
) -> Result<Connection, Failure> {
    if let Some(settle) = reuse_after
        && let Some(idle) = pool.take_idle(&attempt.serving.state, attempt.started, settle)
    {
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
    let model = attempt.upstream_name(request);
    let wire_name = wire_name(&request.profile, request.body(), model.unwrap_or(&request.model));
    let body = body_for(request, model.unwrap_or(&request.model), &wire_name);
    let client = session.req_header();
    let operation = request.conversion.as_ref().map(|conversion| conversion.operation());
    let target = match operation.and_then(|operation| operation.row().path()) {
        Some(path) => path.into(),
        None => upstream_target(&client.uri, request.profile.operation),
    };
    let name = model.unwrap_or(&request.model);
    let is_renamed = request.is_model_in_query && *name != *request.model;
    let target = if is_renamed { with_query_model(&target, name).into() } else { target };
    let own = OwnFields {
        method: client.method.as_str(),
        authority: &attempt.backend.authority,
        body_length: total_len(&body),
        request_id: &ctx.request_id,
        trace: attempt.trace,
        upgrade: request.upgrade.as_ref(),
        key_form: key_form(ctx.dialect, operation, attempt.engine()),
        is_converted: operation.is_some(),
        forwarding: forwarding(ctx, attempt.client),
    };
    let config = &attempt.backend.config;
    let bytes = RequestBytes::write(&target, &client.headers, config, own, body);
    exchange.request(bytes.parts()).await
}

/// The body as this backend gets it.
fn body_for<'a>(request: &'a ScannedRequest, model: &str, wire_name: &'a str) -> BodyParts<'a> {
    if let Some(conversion) = &request.conversion {
        return whole(conversion.body());
    }
    let body = request.body();
    // Compared decoded: a name the client wrote with escapes is still that name.
    let keeps_name = match request.profile.names_model() {
        true => *model == *request.model,
        false => !request.inserts_model,
    };
    match (request.adds_usage, keeps_name) {
        (false, true) => whole(body),
        (false, false) => splice(body, &request.profile, wire_name),
        (true, keeps_name) => {
            splice_usage(body, &request.profile, (!keeps_name).then_some(wire_name))
        }
    }
}

/// How the backend takes its key. `converted`: what the request has become.
fn key_form(client: Dialect, converted: Option<Operation>, engine: Engine) -> KeyForm {
    let dialect = converted.map_or(client, |operation| operation.row().dialect);
    match (engine, dialect.row().key_header) {
        (Engine::Anthropic, _) => KeyForm::Anthropic,
        (_, Some(name)) => KeyForm::Also(name),
        (_, None) => KeyForm::Bearer,
    }
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

/// Holds a refusal back, because another backend may do better, and an error that has to be converted;
/// relays everything else.
async fn deliver(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &mut ScannedRequest,
    reply: Reply<'_>,
) -> Result<AttemptEnd, Unsuited> {
    let retries_5xx = ctx.generation.config.routing.retry_5xx;
    let status = reply.head.status;
    let is_refusal = matches!(status, 429 | 503);
    let is_retried = is_refusal || (retries_5xx && matches!(status, 500..=599));
    let is_foreign_error = request.conversion.is_some() && !matches!(status, 200..=299);
    let is_short = !matches!(reply.head.framing, Framing::Length(length) if length > HELD_LENGTH);
    let may_be_too_long =
        is_short && request.shift.as_ref().is_some_and(|shift| shift.reads(status));
    let may_be_unsupported = is_short && unsupported::reads(ctx, request, status);
    let breaks_stream = ctx.record.is_kept_alive && !continues(request, &reply.head);
    let is_held = is_retried || is_foreign_error || may_be_too_long || may_be_unsupported;
    if !is_held && !breaks_stream {
        // From here on there is no retry, so the body is released.
        request.body = None;
        let way_back = request.conversion.take().map(|conversion| conversion.into_way_back());
        return Ok(AttemptEnd::Relayed(relay(proxy, session, ctx, request, reply, way_back).await));
    }
    let (serving, backend) = (reply.attempt.serving, reply.attempt.backend);
    let held = match hold(proxy, reply).await {
        Ok(held) => held,
        Err(client_gone) => return Ok(AttemptEnd::Failed(client_gone)),
    };
    let refusal = if may_be_too_long { read_refusal(&held.body) } else { None };
    if may_be_unsupported && unsupported::take_out(ctx, request, &held.body) {
        return Err(Unsuited::Unsupported);
    }
    let held = match request.conversion {
        Some(_) => convert_held(held, request.profile.operation),
        None => held,
    };
    if let Some(refusal) = refusal {
        return Err(Unsuited::TooLong(Box::new(TooLong { held, refusal })));
    }
    Ok(if is_refusal {
        AttemptEnd::Failed(Failure::Refused(held))
    } else if is_retried {
        AttemptEnd::Failed(Failure::ServerError(held))
    } else if breaks_stream && status < 400 {
        record_backend(ctx, serving, backend);
        ctx.record.outcome = Some(Outcome::Fault);
        let message = "The backend sent no stream to a request for one";
        let error = OwnError::new(ErrorCode::BadUpstreamResponse, message);
        AttemptEnd::Relayed(send_error(proxy, session, ctx, error).await)
    } else {
        record_backend(ctx, serving, backend);
        AttemptEnd::Relayed(send_held(proxy, session, ctx, held, false).await)
    })
}

pub(super) async fn hold(proxy: &Proxy, reply: Reply<'_>) -> Result<HeldResponse, Failure> {
    let Reply { mut exchange, head, attempt } = reply;
    let mut claim = proxy.claim_response();
    let body = exchange.hold(head.framing, HELD_LIMIT, &mut claim).await;
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
        _claim: claim,
    })
}
