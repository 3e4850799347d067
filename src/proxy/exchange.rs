//! One exchange with one backend: a connection, the request written as this backend gets it, and
//! the head of the response.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Uri};
use penstock_api::{Dialect, Engine, ErrorCode, Operation, StreamFraming};
use penstock_scan::WholeResult;

use crate::downstream::client::Client;
use crate::proxy::attempt::{Attempt, Permit};
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::request::{RequestView, ScannedRequest};
use crate::upstream::beginning::Beginning;
use crate::upstream::connection::Connection;
use crate::upstream::deadline::Deadline;
use crate::upstream::failure::{AttemptFailure, ExchangeError};
use crate::upstream::http1::Exchange;
use crate::upstream::interrupt::{ClientWatch, Interrupts};
use crate::upstream::own_key::OwnKey;
use crate::upstream::pool::ConnectionPool;
use crate::upstream::query_model::with_query_model;
use crate::upstream::request_writer::{Forwarding, KeyForm, OwnFields, RequestBytes};
use crate::upstream::response_head::{BodyEnd, ResponseHead};
use crate::upstream::retry_safety::request_is_unread;
use crate::upstream::splice::{BodyParts, splice, splice_usage, total_len, whole, wire_name};

/// The minimum idle time of a connection before it is reused, if the engine may close it silently
/// after a response.
const MIN_IDLE: Duration = Duration::from_millis(10);

impl ClientWatch for Client {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        Client::poll_gone(self, cx)
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Client::poll_flush(self, cx)
    }
}

/// A response whose head has been read.
pub(crate) struct Reply<'a> {
    pub(crate) exchange: Exchange<'a>,
    pub(crate) head: ResponseHead,
    pub(crate) attempt: &'a Attempt<'a>,
    pub(crate) permit: &'a mut Permit,
    /// The part of the body that has been read.
    pub(crate) started: Beginning,
    /// The result, if it was read to judge the response.
    pub(crate) result: Option<WholeResult>,
}

impl Reply<'_> {
    /// Returns the framing that a requested stream may have although its `Content-Type` is another:
    /// that of the streams of its operation.
    pub(crate) fn open_framing(&self, request: &ScannedRequest) -> Option<StreamFraming> {
        let head = &self.head;
        let framing = self.attempt.sent_operation(request).row().dialect.row().framing;
        let is_open = request.profile.streaming
            && matches!(head.status, 200..=299)
            && !head.is_encoded
            && head.stream != Some(framing);
        is_open.then_some(framing)
    }
}

/// Sends the request and reads the response's head.
pub(super) async fn exchange<'a>(
    flow: &Flow<'_>,
    request: &ScannedRequest,
    attempt: &'a Attempt<'a>,
    permit: &'a mut Permit,
) -> Result<Reply<'a>, AttemptFailure> {
    let mut interrupts =
        Interrupts::new(attempt.client, attempt_deadline(request.view(flow.ctx), attempt));
    // A queued request is sent the instant a slot frees, which is when llama.cpp may close that
    // connection: 1 % of back-to-back streams failed. Only connections idle for `MIN_IDLE` are
    // reused.
    let settles =
        flow.ctx.record.queue.wait.is_some() || attempt.engine().row().closes_after_stream;
    let mut reuse_after = Some(if settles { MIN_IDLE } else { Duration::ZERO });
    loop {
        let connection = connect(&flow.proxy.pool, attempt, &mut interrupts, reuse_after).await?;
        let mut exchange = Exchange::new(connection, interrupts);
        // A server must not switch unless the client requests it (RFC 9110 §7.8).
        exchange.accepts_switch = request.is_websocket;
        exchange.needs_payload = attempt.converted_to().is_some();
        let error = match send(flow, &mut exchange, request, attempt).await {
            Ok(mut head) => {
                if let Some(key) = OwnKey::of(&attempt.backend.config) {
                    key.mask_fields(&mut head.header);
                }
                // The fields describe the body of a GET; none follows (RFC 9110 §9.3.2).
                if flow.client.head().method == Method::HEAD {
                    head.framing = BodyEnd::Empty;
                }
                let started = Beginning::new(head.framing);
                return Ok(Reply { exchange, head, attempt, permit, started, result: None });
            }
            Err(error) => error,
        };
        let is_unread = request_is_unread(&exchange.connection, error);
        let failure = AttemptFailure::from_exchange(error, is_unread);
        // A server may close an idle connection at the very moment it is reused. If it cannot have
        // read the request, that is no failure of the backend: the request goes out again at once,
        // on a fresh connection.
        if !(exchange.connection.is_reused && failure.is_unread_end()) {
            return Err(failure);
        }
        // Never another idle connection: it may be closed as well, and the loop must end.
        reuse_after = None;
        // The deadline goes on: it is one attempt.
        interrupts = exchange.interrupts;
    }
}

/// The deadline of an attempt, by the timeouts of the backend and the end of the whole request.
fn attempt_deadline(
    RequestView { ctx, request }: RequestView<'_>,
    attempt: &Attempt<'_>,
) -> Deadline {
    let timeouts = &attempt.serving.timeouts;
    // From the arrival: earlier attempts and the wait in a queue count.
    let total = timeouts.total.map(|limit| ctx.arrived_at.after(limit));
    let total = [total, request.must_end_by].into_iter().flatten().min();
    let (limit, code) = match request.profile.streaming {
        // Tokens show the progress of a stream; a whole response shows none before its end.
        true => (timeouts.first_token, ErrorCode::FirstTokenTimeout),
        false => (timeouts.response, ErrorCode::ResponseTimeout),
    };
    Deadline::new(attempt.started, limit, code, total)
}

/// A connection that has been idle for `reuse_after`, if there is one, else a new one.
async fn connect(
    pool: &ConnectionPool,
    attempt: &Attempt<'_>,
    interrupts: &mut Interrupts<'_>,
    reuse_after: Option<Duration>,
) -> Result<Connection, AttemptFailure> {
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
        Ok(connected) => connected.map_err(AttemptFailure::NotSent),
        // Nothing has been written: no backend can have read the request.
        Err(interrupted) => Err(AttemptFailure::from_exchange(interrupted, true)),
    }
}

/// Writes the request and reads the response's head.
async fn send(
    flow: &Flow<'_>,
    exchange: &mut Exchange<'_>,
    request: &ScannedRequest,
    attempt: &Attempt<'_>,
) -> Result<ResponseHead, ExchangeError> {
    let name = attempt.sent_model(request);
    let wire_name = wire_name(&request.profile, request.body(), name);
    // Compared decoded: a name the client wrote with escapes is still that name.
    let keeps_name = match request.profile.names_model() {
        true => *name == *request.model,
        false => !request.inserts_model,
    };
    let body = body_for(request, (!keeps_name).then_some(&*wire_name));
    let client = flow.client.head();
    let converted = attempt.converted_to();
    let target = match converted.and_then(|operation| operation.row().path()) {
        Some(path) => path.into(),
        None => upstream_target(&client.uri, request.profile.operation),
    };
    let is_renamed = request.is_model_in_query && *name != *request.model;
    let target = if is_renamed { with_query_model(&target, name).into() } else { target };
    let own = OwnFields {
        method: client.method.as_str(),
        authority: &attempt.backend.authority,
        body_length: total_len(&body),
        request_id: &flow.ctx.request_id,
        trace: attempt.trace,
        is_websocket: request.is_websocket,
        key_form: key_form(flow.ctx.dialect, converted, attempt.engine()),
        is_converted: converted.is_some(),
        forwarding: forwarding(flow.ctx, attempt.client),
    };
    let config = &attempt.backend.config;
    let bytes = RequestBytes::write(&target, &client.headers, config, own, body);
    exchange.request(bytes.parts()).await
}

/// The body as the backend gets it. `name`: the model's name in its written form, if it replaces
/// the client's.
fn body_for<'a>(request: &'a ScannedRequest, name: Option<&'a str>) -> BodyParts<'a> {
    match (&request.conversion, name) {
        (Some(conversion), _) => whole(conversion.body()),
        (None, _) if request.adds_usage => splice_usage(request.body(), &request.profile, name),
        (None, Some(name)) => splice(request.body(), &request.profile, name),
        (None, None) => whole(request.body()),
    }
}

/// The form of the backend's key. `converted`: the operation that the request was converted to.
fn key_form(client: Dialect, converted: Option<Operation>, engine: Engine) -> KeyForm {
    let dialect = converted.map_or(client, |operation| operation.row().dialect);
    match (engine.row().key_headers, dialect.row().key_header) {
        (Some(headers), _) => KeyForm::Only(headers),
        (None, Some(name)) => KeyForm::Also(name),
        (None, None) => KeyForm::Bearer,
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
