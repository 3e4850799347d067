//! One HTTP/2 stream as a Pingora session: Pingora reads the head and writes the response through
//! it. Bodies are read from the stream itself, and Pingora proxies nothing, so the methods for that
//! do nothing.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use h2::Reason;
use http::header::{self, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Method, Response};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, Result};

use super::stream::{Gone, Http2Stream};

/// Header fields of an HTTP/1.1 connection, which HTTP/2 forbids (RFC 9113 §8.2.2).
const CONNECTION_FIELDS: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// One stream's request and its response.
pub(crate) struct Http2Session {
    head: RequestHeader,
    stream: Arc<Http2Stream>,
    written: Option<Box<ResponseHeader>>,
    sent: usize,
    write_timeout: Option<Duration>,
}

impl Http2Session {
    /// A session for a head that has passed the check.
    pub(crate) fn new(mut parts: Parts, stream: Arc<Http2Stream>) -> Self {
        // `Client::of` finds the stream there.
        parts.extensions.insert(Arc::clone(&stream));
        let (written, sent, write_timeout) = (None, 0, None);
        Self { head: parts.into(), stream, written, sent, write_timeout }
    }

    fn send_head(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers.clone();
        for name in &CONNECTION_FIELDS {
            response.headers_mut().remove(name);
        }
        if head.status.is_informational() {
            return self.stream.send_interim(response).map_err(|_reset| gone(Gone));
        }
        let is_last = end || self.head.method == Method::HEAD;
        self.stream.send_head(response, is_last).map_err(|_reset| gone(Gone))
    }

    async fn send(&mut self, mut data: Bytes, end: bool) -> Result<()> {
        // The response to a HEAD request has no body.
        if self.stream.is_complete() {
            return Ok(());
        }
        self.sent += data.len();
        let limit = self.write_timeout;
        while !data.is_empty() || end {
            let before = data.len();
            let mut timer = None;
            let sent = poll_fn(|cx| {
                if let Poll::Ready(sent) = self.stream.poll_send(cx, &mut data, end) {
                    return Poll::Ready(Some(sent));
                }
                // A part was sent: the client reads, and the timeout starts again.
                if data.len() < before {
                    return Poll::Ready(None);
                }
                let Some(limit) = limit else { return Poll::Pending };
                let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                timer.as_mut().poll(cx).map(|()| Some(Err(Gone)))
            })
            .await;
            match sent {
                None => continue,
                Some(Err(_)) if timer.is_some() => {
                    // Without the reset, h2 would keep the bytes that the client did not read.
                    self.stream.reset(Reason::CANCEL);
                    return Err(gone(Gone));
                }
                Some(sent) => return sent.map_err(gone),
            }
        }
        Ok(())
    }
}

fn gone(_gone: Gone) -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "the client reset the stream").into_down()
}

#[async_trait]
impl Session for Http2Session {
    fn req_header(&self) -> &RequestHeader {
        &self.head
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.head
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, end: bool) -> Result<()> {
        self.send_head(&head, end)?;
        self.written = Some(head);
        Ok(())
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        self.write_response_header(Box::new(head.clone()), end).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.send(data, end).await
    }

    async fn write_trailers(&mut self, _trailers: HeaderMap) -> Result<()> {
        Ok(())
    }

    async fn response_duplex_vec(&mut self, _tasks: Vec<HttpTask>) -> Result<bool> {
        Error::e_explain(ErrorType::InternalError, "Pingora proxies nothing here")
    }

    fn set_read_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_read_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write_timeout = timeout;
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.write_timeout
    }

    fn set_total_drain_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        None
    }

    fn request_summary(&self) -> String {
        format!("{} over HTTP/2", self.head.method)
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.written.as_deref()
    }

    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.stream.reset(Reason::INTERNAL_ERROR);
    }

    fn is_body_done(&mut self) -> bool {
        true
    }

    async fn finish(&mut self) -> Result<()> {
        self.send(Bytes::new(), true).await
    }

    fn is_body_empty(&mut self) -> bool {
        true
    }

    async fn read_body_or_idle(&mut self, _no_body_expected: bool) -> Result<Option<Bytes>> {
        poll_fn(|cx| self.stream.poll_gone(cx)).await;
        Err(gone(Gone))
    }

    fn body_bytes_sent(&self) -> usize {
        self.sent
    }

    fn body_bytes_read(&self) -> usize {
        0
    }

    fn digest(&self) -> Option<&Digest> {
        None
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        None
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        None
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        None
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        Bytes::new()
    }

    fn enable_retry_buffering(&mut self) {}

    fn retry_buffer_truncated(&self) -> bool {
        false
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        None
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(
        &mut self,
    ) -> Option<Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>> {
        None
    }

    fn restore_custom_message_reader(
        &mut self,
        _reader: Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>,
    ) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(
        &mut self,
        _writer: Box<dyn CustomMessageWrite>,
    ) -> Result<()> {
        Ok(())
    }
}
