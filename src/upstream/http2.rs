//! Connections to backends that speak HTTP/2, each shared by many requests at a time.

pub(crate) mod stream;
pub(crate) mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use parking_lot::Mutex;
use penstock_api::units::to_micros;
use penstock_config::BackendConfig;
use penstock_core::fleet::Backend;
use pingora::protocols::Stream;

use super::failure::ConnectError;
use stream::Http2BackendStream;
use usage::{ConnectionUsage, StreamPermit};

/// The most streams on one connection, whatever the backend allows.
const MAX_STREAMS: usize = 100;
/// The bytes of one response that a backend may send before a slow client has read them. The
/// connection's window covers all streams together, so an unread stream never blocks another.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const MAX_HEAD_BYTES: u32 = 64 * 1024;

/// Open HTTP/2 connections of all backends.
pub(crate) struct Http2Connections {
    open: Mutex<Vec<Http2Connection>>,
    idle_micros: AtomicU64,
}

struct Http2Connection {
    /// The backend's settings when the connection was opened. A reload that changes them creates
    /// another `Arc`, and new requests open new connections.
    config: Arc<BackendConfig>,
    /// The epoch of the backend's addresses when the connection was opened.
    epoch: u32,
    requests: SendRequest<Bytes>,
    usage: Arc<ConnectionUsage>,
}

impl Http2Connection {
    /// Returns whether new requests to the backend may use the connection.
    fn is_of(&self, backend: &Backend) -> bool {
        Arc::ptr_eq(&self.config, &backend.config) && self.epoch == backend.state.addresses.epoch()
    }

    /// Opens a stream for one more request, unless the connection is full.
    fn open_stream(&self, backend: &Backend) -> Option<Stream> {
        let limit = self.requests.current_max_send_streams().min(MAX_STREAMS);
        let permit: StreamPermit = self.usage.try_open(limit)?;
        let is_https = backend.config.url.https;
        Some(Box::new(Http2BackendStream::new(self.requests.clone(), permit, is_https)))
    }
}

impl Http2Connections {
    pub(crate) fn new(idle_timeout: Duration) -> Self {
        Self { open: Mutex::default(), idle_micros: AtomicU64::new(to_micros(idle_timeout)) }
    }

    /// Sets the time after which idle connections are closed.
    pub(crate) fn set_idle_timeout(&self, idle_timeout: Duration) {
        self.idle_micros.store(to_micros(idle_timeout), Ordering::Relaxed);
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_micros(self.idle_micros.load(Ordering::Relaxed))
    }

    /// Opens a stream on an open connection to the backend, if one has room.
    pub(crate) fn open_stream(&self, backend: &Backend) -> Option<Stream> {
        let mut open = self.open.lock();
        open.retain(|connection| !connection.usage.is_over(self.idle_timeout()));
        open.iter()
            .filter(|connection| connection.is_of(backend))
            .find_map(|connection| connection.open_stream(backend))
    }

    /// Opens a connection over `transport`, which later requests share, and returns its first
    /// stream. `epoch` is the epoch of the backend's addresses when the transport was opened.
    pub(crate) async fn start(
        &self,
        backend: &Backend,
        epoch: u32,
        transport: Stream,
    ) -> Result<Stream, ConnectError> {
        // Outside the lock, which all backends share: a slow handshake delays no other request.
        let handshake = Builder::new()
            // A pushed response would have no client.
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD_BYTES)
            .handshake(transport)
            .await;
        let (requests, driver) = handshake.map_err(|_not_http2| ConnectError::Http2)?;
        let usage = Arc::new(ConnectionUsage::new());
        let driven = Arc::clone(&usage);
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "an HTTP/2 connection to a backend ended");
            }
            driven.close();
        });
        let config = Arc::clone(&backend.config);
        let connection = Http2Connection { config, epoch, requests, usage };
        let stream = connection.open_stream(backend).ok_or(ConnectError::Http2)?;
        self.open.lock().push(connection);
        Ok(stream)
    }

    /// Closes idle connections: with the last sender gone, the driver task ends.
    pub(crate) fn sweep(&self) {
        self.open.lock().retain(|connection| !connection.usage.is_over(self.idle_timeout()));
    }
}
