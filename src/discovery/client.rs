//! The HTTP client of health checks and model discovery: one connection per request, small
//! responses only.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use http::header::{self, HeaderValue};
use penstock_core::fleet::Backend;
use pingora::ErrorType;
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::client::HttpSession;

use crate::upstream::connect::Connector;
use crate::upstream::engine_exchange::read_final_head;
use crate::upstream::failure::ConnectError;

/// The largest number of bytes that are read of a response.
const MAX_BODY_BYTES: usize = 8 << 20;

/// The reason why a check or a discovery failed.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The backend's name has not been resolved.
    #[error("the backend's name does not resolve")]
    NoAddress,
    /// No complete response in time.
    #[error("timed out")]
    TimedOut,
    /// No connection in time.
    #[error("no connection in time")]
    NotConnected,
    /// Nothing accepts connections.
    #[error("connection refused")]
    Refused,
    /// Connecting failed, or the connection broke.
    #[error("the connection failed: {0}")]
    Connection(&'static str),
    /// This machine has run out of a resource: nothing is known about the backend.
    #[error("{0}")]
    OutOf(&'static str),
    /// The response is larger than the limit.
    #[error("the response is larger than 8 MiB")]
    TooLarge,
    /// A response that is no success.
    #[error("{path} returned {status}")]
    Status { path: String, status: u16 },
    /// A response that is not the JSON expected.
    #[error("{path} did not return the JSON expected")]
    NotJson { path: String },
}

/// Sends small requests to backends.
pub struct DiscoveryClient(Connector);

impl Default for DiscoveryClient {
    fn default() -> Self {
        // No idle connections: a check must prove that connecting works.
        Self(Connector::new(Duration::ZERO))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SmallRequest<'a> {
    /// The path below the backend's base path.
    pub(super) path: &'a str,
    /// A JSON body; makes it a POST.
    pub(super) body: Option<&'a str>,
    /// The timeout for the whole exchange.
    pub(super) timeout: Duration,
}

impl DiscoveryClient {
    /// Sends a request; returns the status and the body of the response.
    pub(super) async fn send(
        &self,
        backend: &Backend,
        request: SmallRequest<'_>,
    ) -> Result<(u16, Bytes), DiscoveryError> {
        self.send_while(backend, request, || false).await
    }

    /// Sends a request whose response, once it is connected, is awaited beyond its timeout while
    /// `is_explained`.
    pub(super) async fn send_while(
        &self,
        backend: &Backend,
        request: SmallRequest<'_>,
        is_explained: impl Fn() -> bool,
    ) -> Result<(u16, Bytes), DiscoveryError> {
        let is_connected = AtomicBool::new(false);
        let mut exchange = pin!(self.exchange(backend, request, &is_connected));
        loop {
            if let Ok(ended) = tokio::time::timeout(request.timeout, exchange.as_mut()).await {
                return ended;
            }
            match is_connected.load(Ordering::Relaxed) {
                true if is_explained() => {}
                true => return Err(DiscoveryError::TimedOut),
                false => return Err(DiscoveryError::NotConnected),
            }
        }
    }

    async fn exchange(
        &self,
        backend: &Backend,
        request: SmallRequest<'_>,
        is_connected: &AtomicBool,
    ) -> Result<(u16, Bytes), DiscoveryError> {
        let stream = self.0.connect(backend, request.timeout).await.map_err(no_connection)?;
        is_connected.store(true, Ordering::Relaxed);
        let failed =
            |error: Box<pingora::Error>| DiscoveryError::Connection(name_of(error.etype()));
        let mut session = HttpSession::new(stream);
        let head = request_head(backend, request)?;
        session.write_request_header(Box::new(head)).await.map_err(failed)?;
        if let Some(body) = request.body {
            session.write_body(body.as_bytes()).await.map_err(failed)?;
        }
        session.finish_body().await.map_err(failed)?;
        let status = read_final_head(&mut session).await.map_err(failed)?;
        let body = read_body(&mut session).await?;
        Ok((status, body))
    }
}

fn no_connection(error: ConnectError) -> DiscoveryError {
    match error {
        ConnectError::NoAddress => DiscoveryError::NoAddress,
        ConnectError::TimedOut => DiscoveryError::NotConnected,
        ConnectError::OutOf(_) => DiscoveryError::OutOf(error.text()),
        ConnectError::Refused => DiscoveryError::Refused,
        ConnectError::Tls | ConnectError::Http2 | ConnectError::ClosedEarly => {
            DiscoveryError::Connection(error.text())
        }
    }
}

fn request_head(
    backend: &Backend,
    request: SmallRequest<'_>,
) -> Result<RequestHeader, DiscoveryError> {
    let build = || -> pingora::Result<RequestHeader> {
        let method = if request.body.is_some() { Method::POST } else { Method::GET };
        let target = format!("{}{}", backend.config.url.base_path, request.path);
        let mut head = RequestHeader::build(method, target.as_bytes(), Some(6))?;
        head.insert_header(header::HOST, &*backend.authority)?;
        head.insert_header(header::CONNECTION, HeaderValue::from_static("close"))?;
        head.insert_header(header::USER_AGENT, HeaderValue::from_static("penstock-probe"))?;
        // Pages are read as they come: there is no decoder here.
        head.insert_header(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))?;
        let key_headers = backend.config.engine.row().key_headers;
        if let Some(headers) = key_headers {
            let (name, value) = headers.version;
            head.insert_header(name, value)?;
        }
        match (&backend.config.api_key, key_headers) {
            (Some(key), Some(headers)) => {
                head.insert_header(headers.key, key.reveal())?;
            }
            (Some(key), None) => {
                head.insert_header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()))?;
            }
            (None, _) => {}
        }
        if let Some(body) = request.body {
            head.insert_header(header::CONTENT_TYPE, "application/json")?;
            head.insert_header(header::CONTENT_LENGTH, body.len())?;
        }
        Ok(head)
    };
    build().map_err(|_bad_head| DiscoveryError::Connection("the request cannot be built"))
}

async fn read_body(session: &mut HttpSession) -> Result<Bytes, DiscoveryError> {
    let mut body = BytesMut::new();
    loop {
        match session.read_body_bytes().await {
            Ok(Some(part)) => body.extend_from_slice(&part),
            Ok(None) => return Ok(body.freeze()),
            Err(_broken) => return Err(DiscoveryError::Connection("the response broke off")),
        }
        if body.len() > MAX_BODY_BYTES {
            return Err(DiscoveryError::TooLarge);
        }
    }
}

/// Returns the name of a Pingora error, without the addresses in its text.
fn name_of(error: &ErrorType) -> &'static str {
    match error {
        ErrorType::ReadTimedout => "timed out",
        ErrorType::ConnectionClosed => "the backend closed the connection",
        ErrorType::InvalidHTTPHeader => "the response is not HTTP",
        _ => "connect or read error",
    }
}
