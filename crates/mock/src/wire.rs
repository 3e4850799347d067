//! HTTP/1.1 by hand, on one accepted connection: reads requests strictly, writes any bytes, and
//! notices at every moment that the client has left.

use std::future::{Future, pending};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use penstock_api::slices::before;
use penstock_api::units::ByteSize;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

use super::wire_head::{RequestFraming, RequestHead, head_end};

const MAX_BODY: ByteSize = ByteSize::mib(64);
const MAX_CHUNK_LINE: usize = 64;

/// The maximum read ahead during a response; further bytes stay in the kernel.
const MAX_READ_AHEAD: usize = 64 << 10;

/// The time for which a connection with an unread request is drained, so that its client can read
/// the response before the reset.
const LINGER: Duration = Duration::from_secs(1);

/// The client has closed its side or reset the connection.
#[derive(Debug)]
pub(super) struct ClientGone;

/// The reason why a request could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The client left before the request was complete.
    Gone,
    /// The bytes are not a strictly well-formed request.
    Malformed(&'static str),
}

/// One accepted connection.
#[derive(Debug)]
pub(super) struct ClientSocket {
    stream: TcpStream,
    buffer: BytesMut,
}

impl ClientSocket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Waits for the first bytes of a request and returns them without consuming them; `None` if
    /// the client leaves.
    pub(super) async fn peek(&self) -> Option<Vec<u8>> {
        // A pipelined request is here already: the socket may have nothing more to show.
        if !self.buffer.is_empty() {
            return Some(self.buffer.to_vec());
        }
        // Enough for a method and the start of a path; nothing is taken from the socket.
        let mut first = [0; 32];
        match self.stream.peek(&mut first).await {
            Ok(0) | Err(_) => None,
            Ok(length) => Some(before(&first, length).to_vec()),
        }
    }

    pub(super) async fn read_head(&mut self) -> Result<RequestHead, ReadError> {
        loop {
            match head_end(&self.buffer) {
                Ok(Some(end)) => {
                    let raw = Bytes::copy_from_slice(before(&self.buffer, end));
                    let head = RequestHead::parse(raw).map_err(ReadError::Malformed)?;
                    self.buffer.advance(end);
                    return Ok(head);
                }
                Ok(None) => self.fill().await?,
                Err(why) => return Err(ReadError::Malformed(why)),
            }
        }
    }

    pub(super) async fn read_body(&mut self, length: RequestFraming) -> Result<Bytes, ReadError> {
        match length {
            RequestFraming::Known(length) => self.read_exactly(length).await,
            RequestFraming::Chunked => {
                let mut body = BytesMut::new();
                loop {
                    let size = self.read_chunk_size().await?;
                    if size == 0 {
                        self.read_line_end("trailers, or no end after the last chunk").await?;
                        return Ok(body.freeze());
                    }
                    // Saturating: a size near 2^64 must be refused, and not wrap to a small sum.
                    if size.saturating_add(to_u64(body.len())) > MAX_BODY.0 {
                        return Err(ReadError::Malformed("a body beyond 64 MiB"));
                    }
                    body.extend_from_slice(&self.read_exactly(size).await?);
                    self.read_line_end("a chunk longer than its size").await?;
                }
            }
        }
    }

    /// Returns the bytes that were read and not used yet.
    pub(super) fn leftover(&self) -> Bytes {
        Bytes::copy_from_slice(&self.buffer)
    }

    async fn read_exactly(&mut self, length: u64) -> Result<Bytes, ReadError> {
        let length = match usize::try_from(length) {
            Ok(length) if length <= MAX_BODY.to_usize() => length,
            Ok(_) | Err(_) => return Err(ReadError::Malformed("a body beyond 64 MiB")),
        };
        while self.buffer.len() < length {
            self.buffer.reserve(length - self.buffer.len());
            self.fill().await?;
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    async fn read_chunk_size(&mut self) -> Result<u64, ReadError> {
        let line = loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                break self.buffer.split_to(end + 1);
            }
            // A size has 16 digits at most; penstock sends no extensions, and should not.
            if self.buffer.len() > MAX_CHUNK_LINE {
                return Err(ReadError::Malformed("a chunk size without an end"));
            }
            self.fill().await?;
        };
        let digits = line.strip_suffix(b"\r\n").unwrap_or_default();
        let is_plain = digits.iter().all(u8::is_ascii_hexdigit);
        std::str::from_utf8(digits)
            .ok()
            .filter(|_| is_plain)
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or(ReadError::Malformed("not a chunk size"))
    }

    async fn read_line_end(&mut self, otherwise: &'static str) -> Result<(), ReadError> {
        let end = self.read_exactly(2).await?;
        if *end == *b"\r\n" { Ok(()) } else { Err(ReadError::Malformed(otherwise)) }
    }

    async fn fill(&mut self) -> Result<(), ReadError> {
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(ReadError::Gone),
            Ok(_) => Ok(()),
        }
    }

    /// Sends bytes in one write as far as the kernel has room, then waits to send the rest.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientGone> {
        let (mut reading, mut writing) = self.stream.split();
        let written = while_present(&mut reading, &mut self.buffer, writing.write_all(bytes));
        written.await?.map_err(|_client_left| ClientGone)
    }

    /// Waits for `wait`, unless the client leaves.
    pub(super) async fn pause(&mut self, wait: Duration) -> Result<(), ClientGone> {
        if wait.is_zero() { Ok(()) } else { self.wait_for(tokio::time::sleep(wait)).await }
    }

    /// Waits for `work`, unless the client leaves.
    pub(super) async fn wait_for<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, ClientGone> {
        let (mut reading, _) = self.stream.split();
        while_present(&mut reading, &mut self.buffer, work).await
    }

    /// Sends nothing until the client leaves.
    pub(super) async fn hang(&mut self) -> ClientGone {
        match self.wait_for(pending::<std::convert::Infallible>()).await {
            Ok(never) => match never {},
            Err(gone) => gone,
        }
    }

    /// Closes with a FIN.
    pub(super) async fn close(mut self) {
        // The client may have left already.
        _ = self.stream.shutdown().await;
    }

    /// Closes with a FIN and briefly drains the bytes that the client still sends.
    pub(super) async fn close_slowly(mut self) {
        _ = self.stream.shutdown().await;
        let drain = async {
            let mut scrap = [0; 4096];
            while let Ok(1..) = self.stream.read(&mut scrap).await {}
        };
        // Both outcomes are fine: the response is out, and the drain is a courtesy.
        _ = tokio::time::timeout(LINGER, drain).await;
    }

    /// Closes with an RST.
    pub(super) fn reset(self) {
        // With no time to linger, the close sends RST instead of FIN.
        let outcome = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        debug_assert!(outcome.is_ok(), "an open socket takes SO_LINGER");
    }
}

/// Runs `work` to its end unless the client leaves first. Bytes that arrive meanwhile are kept for
/// the next request.
async fn while_present<T>(
    reading: &mut ReadHalf<'_>,
    buffer: &mut BytesMut,
    work: impl Future<Output = T>,
) -> Result<T, ClientGone> {
    let gone = async {
        // A client that sends on is there; beyond this its bytes wait in the socket, unread.
        while buffer.len() < MAX_READ_AHEAD {
            match reading.read_buf(buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        pending().await
    };
    tokio::select! {
        // Work that is done counts, even if the client left at the same moment.
        biased;
        done = work => Ok(done),
        () = gone => Err(ClientGone),
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
