//! The HTTP client behind checks and discovery: a connection per question, small answers only.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use http::header::{self, HeaderValue};
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::client::HttpSession;

use crate::fleet::Backend;
use crate::upstream::connect::Connector;
use crate::upstream::failure::ConnectError;

/// The most bytes of an answer that are read.
const BODY_LIMIT: usize = 8 << 20;

/// Why a probe got no answer.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The backend's name has not been resolved.
    #[error("the backend's name does not resolve")]
    NoAddress,
    /// Nothing within the time a probe has.
    #[error("no answer within the time a probe has")]
    TimedOut,
    /// The connection could not be made or broke.
    #[error("the connection failed: {0}")]
    Connection(&'static str),
    /// The answer is larger than a probe reads.
    #[error("the answer is larger than 8 MiB")]
    TooLarge,
    /// An answer that is no success.
    #[error("{path} answered {status}")]
    Status {
        /// What was asked for.
        path: String,
        /// What came back.
        status: u16,
    },
    /// An answer that is not the JSON it should be.
    #[error("{path} did not answer with the JSON it should")]
    NotJson {
        /// What was asked for.
        path: String,
    },
}

/// Asks backends small questions.
pub struct DiscoveryClient(Connector);

impl Default for DiscoveryClient {
    fn default() -> Self {
        // Every check tries whether a connection can be made.
        Self(Connector::new(Duration::ZERO))
    }
}

/// A question to a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// The path below the backend's base path.
    pub(super) path: &'a str,
    /// A JSON body; makes it a POST.
    pub(super) body: Option<&'a str>,
    /// The time there is for all of it.
    pub(super) timeout: Duration,
}

impl DiscoveryClient {
    /// Asks, and gives the status and the body that came back.
    pub(super) async fn ask(
        &self,
        backend: &Backend,
        question: Question<'_>,
    ) -> Result<(u16, Bytes), DiscoveryError> {
        tokio::time::timeout(question.timeout, self.exchange(backend, question))
            .await
            .map_err(|_elapsed| DiscoveryError::TimedOut)?
    }

    async fn exchange(
        &self,
        backend: &Backend,
        question: Question<'_>,
    ) -> Result<(u16, Bytes), DiscoveryError> {
        let stream = self.0.connect(backend, question.timeout).await.map_err(no_connection)?;
        let failed =
            |error: Box<pingora::Error>| DiscoveryError::Connection(error.etype().as_static());
        let mut session = HttpSession::new(stream);
        let head = request_head(backend, question)?;
        session.write_request_header(Box::new(head)).await.map_err(failed)?;
        if let Some(body) = question.body {
            session.write_body(body.as_bytes()).await.map_err(failed)?;
        }
        session.finish_body().await.map_err(failed)?;
        session.read_response().await.map_err(failed)?;
        let status = session.get_status().map_or(0, |status| status.as_u16());
        let body = read_body(&mut session).await?;
        Ok((status, body))
    }
}

fn no_connection(error: ConnectError) -> DiscoveryError {
    match error {
        ConnectError::NoAddress => DiscoveryError::NoAddress,
        ConnectError::TimedOut => DiscoveryError::TimedOut,
        ConnectError::Refused | ConnectError::Tls | ConnectError::Http2 => {
            DiscoveryError::Connection(error.text())
        }
    }
}

fn request_head(
    backend: &Backend,
    question: Question<'_>,
) -> Result<RequestHeader, DiscoveryError> {
    let build = || -> pingora::Result<RequestHeader> {
        let method = if question.body.is_some() { Method::POST } else { Method::GET };
        let target = format!("{}{}", backend.config.url.base_path, question.path);
        let mut head = RequestHeader::build(method, target.as_bytes(), Some(6))?;
        head.insert_header(header::HOST, &*backend.authority)?;
        head.insert_header(header::CONNECTION, HeaderValue::from_static("close"))?;
        head.insert_header(header::USER_AGENT, HeaderValue::from_static("penstock-probe"))?;
        if let Some(key) = &backend.config.api_key {
            head.insert_header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()))?;
        }
        if let Some(body) = question.body {
            head.insert_header(header::CONTENT_TYPE, "application/json")?;
            head.insert_header(header::CONTENT_LENGTH, body.len())?;
        }
        Ok(head)
    };
    build().map_err(|_bad_head| DiscoveryError::Connection("the question cannot be written"))
}

async fn read_body(session: &mut HttpSession) -> Result<Bytes, DiscoveryError> {
    let mut body = BytesMut::new();
    loop {
        match session.read_body_bytes().await {
            Ok(Some(part)) => body.extend_from_slice(&part),
            Ok(None) => return Ok(body.freeze()),
            Err(_broken) => return Err(DiscoveryError::Connection("the answer broke off")),
        }
        if body.len() > BODY_LIMIT {
            return Err(DiscoveryError::TooLarge);
        }
    }
}

/// A Pingora error's name without what it says about addresses.
trait StaticName {
    fn as_static(&self) -> &'static str;
}

impl StaticName for pingora::ErrorType {
    fn as_static(&self) -> &'static str {
        match self {
            Self::ReadTimedout => "no answer in time",
            Self::ConnectionClosed => "the backend closed the connection",
            Self::InvalidHTTPHeader => "the answer is not HTTP",
            _ => "connect or read error",
        }
    }
}
