//! One request over HTTP/2, as a stream that speaks HTTP/1.1 and closes after the response.
//!
//! Why the translation: three readers share a backend's connections, the forwarder
//! (`upstream/http1.rs`), health checks and metrics scrapes (both on Pingora's HTTP/1.1 session).
//! Behind a byte stream all of them speak HTTP/2 without a second code path each, and responses
//! pass the same framing and header checks either way. The price is one formatted head, and one
//! chunk header per DATA frame; only backends with `http2: true` pay it.
//!
//! Invariants: the request is sent once and never again here (a retry is the proxy's decision, by
//! [`Http2BackendStream::was_refused`]). A response without `content-length` is chunked, so that a
//! reset stream cannot pass for a whole body. A DATA frame is acknowledged to flow control when it
//! is moved to `read`, which happens only once `read` is empty, so a slow client holds back the
//! backend.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::header::{self, HeaderValue};
use http::{HeaderName, Method, Request, Response, Uri, Version};
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::usage::StreamPermit;

/// The most header fields of a request; more than `request_writer` ever writes.
const MAX_FIELDS: usize = 256;

/// One request and its response on a shared connection.
pub(crate) struct Http2BackendStream {
    request: Sending,
    response: Receiving,
    /// The response as HTTP/1.1, not yet read.
    read: BytesMut,
    is_https: bool,
    was_refused: bool,
    _permit: StreamPermit,
}

enum Sending {
    /// The head of the request is incomplete.
    Head {
        requests: SendRequest<Bytes>,
        head: BytesMut,
    },
    Body {
        stream: SendStream<Bytes>,
        left: u64,
    },
    Done,
}

enum Receiving {
    /// The head of the request has not been sent.
    Nothing,
    Head(ResponseFuture),
    Body {
        stream: RecvStream,
        is_chunked: bool,
    },
    Done,
}

impl Http2BackendStream {
    pub(crate) fn new(requests: SendRequest<Bytes>, permit: StreamPermit, is_https: bool) -> Self {
        Self {
            request: Sending::Head { requests, head: BytesMut::new() },
            response: Receiving::Nothing,
            read: BytesMut::new(),
            is_https,
            was_refused: false,
            _permit: permit,
        }
    }

    /// Returns whether the backend refused the request without processing it (RFC 9113 §8.7).
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Buffers a part of the head, and sends the request when the head is complete. Returns the
    /// number of bytes taken.
    fn take_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Sending::Head { requests, head } = &mut self.request else { return Ok(0) };
        let before = head.len();
        head.extend_from_slice(bytes);
        let Some(end) = memchr::memmem::find(head, b"\r\n\r\n").map(|at| at + 4) else {
            return Ok(bytes.len());
        };
        let (whole, _body) = head.split_at(end);
        let (request, length) = to_request(whole, self.is_https)?;
        let sent = requests.send_request(request, length == 0);
        let (response, stream) = sent.map_err(|error| self.wrap_error(&error))?;
        self.response = Receiving::Head(response);
        self.request =
            if length == 0 { Sending::Done } else { Sending::Body { stream, left: length } };
        // Only the bytes of the head count as taken: the writer sends the others again as body.
        Ok(end.saturating_sub(before).min(bytes.len()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = match &mut self.request {
            Sending::Head { .. } => return Poll::Ready(self.take_head(bytes)),
            Sending::Done => return Poll::Ready(Err(io::ErrorKind::InvalidInput.into())),
            Sending::Body { stream, left } => {
                let wanted = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                stream.reserve_capacity(wanted);
                let room = loop {
                    // Zero is no error: the capacity was assigned and has been reclaimed since.
                    match ready!(stream.poll_capacity(cx)) {
                        Some(Ok(0)) => {}
                        room => break room,
                    }
                };
                match room {
                    None => Err(None),
                    Some(Err(error)) => Err(Some(error)),
                    Some(Ok(room)) => {
                        let (part, _later) = bytes.split_at(room.min(wanted));
                        *left -= part.len() as u64;
                        // h2 takes owned bytes, and the request keeps its body for a retry.
                        let data = Bytes::copy_from_slice(part);
                        let sent = stream.send_data(data, *left == 0);
                        sent.map(|()| (part.len(), *left)).map_err(Some)
                    }
                }
            }
        };
        Poll::Ready(match sent {
            Ok((count, left)) => {
                if left == 0 {
                    self.request = Sending::Done;
                }
                Ok(count)
            }
            Err(Some(error)) => Err(self.wrap_error(&error)),
            Err(None) => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    /// Receives more of the response; ready without new bytes at its end.
    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let next = match &mut self.response {
            Receiving::Nothing => return Poll::Pending,
            Receiving::Done => return Poll::Ready(Ok(())),
            Receiving::Head(response) => match ready!(Pin::new(response).poll(cx)) {
                Ok(response) => {
                    let (head, stream) = response.into_parts();
                    let is_empty = stream.is_end_stream();
                    let is_chunked =
                        !is_empty && !head.headers.contains_key(header::CONTENT_LENGTH);
                    write_head(&mut self.read, &Response::from_parts(head, ()), is_chunked);
                    Ok(if is_empty {
                        Receiving::Done
                    } else {
                        Receiving::Body { stream, is_chunked }
                    })
                }
                Err(error) => Err(error),
            },
            Receiving::Body { stream, is_chunked } => match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    write_data(&mut self.read, &data, *is_chunked);
                    match stream.flow_control().release_capacity(data.len()) {
                        Ok(()) => return Poll::Ready(Ok(())),
                        Err(error) => Err(error),
                    }
                }
                Some(Err(error)) => Err(error),
                None => {
                    if *is_chunked {
                        self.read.put_slice(b"0\r\n\r\n");
                    }
                    Ok(Receiving::Done)
                }
            },
        };
        Poll::Ready(match next {
            Ok(next) => {
                self.response = next;
                Ok(())
            }
            Err(error) => Err(self.wrap_error(&error)),
        })
    }

    /// Converts to an `io::Error`. Stores whether the backend refused the request, which an
    /// `io::Error` cannot express.
    fn wrap_error(&mut self, error: &h2::Error) -> io::Error {
        // An error of this side proves nothing. h2 reports GOAWAY only for streams above its last
        // id, which the backend has not processed (RFC 9113 §6.8).
        self.was_refused |= error.is_remote()
            && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM));
        io::Error::new(io::ErrorKind::ConnectionReset, error.to_string())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Converts an HTTP/1.1 request head to HTTP/2; also returns the length of the body after it.
fn to_request(head: &[u8], is_https: bool) -> io::Result<(Request<()>, u64)> {
    let mut slots = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut slots);
    parsed.parse(head).map_err(|_not_http| invalid("the head is not HTTP/1.1"))?;
    let mut authority = None;
    let mut length = 0;
    let mut request = Request::new(());
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let name = name.map_err(|_bad_name| invalid("a field name is invalid"))?;
        if name == header::HOST {
            authority = std::str::from_utf8(field.value).ok();
            continue;
        }
        // Connection-specific fields are forbidden in HTTP/2 (RFC 9113 §8.2.2).
        if name == header::CONNECTION || name == header::TRANSFER_ENCODING || name == header::TE {
            continue;
        }
        let value = HeaderValue::from_bytes(field.value);
        let value = value.map_err(|_bad_value| invalid("a field value is invalid"))?;
        if name == header::CONTENT_LENGTH {
            // `request_writer` writes the field, in digits: the fallback is never used.
            length = value.to_str().ok().and_then(|digits| digits.parse().ok()).unwrap_or(0);
        }
        request.headers_mut().append(name, value);
    }
    let scheme = if is_https { "https" } else { "http" };
    let authority = authority.ok_or_else(|| invalid("the head has no host"))?;
    let target = parsed.path.unwrap_or("/");
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build();
    *request.uri_mut() = uri.map_err(|_bad_target| invalid("the target is not a path"))?;
    let method = Method::from_bytes(parsed.method.unwrap_or_default().as_bytes());
    *request.method_mut() = method.map_err(|_bad_method| invalid("the method is invalid"))?;
    *request.version_mut() = Version::HTTP_2;
    Ok((request, length))
}

fn write_head(out: &mut BytesMut, response: &Response<()>, is_chunked: bool) {
    out.put_slice(b"HTTP/1.1 ");
    out.put_slice(response.status().as_str().as_bytes());
    // The stream ends with the response: the pool must not keep it.
    out.put_slice(b"\r\nconnection: close\r\n");
    for (name, value) in response.headers() {
        out.put_slice(name.as_str().as_bytes());
        out.put_slice(b": ");
        out.put_slice(value.as_bytes());
        out.put_slice(b"\r\n");
    }
    if is_chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    } else if !response.headers().contains_key(header::CONTENT_LENGTH) {
        out.put_slice(b"content-length: 0\r\n");
    }
    out.put_slice(b"\r\n");
}

fn write_data(out: &mut BytesMut, data: &[u8], is_chunked: bool) {
    // An empty chunk would end the body.
    if data.is_empty() {
        return;
    }
    if is_chunked {
        out.put_slice(format!("{:x}\r\n", data.len()).as_bytes());
    }
    out.put_slice(data);
    if is_chunked {
        out.put_slice(b"\r\n");
    }
}

impl AsyncRead for Http2BackendStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // An empty DATA frame adds nothing, and zero bytes would look like the end.
        while self.read.is_empty() {
            ready!(self.poll_response(cx))?;
            if self.read.is_empty() && matches!(self.response, Receiving::Done) {
                return Poll::Ready(Ok(()));
            }
        }
        let count = self.read.len().min(out.remaining());
        out.put_slice(&self.read.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2BackendStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's driver task sends.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Http2BackendStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Http2BackendStream")
    }
}

#[async_trait]
impl Shutdown for Http2BackendStream {
    async fn shutdown(&mut self) {}
}

impl UniqueID for Http2BackendStream {
    fn id(&self) -> UniqueIDType {
        // There is no descriptor: the connection below is shared.
        -1
    }
}

impl Ssl for Http2BackendStream {}

impl GetTimingDigest for Http2BackendStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Http2BackendStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Http2BackendStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[async_trait]
impl Peek for Http2BackendStream {}
