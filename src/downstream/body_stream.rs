//! Reads a request's body in parts that are not held: for uploads of any size.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::body::{BodyError, BodyLength};
use super::client::Client;
use crate::wire::chunked::ChunkDecoder;
use crate::wire::split_at;

/// The longest part.
const PART: usize = 64 * 1024;

/// A body being read.
pub(crate) struct BodyStream<'a> {
    client: &'a Client,
    /// The longest wait for a part.
    timeout: Duration,
    left: Left,
}

enum Left {
    Known(u64),
    Chunked(ChunkDecoder),
    Framed,
    Nothing,
}

impl<'a> BodyStream<'a> {
    pub(crate) fn new(client: &'a Client, length: BodyLength, timeout: Duration) -> Self {
        let left = match length {
            BodyLength::None => Left::Nothing,
            BodyLength::Known(bytes) => Left::Known(bytes),
            BodyLength::Chunked => Left::Chunked(ChunkDecoder::default()),
            BodyLength::Framed(_) => Left::Framed,
        };
        Self { client, timeout, left }
    }

    /// The next part; `None` at the end, after which the client's next head may follow.
    ///
    /// # Errors
    /// When the client leaves, sends nothing for too long, or breaks the framing.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let limit = match &self.left {
                Left::Known(0) | Left::Nothing => {
                    self.client.expect_head();
                    return Ok(None);
                }
                Left::Known(left) => usize::try_from(*left).unwrap_or(PART).min(PART),
                Left::Chunked(_) | Left::Framed => PART,
            };
            let mut read = BytesMut::with_capacity(limit);
            let polled = poll_fn(|cx| self.client.poll_body(cx, &mut read, limit));
            let count = tokio::time::timeout(self.timeout, polled).await;
            let count = count.map_err(|_elapsed| BodyError::TimedOut)?;
            let count = count.map_err(|_reset| BodyError::ClientGone)?;
            let is_ended = count == 0;
            match &mut self.left {
                Left::Framed if is_ended => self.left = Left::Nothing,
                _ if is_ended => return Err(BodyError::ClientGone),
                Left::Known(left) => {
                    *left = left.saturating_sub(count as u64);
                    return Ok(Some(read.freeze()));
                }
                Left::Framed => return Ok(Some(read.freeze())),
                Left::Nothing => debug_assert!(false, "nothing is read after the end"),
                Left::Chunked(_) => {
                    let payload = self.decode(&mut read)?;
                    if payload > 0 {
                        read.truncate(payload);
                        return Ok(Some(read.freeze()));
                    }
                }
            }
        }
    }

    /// Moves the payload of chunks to the front; returns its length.
    fn decode(&mut self, read: &mut BytesMut) -> Result<usize, BodyError> {
        let Left::Chunked(decoder) = &mut self.left else { return Ok(0) };
        let decoded = decoder.decode(read)?;
        if decoded.is_done {
            let (_body, next_request) = split_at(read, decoded.consumed);
            self.client.unread(next_request);
            self.left = Left::Nothing;
        } else if let Some(bad) = read.get_mut(decoded.consumed..).filter(|rest| !rest.is_empty()) {
            // The decoder stopped at a byte that breaks the framing: this call reports it.
            decoder.decode(bad)?;
        }
        Ok(decoded.payload)
    }
}
