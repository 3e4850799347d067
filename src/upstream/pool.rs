//! Idle connections to backends, kept between requests in Pingora's lock-free pool nodes.
//!
//! Pingora's own pool spawns a task per released connection that waits for the backend to close it: a
//! spawn and a wake-up for every request. Here nothing watches an idle connection; it is polled once
//! when it is taken, and about once per second by [`ConnectionPool::sweep`].
//!
//! What makes that sound: the poll sees a close that has arrived, an idle timeout below the servers'
//! own (uvicorn closes after 5 s) makes one in flight rare, and for the rest the proxy sends a request
//! again at once, on a fresh connection, when a *reused* one closes without a response byte. What
//! would break it: keeping a connection before its response has been read to the end (the next
//! request would read the rest of this response), or keeping one with bytes left in `read`.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ahash::HashSet;
use bytes::BytesMut;
use once_cell::sync::OnceCell;
use pingora::protocols::Stream;
use pingora_pool::PoolNode;
use tokio::io::{AsyncRead, ReadBuf};

use super::connect::Connector;
use super::failure::ConnectError;
use crate::clock::now;
use crate::config::LimitsConfig;
use crate::config::MAX_BACKENDS;
use crate::fleet::{Backend, BackendId, BackendState};
use crate::units::{Timestamp, to_micros};

/// The first read of a response; later ones grow with what the engine sends.
pub(crate) const READ_CHUNK: usize = 4 * 1024;

/// A connection to a backend, in use by one attempt.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Response bytes read and not yet relayed.
    pub(crate) read: BytesMut,
    /// Whether it has carried a request before.
    pub(crate) is_reused: bool,
    pub(crate) is_tls: bool,
}

struct IdleConnection {
    /// Identifies the backend: a `BackendId` is assigned again once its backend is gone.
    serial: u64,
    stream: Stream,
    read: BytesMut,
    since: Timestamp,
    is_tls: bool,
}

/// The idle connections under one `BackendId`.
struct IdleSet {
    node: PoolNode<IdleConnection>,
    count: AtomicUsize,
}

/// Idle connections of all backends, and the connector for new ones.
pub(crate) struct ConnectionPool {
    connector: Connector,
    idle: Box<[OnceCell<IdleSet>]>,
    idle_micros: AtomicU64,
    idle_limit: AtomicUsize,
}

impl ConnectionPool {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        let pool = Self {
            connector: Connector::new(limits.idle_timeout),
            idle: (0..MAX_BACKENDS).map(|_| OnceCell::new()).collect(),
            idle_micros: AtomicU64::new(0),
            idle_limit: AtomicUsize::new(0),
        };
        pool.set_limits(limits);
        pool
    }

    /// Applies these limits from now on.
    pub(crate) fn set_limits(&self, limits: &LimitsConfig) {
        self.connector.set_idle_timeout(limits.idle_timeout);
        self.idle_micros.store(to_micros(limits.idle_timeout), Ordering::Relaxed);
        self.idle_limit.store(limits.idle_connections, Ordering::Relaxed);
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_micros(self.idle_micros.load(Ordering::Relaxed))
    }

    fn idle_set(&self, id: BackendId) -> Option<&IdleSet> {
        let cell = self.idle.get(usize::from(id.0))?;
        Some(cell.get_or_init(|| IdleSet { node: PoolNode::new(), count: AtomicUsize::new(0) }))
    }

    /// An idle connection that is still open, or none.
    pub(crate) fn take_idle(&self, state: &BackendState, now: Timestamp) -> Option<Connection> {
        let set = self.idle_set(state.id)?;
        let timeout = self.idle_timeout();
        while let Some((_, mut idle)) = set.node.get_any() {
            set.count.fetch_sub(1, Ordering::Relaxed);
            let is_ours = idle.serial == state.serial && now.since(idle.since) < timeout;
            if is_ours && is_open_and_silent(&mut idle.stream) {
                let IdleConnection { stream, read, is_tls, .. } = idle;
                return Some(Connection { stream, read, is_reused: true, is_tls });
            }
        }
        None
    }

    /// A new connection.
    pub(crate) async fn connect(
        &self,
        backend: &Backend,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let stream = self.connector.connect(backend, timeout).await?;
        let is_tls = backend.config.url.https;
        let read = BytesMut::with_capacity(READ_CHUNK);
        Ok(Connection { stream, read, is_reused: false, is_tls })
    }

    /// Keeps a connection whose response has been read to its end.
    pub(crate) fn keep(&self, state: &BackendState, connection: Connection, now: Timestamp) {
        let Some(set) = self.idle_set(state.id) else { return };
        let limit = self.idle_limit.load(Ordering::Relaxed);
        if !connection.read.is_empty() || set.count.load(Ordering::Relaxed) >= limit {
            // Bytes after the end of a response belong to no request: the connection is closed.
            return;
        }
        set.count.fetch_add(1, Ordering::Relaxed);
        let Connection { stream, read, is_tls, .. } = connection;
        let descriptor = stream.id();
        let serial = state.serial;
        set.node.insert(descriptor, IdleConnection { serial, stream, read, since: now, is_tls });
    }

    /// Closes idle connections that timed out, that the backend has closed, or whose backend is not
    /// among `backends` any more.
    pub(crate) fn sweep(&self, backends: &[Backend]) {
        self.connector.sweep();
        let (now, timeout) = (now(), self.idle_timeout());
        let serials: HashSet<u64> = backends.iter().map(|backend| backend.state.serial).collect();
        for set in self.idle.iter().filter_map(OnceCell::get) {
            for _ in 0..set.count.load(Ordering::Relaxed) {
                let Some((descriptor, mut idle)) = set.node.get_any() else { break };
                let is_in_use = serials.contains(&idle.serial) && now.since(idle.since) < timeout;
                if is_in_use && is_open_and_silent(&mut idle.stream) {
                    set.node.insert(descriptor, idle);
                } else {
                    set.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The number of idle connections to a backend.
    pub(crate) fn idle_count(&self, id: BackendId) -> usize {
        let set = self.idle.get(usize::from(id.0)).and_then(OnceCell::get);
        set.map_or(0, |set| set.count.load(Ordering::Relaxed))
    }
}

/// Whether a read would block: the connection is open and nothing has arrived on it. After a
/// response's last read the runtime knows that the socket is drained, so this rarely costs a system
/// call.
fn is_open_and_silent(stream: &mut Stream) -> bool {
    let mut byte = [0_u8; 1];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut cx = Context::from_waker(Waker::noop());
    matches!(Pin::new(stream).poll_read(&mut cx, &mut buffer), Poll::Pending)
}
