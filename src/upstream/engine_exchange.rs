//! One exchange that penstock itself starts with a backend: a connection for it alone, the body
//! sent in parts, the response read in parts, each within a timeout. Dropping it closes the
//! connection, which shows the engine that no client waits any more.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method};
use penstock_config::{AuthorizationPolicy, BackendConfig};
use penstock_core::fleet::Backend;
use pingora::ErrorType;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::v1::client::HttpSession;

use crate::upstream::connect::Connector;
use crate::upstream::failure::ConnectError;
use crate::upstream::headers::REQUEST_ID;
use crate::upstream::own_key::OwnKey;
use crate::wire::body_budget::BodyClaim;

/// The maximum number of bytes in a line of progress, or in an error.
const MAX_LINE_BYTES: usize = 256 * 1024;

/// The reason why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeFailure {
    #[error("{}", .0.text())]
    NoConnection(ConnectError),
    #[error("it made no progress in time (ollama.progress_timeout)")]
    TimedOut,
    #[error("the connection broke")]
    Broken,
    #[error("its response is not HTTP")]
    NotHttp,
    #[error("it sent a line longer than 256 KiB")]
    LineTooLong,
    #[error("its response is too large (limits.converted_response)")]
    TooLarge,
    #[error("too many responses are held at once (limits.buffered_responses)")]
    MemoryFull,
}

/// A request to an engine.
#[derive(Debug, Clone)]
pub(crate) struct EngineRequest {
    pub(crate) method: Method,
    /// The path below the backend's base path.
    pub(crate) path: String,
    /// The length of the body; `None` if it is not known and the body is sent in chunks.
    pub(crate) length: Option<usize>,
    /// The client's credential, for backends that receive it.
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) request_id: HeaderValue,
    /// The longest wait for progress.
    pub(crate) timeout: Duration,
}

impl EngineRequest {
    /// A request on behalf of a client with `headers`.
    pub(crate) fn new(
        method: Method,
        path: String,
        headers: &HeaderMap,
        request_id: &HeaderValue,
        timeout: Duration,
    ) -> Self {
        let authorization = headers.get(header::AUTHORIZATION).cloned();
        let request_id = request_id.clone();
        Self { method, path, length: Some(0), authorization, request_id, timeout }
    }

    fn head(&self, backend: &Backend) -> pingora::Result<RequestHeader> {
        let target = format!("{}{}", backend.config.url.base_path, self.path);
        let mut head = RequestHeader::build(self.method.clone(), target.as_bytes(), Some(8))?;
        head.insert_header(header::HOST, &*backend.authority)?;
        // The connection serves one exchange: its end shows the engine that no client waits.
        head.insert_header(header::CONNECTION, "close")?;
        head.insert_header(header::USER_AGENT, "penstock")?;
        // The response is parsed here, where nothing decodes it.
        head.insert_header(header::ACCEPT_ENCODING, "identity")?;
        head.insert_header(REQUEST_ID, self.request_id.clone())?;
        match (backend.config.authorization, &backend.config.api_key, &self.authorization) {
            (AuthorizationPolicy::Replace, Some(key), _) => {
                head.insert_header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()))?;
            }
            (AuthorizationPolicy::Pass, _, Some(given)) => {
                head.insert_header(header::AUTHORIZATION, given.clone())?;
            }
            _ => {}
        }
        match self.length {
            Some(0) => {}
            Some(length) => {
                head.insert_header(header::CONTENT_TYPE, "application/json")?;
                head.insert_header(header::CONTENT_LENGTH, length)?;
            }
            None => {
                head.insert_header(header::CONTENT_TYPE, "application/octet-stream")?;
                head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
            }
        }
        Ok(head)
    }
}

pub(crate) struct EngineExchange {
    session: HttpSession,
    timeout: Duration,
    read: BytesMut,
    /// The configuration of the backend, whose key its responses must not show.
    config: Arc<BackendConfig>,
}

impl EngineExchange {
    /// Connects and sends the head.
    pub(crate) async fn begin(
        connector: &Connector,
        backend: &Backend,
        request: &EngineRequest,
        connect_timeout: Duration,
    ) -> Result<Self, ExchangeFailure> {
        let stream = connector.connect(backend, connect_timeout).await;
        let stream = stream.map_err(ExchangeFailure::NoConnection)?;
        let head = request.head(backend).map_err(|_bad_head| ExchangeFailure::Broken)?;
        let timeout = request.timeout;
        let mut session = HttpSession::new(stream);
        in_time(timeout, session.write_request_header(Box::new(head))).await?;
        let config = Arc::clone(&backend.config);
        Ok(Self { session, timeout, read: BytesMut::new(), config })
    }

    /// Sends a part of the body.
    pub(crate) async fn send(&mut self, part: &[u8]) -> Result<(), ExchangeFailure> {
        in_time(self.timeout, self.session.write_body(part)).await.map(|_written| ())
    }

    /// Ends the body; returns the status of the response.
    pub(crate) async fn finish(&mut self) -> Result<u16, ExchangeFailure> {
        in_time(self.timeout, self.session.finish_body()).await?;
        in_time(self.timeout, read_final_head(&mut self.session)).await
    }

    /// The head of the response, once [`Self::finish`] has read it.
    pub(crate) fn head(&self) -> Option<&ResponseHeader> {
        self.session.resp_header()
    }

    /// Reads the whole body of the response.
    pub(crate) async fn read_all(
        &mut self,
        limit: usize,
        claim: &mut BodyClaim,
    ) -> Result<Bytes, ExchangeFailure> {
        while let Some(part) = in_time(self.timeout, self.session.read_body_bytes()).await? {
            self.read.extend_from_slice(&part);
            if self.read.len() > limit {
                return Err(ExchangeFailure::TooLarge);
            }
            if !claim.grow_to(self.read.len()) {
                return Err(ExchangeFailure::MemoryFull);
            }
        }
        Ok(self.take_read(self.read.len()))
    }

    /// Takes `length` bytes that have been read, without the backend's key.
    fn take_read(&mut self, length: usize) -> Bytes {
        let text = self.read.split_to(length).freeze();
        match OwnKey::of(&self.config) {
            Some(key) => key.mask(text),
            None => text,
        }
    }

    /// The next line of the response that is not empty, without its line end; `None` after the last
    /// one.
    pub(crate) async fn next_line(&mut self) -> Result<Option<Bytes>, ExchangeFailure> {
        loop {
            while let Some(end) = memchr::memchr(b'\n', &self.read) {
                let line = self.take_read(end + 1);
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            }
            // Otherwise an engine that sends no line end fills the memory.
            if self.read.len() > MAX_LINE_BYTES {
                return Err(ExchangeFailure::LineTooLong);
            }
            let Some(part) = in_time(self.timeout, self.session.read_body_bytes()).await? else {
                // The last line may come without its end.
                let rest = self.take_read(self.read.len());
                return Ok(Some(rest).filter(|rest| !rest.trim_ascii().is_empty()));
            };
            self.read.extend_from_slice(&part);
        }
    }
}

async fn in_time<T>(
    timeout: Duration,
    work: impl Future<Output = pingora::Result<T>>,
) -> Result<T, ExchangeFailure> {
    let done = tokio::time::timeout(timeout, work).await;
    let done = done.map_err(|_elapsed| ExchangeFailure::TimedOut)?;
    done.map_err(|error| {
        tracing::debug!(%error, "an exchange with an engine failed");
        match error.etype() {
            ErrorType::InvalidHTTPHeader => ExchangeFailure::NotHttp,
            _ => ExchangeFailure::Broken,
        }
    })
}

/// Reads heads of a response up to the first that is no interim one (1xx), which may come before
/// any response (RFC 9110 §15.2). Returns its status.
///
/// # Errors
/// [`pingora::Error`] when the connection breaks, or what comes is not HTTP.
// The caller limits the time, and with it the number of interim responses.
pub(crate) async fn read_final_head(session: &mut HttpSession) -> pingora::Result<u16> {
    loop {
        session.read_response().await?;
        let status = session.get_status().map_or(0, |status| status.as_u16());
        if !(100..200).contains(&status) {
            return Ok(status);
        }
    }
}
