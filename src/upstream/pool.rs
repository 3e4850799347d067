//! Connections to backends, kept between requests in Pingora's lock-free pool nodes, without the watcher task its own pool spawns per release.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ahash::HashSet;
use bytes::BytesMut;
use once_cell::sync::OnceCell;
use pingora::protocols::Stream;
use pingora::protocols::l4::ext::get_tcp_info;
use pingora_pool::PoolNode;
use tokio::io::{AsyncRead, ReadBuf};

use super::connect::DialError;
use super::connect::Dialer;
use super::http2_stream::Http2Stream;
use crate::clock::now;
use crate::config::LimitsConfig;
use crate::fleet::{Backend, BackendId, BackendState, MAX_BACKENDS};
use crate::units::{Timestamp, to_micros};

/// The first read of an answer; later ones grow with what the engine sends.
pub(crate) const READ_CHUNK: usize = 4 * 1024;

/// A connection to a backend, in the hands of one attempt.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Answer bytes read and not yet relayed.
    pub(crate) read: BytesMut,
    /// Whether it has carried a request before.
    pub(crate) is_reused: bool,
    is_tls: bool,
}

impl Connection {
    /// Whether the kernel says that some of the `sent` bytes never reached the other side, so the
    /// engine cannot have read the whole request. Only meaningful on a fresh connection.
    pub(crate) fn is_unread(&self, sent: usize) -> bool {
        if let Some(stream) = self.stream.as_any().downcast_ref::<Http2Stream>() {
            return stream.was_refused();
        }
        // Under TLS the bytes on the wire are not the bytes of the request.
        !self.is_tls
            && !self.is_reused
            && get_tcp_info(self.stream.id()).is_ok_and(|info| info.tcpi_bytes_acked < sent as u64)
    }
}

struct Idle {
    /// Of the backend it leads to: numbers are given again, and a shelf outlives its backend.
    serial: u64,
    stream: Stream,
    read: BytesMut,
    since: Timestamp,
    is_tls: bool,
}

struct Shelf {
    node: PoolNode<Idle>,
    count: AtomicUsize,
}

/// Every idle connection, by backend.
pub(crate) struct Upstreams {
    dialer: Dialer,
    shelves: Box<[OnceCell<Shelf>]>,
    idle_micros: AtomicU64,
    idle_limit: AtomicUsize,
}

impl Upstreams {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        let upstreams = Self {
            dialer: Dialer::new(limits.idle_timeout),
            shelves: (0..MAX_BACKENDS).map(|_| OnceCell::new()).collect(),
            idle_micros: AtomicU64::new(0),
            idle_limit: AtomicUsize::new(0),
        };
        upstreams.follow(limits);
        upstreams
    }

    /// Keeps connections by these limits from now on.
    pub(crate) fn follow(&self, limits: &LimitsConfig) {
        self.dialer.follow(limits.idle_timeout);
        self.idle_micros.store(to_micros(limits.idle_timeout), Ordering::Relaxed);
        self.idle_limit.store(limits.idle_connections, Ordering::Relaxed);
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_micros(self.idle_micros.load(Ordering::Relaxed))
    }

    fn shelf(&self, id: BackendId) -> Option<&Shelf> {
        let cell = self.shelves.get(usize::from(id.0))?;
        Some(cell.get_or_init(|| Shelf { node: PoolNode::new(), count: AtomicUsize::new(0) }))
    }

    /// An idle connection that is still open, or none.
    pub(crate) fn take_idle(&self, state: &BackendState, now: Timestamp) -> Option<Connection> {
        let shelf = self.shelf(state.id)?;
        let timeout = self.idle_timeout();
        while let Some((_, mut idle)) = shelf.node.get_any() {
            shelf.count.fetch_sub(1, Ordering::Relaxed);
            let is_ours = idle.serial == state.serial && now.since(idle.since) < timeout;
            if is_ours && is_quiet(&mut idle.stream) {
                let Idle { stream, read, is_tls, .. } = idle;
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
    ) -> Result<Connection, DialError> {
        let stream = self.dialer.connect(backend, timeout).await?;
        let is_tls = backend.config.url.https;
        let read = BytesMut::with_capacity(READ_CHUNK);
        Ok(Connection { stream, read, is_reused: false, is_tls })
    }

    /// Keeps a connection for the next request. The answer on it has been read to its end.
    pub(crate) fn keep(&self, state: &BackendState, connection: Connection, now: Timestamp) {
        let Some(shelf) = self.shelf(state.id) else { return };
        let limit = self.idle_limit.load(Ordering::Relaxed);
        if !connection.read.is_empty() || shelf.count.load(Ordering::Relaxed) >= limit {
            // Bytes behind an answer belong to nobody: the connection goes with them.
            return;
        }
        shelf.count.fetch_add(1, Ordering::Relaxed);
        let Connection { stream, read, is_tls, .. } = connection;
        let descriptor = stream.id();
        let serial = state.serial;
        shelf.node.insert(descriptor, Idle { serial, stream, read, since: now, is_tls });
    }

    /// Closes idle connections whose time is up, whose backend has closed them, or whose backend is
    /// not among `backends` any more.
    pub(crate) fn sweep(&self, backends: &[Backend]) {
        self.dialer.sweep();
        let (now, timeout) = (now(), self.idle_timeout());
        let serials: HashSet<u64> = backends.iter().map(|backend| backend.state.serial).collect();
        for shelf in self.shelves.iter().filter_map(OnceCell::get) {
            for _ in 0..shelf.count.load(Ordering::Relaxed) {
                let Some((descriptor, mut idle)) = shelf.node.get_any() else { break };
                let is_in_use = serials.contains(&idle.serial) && now.since(idle.since) < timeout;
                if is_in_use && is_quiet(&mut idle.stream) {
                    shelf.node.insert(descriptor, idle);
                } else {
                    shelf.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Idle connections kept for a backend.
    pub(crate) fn idle_count(&self, id: BackendId) -> usize {
        let shelf = self.shelves.get(usize::from(id.0)).and_then(OnceCell::get);
        shelf.map_or(0, |shelf| shelf.count.load(Ordering::Relaxed))
    }
}

/// Open and silent: a read would wait. After an answer's last read the runtime knows the socket is
/// drained, so this rarely costs a system call.
fn is_quiet(stream: &mut Stream) -> bool {
    let mut byte = [0_u8; 1];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut cx = Context::from_waker(Waker::noop());
    matches!(Pin::new(stream).poll_read(&mut cx, &mut buffer), Poll::Pending)
}
