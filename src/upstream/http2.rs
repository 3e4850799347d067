//! Connections to backends that speak HTTP/2, each shared by many requests at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use parking_lot::Mutex;
use pingora::protocols::Stream;

use super::connect::DialError;
use super::http2_stream::Http2Stream;
use crate::clock::now;
use crate::config::BackendConfig;
use crate::fleet::Backend;
use crate::units::{Timestamp, to_micros};

/// The most requests on one connection, whatever the backend allows.
const MOST_STREAMS: usize = 100;
/// What a backend may send of one answer before a slow client has read it. All streams together
/// have room for as much, so one that is not read holds no other up.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const HEAD_LIMIT: u32 = 64 * 1024;

/// Open connections, by backend.
pub(crate) struct Links {
    open: Mutex<Vec<Link>>,
    idle_micros: AtomicU64,
}

struct Link {
    /// Whose it is, and with which settings it was made: a reload makes new ones.
    config: Arc<BackendConfig>,
    requests: SendRequest<Bytes>,
    use_: Arc<Use>,
}

/// How a connection is used.
#[derive(Debug)]
pub(crate) struct Use {
    streams: AtomicUsize,
    is_closed: AtomicBool,
    last: Mutex<Timestamp>,
}

/// One request on a connection, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Place(Arc<Use>);

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.last.lock() = now();
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Use {
    fn is_over(&self, idle_timeout: Duration) -> bool {
        self.is_closed.load(Ordering::Acquire)
            || (self.streams.load(Ordering::Acquire) == 0
                && now().since(*self.last.lock()) >= idle_timeout)
    }
}

impl Link {
    /// A place for one more request, where there is one.
    fn place(&self) -> Option<Place> {
        let most = self.requests.current_max_send_streams().min(MOST_STREAMS);
        let taken = self.use_.streams.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |open| {
            (open < most).then_some(open + 1)
        });
        taken.is_ok().then(|| Place(Arc::clone(&self.use_)))
    }
}

impl Links {
    pub(crate) fn new(idle_timeout: Duration) -> Self {
        Self { open: Mutex::default(), idle_micros: AtomicU64::new(to_micros(idle_timeout)) }
    }

    pub(crate) fn follow(&self, idle_timeout: Duration) {
        self.idle_micros.store(to_micros(idle_timeout), Ordering::Relaxed);
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_micros(self.idle_micros.load(Ordering::Relaxed))
    }

    /// A stream on a connection that is open already.
    pub(crate) fn take(&self, backend: &Backend) -> Option<Stream> {
        let mut open = self.open.lock();
        open.retain(|link| !link.use_.is_over(self.idle_timeout()));
        let mut own = open.iter().filter(|link| Arc::ptr_eq(&link.config, &backend.config));
        own.find_map(|link| {
            let place = link.place()?;
            Some(stream(&link.requests, place, backend))
        })
    }

    /// A stream on `wire`, which others may share from now on.
    pub(crate) async fn add(&self, backend: &Backend, wire: Stream) -> Result<Stream, DialError> {
        let greeted = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD_LIMIT)
            .handshake(wire)
            .await;
        let (requests, connection) = greeted.map_err(|_not_http2| DialError::Http2)?;
        let use_ = Arc::new(Use {
            streams: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            last: Mutex::new(now()),
        });
        let ended = Arc::clone(&use_);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a backend over HTTP/2 ended");
            }
            ended.is_closed.store(true, Ordering::Release);
        });
        let link = Link { config: Arc::clone(&backend.config), requests, use_ };
        let place = link.place().ok_or(DialError::Http2)?;
        let stream = stream(&link.requests, place, backend);
        self.open.lock().push(link);
        Ok(stream)
    }

    /// Closes what has been idle too long: nobody sends on it any more, so its task ends.
    pub(crate) fn sweep(&self) {
        self.open.lock().retain(|link| !link.use_.is_over(self.idle_timeout()));
    }
}

fn stream(requests: &SendRequest<Bytes>, place: Place, backend: &Backend) -> Stream {
    Box::new(Http2Stream::new(requests.clone(), place, backend.config.url.https))
}
