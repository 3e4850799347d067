//! Error responses that end a client's request early: written without Pingora if it has not seen
//! the request, and followed by a drain, so that the client can read them.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use penstock_api::{Dialect, ErrorCode, ErrorReport, error_body};
use pingora::protocols::{Shutdown, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::Client;
use super::counted::Counted;

/// The timeout of a connection that is being refused.
pub(crate) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
const REFUSAL_READS: usize = 64;

/// The most bytes that are read and dropped after an early response, so that the client can read
/// it.
const MAX_DRAIN_BYTES: usize = 64 << 20;
/// The same limit after a refused head. It is lower: such a client is probably hostile.
const MAX_REFUSED_DRAIN_BYTES: usize = 1 << 20;
/// The pause between two reads of such a client. Without it a few senders of large heads always
/// have bytes to read, and each of them takes as many turns of the runtime as a good client.
const REFUSED_DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// The most such clients that are drained at one time. The kernel drops the bytes of the others,
/// and one that still sends may miss its response: a flood of large heads costs no more than
/// reading them.
const MAX_REFUSED_DRAINS: usize = 32;
const DRAIN_READ: usize = 64 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A whole error response for a client whose request Pingora has not seen.
pub(crate) struct RawResponse {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl RawResponse {
    /// The response for an error.
    pub(crate) fn new(code: ErrorCode, message: &str) -> Self {
        let row = code.row();
        let report = ErrorReport { code, message, param: None, request_id: None };
        // The dialect follows from the path, which nothing has read yet.
        let body = Bytes::from(error_body(Dialect::OpenAi, &report));
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
        debug_assert!(status.is_ok(), "{} is not an HTTP status", row.status);
        Self { status: status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), fields, body }
    }

    /// The same response for HTTP/2.
    pub(crate) fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.body.clone());
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.fields.iter().cloned());
        response
    }

    fn to_bytes(&self) -> Vec<u8> {
        // RFC 9112 §4: the reason phrase may be empty.
        let reason = self.status.canonical_reason().unwrap_or("");
        let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", self.status.as_u16()).into_bytes();
        write_fields(self.fields.iter().map(|(name, value)| (name, value)), &mut bytes);
        bytes.extend_from_slice(b"connection: close\r\n\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Sends the response over HTTP/1.1 and closes the connection, within [`REFUSAL_TIMEOUT`].
    /// Before the close, reads and drops bytes from the client: a socket closed with unread bytes
    /// is reset, and the client may never see the response.
    pub(crate) async fn send(&self, stream: &mut Stream) {
        match tokio::time::timeout(REFUSAL_TIMEOUT, self.try_send(stream)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => tracing::debug!("refused client did not close in time"),
        }
    }

    async fn try_send(&self, stream: &mut Stream) -> io::Result<()> {
        stream.write_all(&self.to_bytes()).await?;
        stream.flush().await?;
        Shutdown::shutdown(&mut **stream).await;
        let mut scrap = [0; 1024];
        for _ in 0..REFUSAL_READS {
            if stream.read(&mut scrap).await? == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Reads and drops what a client still sends after an early response, for a while: it gets that
/// response and no reset. `refused_drains` counts clients whose heads were refused.
pub(crate) async fn drain(client: &Client, refused_drains: &Arc<AtomicUsize>) {
    // A reset of the stream stops an HTTP/2 client; its connection goes on.
    let Client::Http1(client) = client else { return };
    let is_refused = client.is_refused();
    let counted = is_refused.then(|| Counted::new(refused_drains));
    if counted.as_ref().is_some_and(|counted| counted.count() > MAX_REFUSED_DRAINS) {
        return;
    }
    let limit = if is_refused { MAX_REFUSED_DRAIN_BYTES } else { MAX_DRAIN_BYTES };
    let mut scrap = BytesMut::with_capacity(DRAIN_READ);
    let drained = async {
        // The response is complete: a client that reads to its end must not wait for the drain.
        poll_fn(|cx| client.poll_shutdown(cx)).await?;
        let mut total = 0;
        while total < limit {
            scrap.clear();
            scrap.reserve(DRAIN_READ);
            let read = poll_fn(|cx| client.poll_body(cx, &mut scrap, DRAIN_READ)).await;
            match read {
                Ok(count @ 1..) => total += count,
                Ok(0) => break,
                Err(error) => return Err(error),
            }
            // Many clients that keep sending must not starve the others.
            match is_refused {
                true => tokio::time::sleep(REFUSED_DRAIN_PAUSE).await,
                false => tokio::task::yield_now().await,
            }
        }
        io::Result::Ok(total)
    };
    match tokio::time::timeout(DRAIN_TIMEOUT, drained).await {
        Ok(Ok(bytes)) => tracing::debug!(bytes, "drained a client after an early response"),
        Ok(Err(error)) => tracing::debug!(%error, "client reset after an early response"),
        Err(_elapsed) => tracing::debug!("client kept sending after an early response"),
    }
}

/// Writes the fields of a head, one per line.
pub(crate) fn write_fields<'a>(
    fields: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    out: &mut Vec<u8>,
) {
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_response_is_complete() {
        let response = RawResponse::new(ErrorCode::TooManyConnections, "Too many");
        let text = String::from_utf8(response.to_bytes()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
