//! An upgraded connection (WebSocket): one request with `Upgrade`, then bytes both ways until one side
//! closes, neither sends anything for `timeouts.between_tokens`, `timeouts.total` passes, or the
//! process stops. It counts as in flight, here and on its backend, for all of that time.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use http::header::{self, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::passthrough::{by_model, decide_by_name, is_busy};
use crate::api::{ErrorCode, Operation};
use crate::clock::now;
use crate::downstream::body::HeldBody;
use crate::downstream::http1::GuardedStream;
use crate::downstream::response_writer::write_fields;
use crate::fleet::{InflightGuard, Outcome, PermitRequest};
use crate::proxy::Proxy;
use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::context::{RequestContext, ScannedRequest, Served};
use crate::proxy::decision::{Undecided, decide};
use crate::proxy::failure::OwnError;
use crate::proxy::forward::exchange;
use crate::proxy::outcome::{AttemptResult, record_outcome};
use crate::proxy::own_response::{add_common_fields, keep_upstream_id, send_error};
use crate::proxy::reserved::Decided;
use crate::proxy::response::{Reply, record_backend, relay};
use crate::routing::Way;
use crate::units::{Timestamp, to_micros};
use crate::upstream::failure::{ConnectError, Failure};

/// The longest single read.
const READ: usize = 16 * 1024;
/// How often the timeouts are looked at.
const TICK: Duration = Duration::from_millis(250);
/// How long the other side may take to close after a tunnel was ended.
const LINGER: Duration = Duration::from_secs(1);

/// The only protocol that clients are connected through to: past it, a client would speak to the engine with
/// penstock's own key.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// The protocol that the client asks to switch to, which is a WebSocket's; `None` for an ordinary request, which one
/// with another protocol or a list of several is as well.
pub(crate) fn requested_websocket(head: &RequestHeader) -> Option<HeaderValue> {
    let is_listed = head.headers.get_all(header::CONNECTION).iter().any(names_upgrade);
    let mut protocols = head.headers.get_all(header::UPGRADE).iter();
    let only = protocols.next().filter(|_| protocols.next().is_none() && is_listed)?;
    let is_websocket = only.as_bytes().trim_ascii().eq_ignore_ascii_case(WEBSOCKET.as_bytes());
    let may_switch = head.method == Method::GET && head.version == http::Version::HTTP_11;
    (is_websocket && may_switch).then_some(WEBSOCKET)
}

fn names_upgrade(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|byte| *byte == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// A request to switch protocols.
pub(crate) struct Upgrade<'a> {
    pub(crate) way: &'a Way,
    pub(crate) protocol: HeaderValue,
}

/// Forwards a request to switch protocols along its way, and then the bytes of both sides.
pub(crate) async fn serve_tunnel(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    upgrade: Upgrade<'_>,
    no_body: HeldBody,
) -> Served {
    let Upgrade { way, protocol } = upgrade;
    let (mut request, Decided { decision, permit }) =
        match reserve(proxy, session, ctx, way, no_body) {
            Ok(reserved) => reserved,
            Err(Some(error)) => return send_error(proxy, session, ctx, error).await,
            Err(None) => return ctx.client_gone(),
        };
    request.decision = Some(decision);
    request.upgrade = Some(protocol.clone());
    let fleet = std::sync::Arc::clone(&request.fleet);
    let client = ctx.client.clone();
    let attempt = client
        .as_ref()
        .and_then(|client| Attempt::start(ctx, &decision, &fleet, client, permit, &proxy.seeds));
    let Some(attempt) = attempt else {
        return {
            let failure = Failure::NotSent(ConnectError::NoAddress);
            send_error(proxy, session, ctx, OwnError::from_failure(&failure)).await
        };
    };
    if attempt.backend.config.http2 {
        let message = "The backend is reached over HTTP/2, which cannot switch protocols";
        let error = OwnError::new(ErrorCode::CapabilityMismatch, message);
        return send_error(proxy, session, ctx, error).await;
    }
    let served = match exchange(proxy, session, ctx, &request, &attempt).await {
        Ok(reply) if reply.head.status == 101 => {
            Ok(switch(proxy, session, ctx, reply, protocol).await)
        }
        Ok(reply) => Ok(relay(proxy, session, ctx, &request, reply, None).await),
        Err(failure) => Err(failure),
    };
    let end = match served {
        Ok(served) => AttemptEnd::Relayed(served),
        Err(failure) => AttemptEnd::Failed(failure),
    };
    let result = AttemptResult::of(&end, ctx, proxy.seeds.next_share());
    record_outcome(&attempt, &result, &ctx.generation.router, &proxy.observers);
    match end {
        AttemptEnd::Relayed(served) => served,
        AttemptEnd::Failed(Failure::ClientGone) => ctx.client_gone(),
        AttemptEnd::Failed(failure) => {
            send_error(proxy, session, ctx, OwnError::from_failure(&failure)).await
        }
    }
}

/// The backend, and the permit there; no error when the client is gone.
fn reserve(
    proxy: &Proxy,
    session: &Session,
    ctx: &mut RequestContext,
    way: &Way,
    no_body: HeldBody,
) -> Result<(ScannedRequest, Decided), Option<OwnError>> {
    let name = match way {
        Way::ByModel => {
            let request = by_model(proxy, session, ctx, no_body)?;
            let headers = &session.req_header().headers;
            let decided =
                decide(proxy, ctx, headers, &request).map_err(|undecided| match undecided {
                    Undecided::NoRoute(error) => {
                        Some(OwnError::from_route(&error, now(), proxy.seeds.next_share()))
                    }
                    Undecided::ClientGone => None,
                })?;
            return Ok((request, decided));
        }
        Way::Backend(name) => name,
    };
    let fleet = ctx.generation.fleet.topology();
    let decision = decide_by_name(ctx, &fleet, name)?;
    let serving = decision.serving(&fleet).ok_or_else(|| is_busy(name))?;
    let permit = InflightGuard::try_reserve(
        &serving.state,
        serving.max_in_flight,
        &PermitRequest::default(),
    );
    let permit = permit.ok_or_else(|| is_busy(name))?;
    ctx.record.attempts += 1;
    let request = ScannedRequest::direct(ctx, Operation::Passthrough, fleet, no_body);
    Ok((request, Decided { decision, permit }))
}

/// Passes the switch on to the client, and then the bytes.
async fn switch(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut RequestContext,
    reply: Reply<'_>,
    protocol: HeaderValue,
) -> Served {
    let Reply { exchange, head, attempt } = reply;
    ctx.record.status = 101;
    record_backend(ctx, attempt.serving, attempt.backend);
    let Some(client) = attempt.client.upgraded() else {
        debug_assert!(false, "only HTTP/1.1 requests are upgraded");
        return ctx.client_gone();
    };
    let mut header = head.header;
    keep_upstream_id(&mut header, ctx)?;
    add_common_fields(&mut header, ctx)?;
    header.insert_header(header::CONNECTION, HeaderValue::from_static("Upgrade"))?;
    header.insert_header(header::UPGRADE, protocol)?;
    session.set_keepalive(None);
    let connection = exchange.connection;
    let timeouts = &attempt.serving.timeouts;
    let tunnel = Tunnel {
        proxy,
        started: now(),
        last_byte: AtomicU64::new(0),
        idle: timeouts.between_tokens,
        ends: timeouts.total.map(|limit| ctx.arrived_at.after(limit)),
        drain: ctx.generation.config.server.drain_timeout,
    };
    let mut first = write_head(&header);
    first.extend_from_slice(&connection.read);
    let end = tunnel.run(client, connection.stream, &first).await;
    if end == TunnelEnd::Failed {
        ctx.record.outcome = Some(Outcome::Cancel);
    }
    // Whatever follows on this connection is no request.
    pingora::Error::e_explain(pingora::ErrorType::ConnectionClosed, "the upgraded connection ended")
}

/// The 101 as the client gets it.
fn write_head(header: &ResponseHeader) -> Vec<u8> {
    let mut out = b"HTTP/1.1 101 Switching Protocols\r\n".to_vec();
    write_fields(header.headers.iter(), &mut out);
    out.extend_from_slice(b"\r\n");
    out
}

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TunnelEnd {
    /// Both sides closed, or penstock closed both in order.
    Closed,
    /// A connection broke.
    Failed,
}

struct Tunnel<'a> {
    proxy: &'a Proxy,
    started: Timestamp,
    /// When bytes last passed, in microseconds after `started`.
    last_byte: AtomicU64,
    idle: Duration,
    ends: Option<Timestamp>,
    drain: Duration,
}

impl Tunnel<'_> {
    async fn run(
        &self,
        client: GuardedStream,
        backend: impl AsyncRead + AsyncWrite + Unpin,
        first: &[u8],
    ) -> TunnelEnd {
        let (mut from_client, mut to_client) = tokio::io::split(client);
        let (mut from_backend, mut to_backend) = tokio::io::split(backend);
        if to_client.write_all(first).await.is_err() || to_client.flush().await.is_err() {
            return TunnelEnd::Failed;
        }
        let passed = {
            let up = self.pump(&mut from_client, &mut to_backend);
            let down = self.pump(&mut from_backend, &mut to_client);
            tokio::select! {
                passed = async { tokio::try_join!(up, down) } => Some(passed.is_ok()),
                () = self.over() => None,
            }
        };
        match passed {
            Some(true) => TunnelEnd::Closed,
            Some(false) => TunnelEnd::Failed,
            None => {
                // Each side sees an orderly end of the stream rather than a reset.
                let closed = async { tokio::join!(to_client.shutdown(), to_backend.shutdown()) };
                _ = tokio::time::timeout(LINGER, closed).await;
                TunnelEnd::Closed
            }
        }
    }

    /// Passes bytes on until `from` ends.
    async fn pump(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut buffer = vec![0; READ];
        loop {
            let count = from.read(&mut buffer).await?;
            self.last_byte.store(to_micros(now().since(self.started)), Ordering::Relaxed);
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                return to.shutdown().await;
            };
            to.write_all(bytes).await?;
            to.flush().await?;
        }
    }

    /// Ends when a timeout passes, or when the process that stops has waited long enough.
    async fn over(&self) {
        let mut stop_at = None;
        loop {
            tokio::time::sleep(TICK).await;
            let now = now();
            if stop_at.is_none() && self.proxy.is_stopping() {
                stop_at = Some(now.after(self.drain.saturating_sub(LINGER)));
            }
            let last =
                self.started.after(Duration::from_micros(self.last_byte.load(Ordering::Relaxed)));
            let is_idle = now.since(last) >= self.idle;
            let is_late =
                self.ends.is_some_and(|at| now >= at) || stop_at.is_some_and(|at| now >= at);
            if is_idle || is_late {
                return;
            }
        }
    }
}
