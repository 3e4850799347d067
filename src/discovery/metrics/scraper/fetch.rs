//! Fetches pages from a backend over a kept connection.

use std::time::Duration;

use http::Method;
use http::header::{self, HeaderValue};
use penstock_api::units::{ByteSize, Timestamp};
use penstock_clock::now;
use penstock_config::{BackendUrl, TelemetryConfig};
use penstock_core::fleet::Backend;
use pingora::http::RequestHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::v1::client::HttpSession;

use crate::upstream::connect::Connector;
use crate::upstream::engine_exchange::read_final_head;

/// The largest metrics page that is read.
const MAX_PAGE: ByteSize = ByteSize::mib(4);

/// The time at which a request was sent, and our requests in flight then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetched {
    pub(super) at: Timestamp,
    pub(super) in_flight: u32,
}

pub(super) struct Fetcher {
    backend: Backend,
    timeout: Duration,
    /// An idle connection, and the epoch of the backend's addresses when it was opened.
    kept: Option<(Stream, u32)>,
    /// The last page; its buffer is reused.
    body: Vec<u8>,
}

impl Fetcher {
    pub(super) fn new(backend: Backend, config: &TelemetryConfig) -> Self {
        Self { backend, timeout: config.timeout, kept: None, body: Vec::new() }
    }

    /// Returns the last page, possibly incomplete.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(super) async fn fetch(
        &mut self,
        connector: &Connector,
        path: &str,
    ) -> Result<Fetched, ScrapeError> {
        let limit = self.timeout;
        self.body.clear();
        let getting = Box::pin(self.get(connector, path));
        let got = tokio::time::timeout(limit, getting).await;
        got.unwrap_or(Err(ScrapeError::TimedOut(limit)))
    }

    async fn get(&mut self, connector: &Connector, path: &str) -> Result<Fetched, ScrapeError> {
        // After a change of addresses, the kept connection may lead to another engine.
        let epoch = self.backend.state.addresses.epoch();
        if let Some((stream, _)) = self.kept.take().filter(|(_, opened)| *opened == epoch) {
            match self.exchange(stream, epoch, path).await {
                // The engine may have closed it in the meantime.
                Err(ScrapeError::Broken(_)) if self.body.is_empty() => {}
                done => return done,
            }
        }
        let stream = match self.backend.config.telemetry.port {
            Some(port) => connector.connect_plain(&self.backend, port, self.timeout).await,
            None => connector.connect(&self.backend, self.timeout).await,
        };
        let stream = stream.map_err(|error| ScrapeError::NoConnection(error.text()))?;
        self.exchange(stream, epoch, path).await
    }

    async fn exchange(
        &mut self,
        stream: Stream,
        epoch: u32,
        path: &str,
    ) -> Result<Fetched, ScrapeError> {
        let broken =
            |error: Box<pingora::Error>| ScrapeError::Broken(error.etype().as_str().into());
        let head = self.head(path).map_err(broken)?;
        let mut session = HttpSession::new(stream);
        // Counted before the page is requested: it cannot contain requests that are sent later.
        let (at, in_flight) = (now(), self.backend.state.load.in_flight());
        session.write_request_header(Box::new(head)).await.map_err(broken)?;
        let status = read_final_head(&mut session).await.map_err(broken)?;
        while let Some(part) = session.read_body_ref().await.map_err(broken)? {
            self.body.extend_from_slice(part);
            if self.body.len() > MAX_PAGE.to_usize() {
                return Err(ScrapeError::TooLarge(MAX_PAGE));
            }
        }
        session.respect_keepalive();
        // Over HTTP/2 the stream carries one request, and the connector keeps the connection below
        // it.
        if !self.backend.config.http2 || self.backend.config.telemetry.port.is_some() {
            self.kept = session.reuse().await.map(|stream| (stream, epoch));
        }
        match status {
            200 => Ok(Fetched { at, in_flight }),
            _ => Err(ScrapeError::Status { path: path.to_owned(), status }),
        }
    }

    pub(super) fn head(&self, path: &str) -> pingora::Result<RequestHeader> {
        let config = &self.backend.config;
        let (target, authority) = match config.telemetry.port {
            None => (format!("{}{path}", config.url.base_path), self.backend.authority.to_string()),
            Some(port) => {
                let url = BackendUrl { port, https: false, ..config.url.clone() };
                (path.to_owned(), url.host_field())
            }
        };
        let mut head = RequestHeader::build(Method::GET, target.as_bytes(), Some(4))?;
        head.insert_header(header::HOST, authority)?;
        head.insert_header(header::USER_AGENT, HeaderValue::from_static("penstock-probe"))?;
        head.insert_header(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))?;
        head.insert_header(header::ACCEPT, HeaderValue::from_static("text/plain;version=0.0.4"))?;
        // A key belongs to the engine's own port, not to whatever listens on another.
        if let (Some(key), None) = (&config.api_key, config.telemetry.port) {
            head.insert_header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()))?;
        }
        Ok(head)
    }
}

/// The reason why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScrapeError {
    #[error("no connection: {0}")]
    NoConnection(&'static str),
    /// No complete response in time.
    #[error("no response within {0:?}")]
    TimedOut(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The response is larger than the limit.
    #[error("the response is larger than {0}")]
    TooLarge(ByteSize),
    /// A response that is no success.
    #[error("{path} returned {status}")]
    Status { path: String, status: u16 },
    /// A page without engine metrics.
    #[error("{path} has no metrics of an engine's load")]
    NoLoad { path: String },
}
