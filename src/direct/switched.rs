//! An upgraded connection (WebSocket): bytes both ways until one side closes, neither sends
//! anything for `timeouts.between_tokens`, `timeouts.total` passes, or the process stops. It counts
//! as in flight, here and on its backend, for all of that time.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::header::{self, HeaderValue};
use penstock_api::units::{Timestamp, to_micros};
use penstock_clock::now;
use penstock_core::fleet::Outcome;
use pingora::http::ResponseHeader;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::downstream::http1::GuardedStream;
use crate::downstream::response_writer::write_fields;
use crate::proxy::Proxy;
use crate::proxy::attempt::AttemptEnd;
use crate::proxy::exchange::Reply;
use crate::proxy::flow::{Flow, Served};
use crate::proxy::forward::TakeResponse;
use crate::proxy::own_response::{add_common_fields, keep_upstream_id};
use crate::proxy::request::ScannedRequest;
use crate::proxy::response::relay;
use crate::upstream::failure::AttemptFailure;
use crate::upstream::headers::WEBSOCKET;

/// The longest single read.
const MAX_READ: usize = 16 * 1024;
/// The interval at which the timeouts are checked.
const TICK: Duration = Duration::from_millis(250);
/// The time that both sides have to close after a tunnel was ended.
const LINGER: Duration = Duration::from_secs(1);

/// A client that requests to switch to WebSocket.
pub(crate) struct Switch;

#[async_trait]
impl TakeResponse for Switch {
    async fn take(
        &self,
        flow: &mut Flow<'_>,
        request: &mut ScannedRequest,
        reply: Reply<'_>,
    ) -> Result<AttemptEnd, AttemptFailure> {
        let served = match reply.head.status {
            101 => switch(flow, reply).await,
            // The backend refuses to switch: its response is an ordinary one.
            _ => relay(flow, request, reply).await,
        };
        Ok(AttemptEnd::Relayed(served))
    }
}

/// Passes the switch on to the client, and then the bytes.
async fn switch(flow: &mut Flow<'_>, reply: Reply<'_>) -> Served {
    let Reply { exchange, head, attempt, .. } = reply;
    flow.ctx.record.response.status = 101;
    flow.ctx.record_backend(attempt.serving, attempt.backend);
    let Some(client) = attempt.client.upgraded() else {
        debug_assert!(false, "only HTTP/1.1 requests are upgraded");
        return flow.ctx.end_cancelled();
    };
    let mut header = head.header;
    keep_upstream_id(&mut header, flow.ctx)?;
    add_common_fields(&mut header, flow.ctx)?;
    header.insert_header(header::CONNECTION, HeaderValue::from_static("Upgrade"))?;
    header.insert_header(header::UPGRADE, WEBSOCKET)?;
    flow.client.close_after();
    let connection = exchange.connection;
    let timeouts = &attempt.serving.timeouts;
    let tunnel = Tunnel {
        proxy: flow.proxy,
        started: now(),
        last_byte: AtomicU64::new(0),
        idle: timeouts.between_tokens,
        ends: timeouts.total.map(|limit| flow.ctx.arrived_at.after(limit)),
        drain: flow.ctx.generation.config.server.drain_timeout,
    };
    let mut first = write_head(&header);
    // The engine's first bytes may have come with its 101.
    first.extend_from_slice(&connection.read);
    let end = tunnel.run(client, connection.stream, &first).await;
    if end == TunnelEnd::Failed {
        flow.ctx.record.response.outcome = Some(Outcome::Cancel);
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TunnelEnd {
    /// Both sides closed, or penstock closed both in order.
    Closed,
    Failed,
}

struct Tunnel<'a> {
    proxy: &'a Proxy,
    started: Timestamp,
    /// The time at which bytes last passed, in microseconds after `started`.
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
        let mut buffer = vec![0; MAX_READ];
        loop {
            let count = from.read(&mut buffer).await?;
            self.last_byte.store(to_micros(now().since(self.started)), Ordering::Relaxed);
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                // Only this direction ends: bytes of the other one may still be on their way.
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
                // Leaves `LINGER` of the drain timeout for closing both sides.
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
