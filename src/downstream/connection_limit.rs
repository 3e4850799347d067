//! Clients that get no further than the guard: on both ports because there are too many of them, on
//! the admin port for their heads, too.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use pingora::protocols::{Shutdown, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::http2;
use super::listener::{Port, Rejoined, Welcomed};
use crate::api::{Dialect, ErrorCode, error_body};
use crate::config::TrustedProxy;
use crate::proxy::context::Counted;

/// Connections over the limit that are told so at one time; further ones are closed without a word.
const REFUSED_AT_ONCE: usize = 1024;
/// Those of them that are taken through a TLS handshake for it, which costs more than the answer.
const HANDSHAKES_AT_ONCE: usize = 16;
const REFUSED_TIME: Duration = Duration::from_secs(1);
const REFUSED_READS: usize = 64;

/// Hears of every refusal, and of the client's address where it is known.
pub(crate) type Tell = Box<dyn Fn(ErrorCode, Option<IpAddr>) + Send + Sync>;

/// What a client is told that gets no further than the guard, and who else hears of it.
pub(crate) struct Refusals {
    too_many_connections: Refusal,
    handshakes: Arc<AtomicUsize>,
    tell: Tell,
}

impl Refusals {
    /// Calls `tell` with every refusal.
    pub(crate) fn new(tell: Tell) -> Self {
        let message = "Too many connections (limits.connections)";
        let too_many_connections = Refusal::new(ErrorCode::TooManyConnections, message);
        Self { too_many_connections, handshakes: Arc::default(), tell }
    }

    /// Turns a connection away of which there are `over` more than allowed.
    pub(crate) async fn turn_away(
        &self,
        mut stream: Stream,
        (port, trusted): (&Port, &[TrustedProxy]),
        over: usize,
    ) {
        (self.tell)(ErrorCode::TooManyConnections, port.peer(&stream).address());
        if over > REFUSED_AT_ONCE {
            return;
        }
        if !port.is_encrypted() {
            return self.too_many_connections.send(&mut stream).await;
        }
        let shaking = Counted::new(&self.handshakes);
        if shaking.count() > HANDSHAKES_AT_ONCE {
            return;
        }
        let Ok(welcomed) = port.welcome(stream, trusted, REFUSED_TIME).await else { return };
        let Welcomed { mut stream, ahead, is_http2, .. } = welcomed;
        if !is_http2 {
            return self.too_many_connections.send(&mut stream).await;
        }
        let refusal = self.too_many_connections.to_response();
        let told = http2::turn_away(Rejoined { ahead, stream }, refusal);
        if tokio::time::timeout(REFUSED_TIME, told).await.is_err() {
            tracing::debug!("a client over the limit was slow to leave");
        }
    }
}

/// A whole answer: Pingora has not seen the request, so it cannot write one.
pub(crate) struct Refusal {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Refusal {
    /// The answer for an error.
    pub(crate) fn new(code: ErrorCode, message: &str) -> Self {
        let row = code.row();
        let body = Bytes::from(error_body(Dialect::OpenAi, code, message, None));
        let mut fields = vec![
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::CONTENT_LENGTH, HeaderValue::from(body.len())),
            (
                HeaderName::from_static("x-should-retry"),
                HeaderValue::from_static(if row.retry { "true" } else { "false" }),
            ),
        ];
        if row.retry {
            fields.push((header::RETRY_AFTER, HeaderValue::from_static("1")));
        }
        let status = StatusCode::from_u16(row.status);
        Self { status: status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), fields, body }
    }

    fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.body.clone());
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.fields.iter().cloned());
        response
    }

    fn to_bytes(&self) -> Vec<u8> {
        let reason = self.status.canonical_reason().unwrap_or_default();
        let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", self.status.as_u16()).into_bytes();
        for (name, value) in &self.fields {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"connection: close\r\n\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Answers and closes, in whatever time it takes but at most a second.
    pub(crate) async fn send(&self, stream: &mut Stream) {
        refuse(stream, &self.to_bytes()).await;
    }
}

/// Turns a connection away. What it sent is read and dropped for a moment: closed
/// with bytes unread, a connection is reset, and its client may never see the answer.
async fn refuse(stream: &mut Stream, answer: &[u8]) {
    let told = async {
        stream.write_all(answer).await?;
        stream.flush().await?;
        Shutdown::shutdown(&mut **stream).await;
        let mut scrap = [0; 1024];
        for _ in 0..REFUSED_READS {
            if stream.read(&mut scrap).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    match tokio::time::timeout(REFUSED_TIME, told).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) | Err(_) => tracing::debug!("a client that was turned away was slow to leave"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_whole_answer() {
        let refusals = Refusals::new(Box::new(|_code, _client| ()));
        let text = String::from_utf8(refusals.too_many_connections.to_bytes()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
