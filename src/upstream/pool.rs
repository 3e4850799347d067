//! Idle connections to backends, kept between requests in Pingora's lock-free pool nodes.
//!
//! Pingora's own pool spawns a task per released connection that waits for the backend to close it:
//! a spawn and a wake-up for every request. Here nothing watches an idle connection; it is polled
//! once when it is taken, and about once per second by [`ConnectionPool::sweep`].
//!
//! Why that is sound: the kernel reports a close immediately before the request is written
//! ([`Connection::is_silent`]). A close during the request is rare because connections are kept for
//! a shorter time than the backend keeps them: four fifths of its `Keep-Alive` header, and never
//! more than `limits.idle_timeout` (uvicorn closes after 5 s and says nothing). For a close that
//! crosses the request, `retry_safety` decides whether the request was read. Two things would break
//! it: keeping a connection before its response has been read to the end (the next request would
//! read the rest of this response), and keeping one with bytes in `read`.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use ahash::HashSet;
use bytes::BytesMut;
use once_cell::sync::OnceCell;
use penstock_api::units::{Timestamp, to_micros};
use penstock_clock::now;
use penstock_config::{LimitsConfig, MAX_BACKENDS};
use penstock_core::fleet::{Backend, BackendId, BackendState};
use pingora::protocols::Stream;
use pingora_pool::PoolNode;
use tokio::io::{AsyncRead, ReadBuf};

use super::connect::Connector;
use super::connection::{Connection, READ_CHUNK};
use super::failure::ConnectError;
use super::shortage::Shortage;

/// The pause before the next attempt when this machine has run out of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

/// The share of a backend's own idle timeout in which a connection is reused. The backend counts
/// from the end of the response, and a request has to arrive before it closes.
const KEEP_ALIVE_SHARE: f64 = 0.8;

struct IdleConnection {
    /// The serial number of the backend: a `BackendId` is assigned again after its backend is
    /// removed.
    serial: u64,
    stream: Stream,
    read: BytesMut,
    since: Timestamp,
    /// The time for which the backend keeps the connection, if it announces one.
    keep_alive: Option<Duration>,
    is_tls: bool,
    request_end: u64,
    /// The epoch of the backend's addresses when the connection was opened.
    epoch: u32,
}

impl IdleConnection {
    /// Returns whether the connection is open and within its idle timeouts at `now`.
    fn is_usable(&mut self, now: Timestamp, idle_timeout: Duration) -> bool {
        let promised = self.keep_alive.map_or(idle_timeout, |time| time.mul_f64(KEEP_ALIVE_SHARE));
        now.since(self.since) < promised.min(idle_timeout) && is_open_and_silent(&mut self.stream)
    }
}

/// The idle connections under one `BackendId`.
struct IdleSet {
    node: PoolNode<IdleConnection>,
    count: AtomicUsize,
}

impl IdleSet {
    /// Takes a connection that is settled and usable. Connections that are not settled stay,
    /// unusable ones are closed.
    fn take(
        &self,
        is_settled: impl Fn(&IdleConnection) -> bool,
        is_usable: impl Fn(&mut IdleConnection) -> bool,
    ) -> Option<IdleConnection> {
        // Put back only at the end: the node would return the same connection again.
        let mut settling = Vec::new();
        let mut found = None;
        while found.is_none()
            && let Some((descriptor, mut idle)) = self.node.get_any()
        {
            if !is_settled(&idle) {
                settling.push((descriptor, idle));
                continue;
            }
            self.count.fetch_sub(1, Ordering::Relaxed);
            found = is_usable(&mut idle).then_some(idle);
        }
        settling.into_iter().for_each(|(descriptor, idle)| self.node.insert(descriptor, idle));
        found
    }
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
            // A cell per possible id: a look-up takes no lock, and an unused id costs no node.
            idle: (0..MAX_BACKENDS).map(|_| OnceCell::new()).collect(),
            idle_micros: AtomicU64::new(0),
            idle_limit: AtomicUsize::new(0),
        };
        pool.set_limits(limits);
        pool
    }

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

    /// Takes an idle connection that is still open. One in plain text stays idle for `settle` after
    /// its last response: some engines close a connection after a response without announcing it,
    /// and a request sent at once is lost.
    pub(crate) fn take_idle(
        &self,
        state: &BackendState,
        now: Timestamp,
        settle: Duration,
    ) -> Option<Connection> {
        let set = self.idle_set(state.id)?;
        let timeout = self.idle_timeout();
        let is_settled = |idle: &IdleConnection| idle.is_tls || now.since(idle.since) >= settle;
        let idle = set.take(is_settled, |idle| {
            let is_current = idle.epoch == state.addresses.epoch();
            idle.serial == state.serial && is_current && idle.is_usable(now, timeout)
        })?;
        let IdleConnection { stream, read, is_tls, request_end, epoch, .. } = idle;
        Some(Connection { stream, read, is_reused: true, is_tls, epoch, request_end })
    }

    /// Opens a connection. If descriptors or memory have run out, closes the idle connections to
    /// all backends, then waits and tries again.
    pub(crate) async fn connect(
        &self,
        backend: &Backend,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let until = now().after(timeout);
        // Read before the connect: if the addresses change meanwhile, it must count as old.
        let epoch = backend.state.addresses.epoch();
        let stream = loop {
            match self.connector.connect(backend, until.since(now())).await {
                Ok(stream) => break stream,
                // The next free descriptor goes to this connection: the accept loop pauses for a
                // second when it finds none.
                Err(ConnectError::OutOf(Shortage::Descriptors | Shortage::Memory))
                    if now().after(SHORTAGE_PAUSE) < until =>
                {
                    self.close_idle();
                    tokio::time::sleep(SHORTAGE_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        let is_tls = backend.config.url.https;
        let read = BytesMut::with_capacity(READ_CHUNK);
        Ok(Connection { stream, read, is_reused: false, is_tls, epoch, request_end: 0 })
    }

    /// Keeps a connection whose response has been read to its end, no longer than the backend
    /// promised with `keep_alive`. Closes it if enough are idle.
    pub(crate) fn keep(
        &self,
        state: &BackendState,
        connection: Connection,
        keep_alive: Option<Duration>,
    ) {
        let Some(set) = self.idle_set(state.id) else { return };
        if !connection.read.is_empty() {
            // Bytes after the end of a response belong to no request: the connection is closed.
            return;
        }
        // llama.cpp occupies an HTTP thread with every connection, idle or not.
        let affordable =
            state.affordable_connections().and_then(|count| usize::try_from(count).ok());
        let limit = self.idle_limit.load(Ordering::Relaxed).min(affordable.unwrap_or(usize::MAX));
        let relaxed = Ordering::Relaxed;
        // Counted before it is inserted: `take` may find it at once, and must not count below zero.
        let counted =
            set.count.fetch_update(relaxed, relaxed, |count| (count < limit).then_some(count + 1));
        if counted.is_err() {
            return;
        }
        let Connection { stream, read, is_tls, request_end, epoch, .. } = connection;
        let descriptor = stream.id();
        let (serial, since) = (state.serial, now());
        let idle =
            IdleConnection { serial, stream, read, since, keep_alive, is_tls, request_end, epoch };
        set.node.insert(descriptor, idle);
    }

    /// Closes the idle connections that timed out or were closed by their backend, and those of
    /// backends no longer in `backends`.
    pub(crate) fn sweep(&self, backends: &[Backend]) {
        self.connector.sweep();
        let (now, timeout) = (now(), self.idle_timeout());
        let serials: HashSet<u64> = backends.iter().map(|backend| backend.state.serial).collect();
        for set in self.idle.iter().filter_map(OnceCell::get) {
            // Bounded by the count: connections that stay are inserted again and would come up.
            for _ in 0..set.count.load(Ordering::Relaxed) {
                let Some((descriptor, mut idle)) = set.node.get_any() else { break };
                if serials.contains(&idle.serial) && idle.is_usable(now, timeout) {
                    set.node.insert(descriptor, idle);
                } else {
                    set.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn close_idle(&self) {
        for set in self.idle.iter().filter_map(OnceCell::get) {
            while let Some(_closed) = set.node.get_any() {
                set.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The number of idle connections to a backend.
    pub(crate) fn idle_count(&self, id: BackendId) -> usize {
        let set = self.idle.get(usize::from(id.0)).and_then(OnceCell::get);
        set.map_or(0, |set| set.count.load(Ordering::Relaxed))
    }
}

/// Returns whether a read would block: the connection is open and nothing has arrived, as far as
/// the runtime was notified. After the last read of a response the runtime knows that the socket is
/// drained, so this rarely costs a system call.
fn is_open_and_silent(stream: &mut Stream) -> bool {
    let mut byte = [0_u8; 1];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut cx, &mut buffer).is_pending()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::net::TcpListener;

    use super::*;
    use penstock_config::{Config, Environment};
    use penstock_core::fleet::Fleet;

    #[tokio::test]
    async fn connection_to_an_old_address_or_in_use_until_now_is_not_reused() {
        let yaml = "backends: [{ url: 'http://engines.test:8000', engine: vllm }]";
        let config = Config::parse(yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        let (old, new) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (old, new) = (old.await.unwrap(), new.await.unwrap());
        let addresses = &backend.state.addresses;
        addresses.publish(vec![old.local_addr().unwrap()]);
        let pool = ConnectionPool::new(&config.limits);
        let connect = || async { pool.connect(&backend, Duration::from_secs(2)).await.unwrap() };
        pool.keep(&backend.state, connect().await, None);
        let reused =
            pool.take_idle(&backend.state, now(), Duration::ZERO).expect("it is open and idle");
        // In use while the address changes, and while it is idle.
        let in_use = connect().await;
        pool.keep(&backend.state, reused, None);
        addresses.publish(vec![new.local_addr().unwrap()]);
        pool.keep(&backend.state, in_use, None);
        assert!(
            pool.take_idle(&backend.state, now(), Duration::ZERO).is_none(),
            "both lead to the old address"
        );
        pool.keep(&backend.state, connect().await, None);
        assert!(pool.take_idle(&backend.state, now(), Duration::ZERO).is_some());
        assert_eq!(pool.idle_count(backend.state.id), 0);
        // A connection whose response has just ended may be about to close.
        let settle = Duration::from_secs(1);
        pool.keep(&backend.state, connect().await, None);
        assert!(pool.take_idle(&backend.state, now(), settle).is_none());
        assert_eq!(pool.idle_count(backend.state.id), 1, "it stays for later");
        assert!(pool.take_idle(&backend.state, now().after(settle), settle).is_some());
        assert_eq!(pool.idle_count(backend.state.id), 0);
    }
}
