//! Reads a request's body in parts that are not kept: for uploads of any size, at a minimum rate.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use penstock_api::slices::split_at;
use penstock_clock::now;
use penstock_config::LimitsConfig;

use super::body::{BodyError, BodyLength};
use super::body_reader::RATE_CHECK;
use super::client::Client;
use crate::wire::chunked::ChunkDecoder;

const PART: usize = 64 * 1024;

pub(crate) struct BodyStream<'a> {
    client: &'a Client,
    left: Left,
    rate: MinRate,
}

/// The rate that a client must keep while penstock waits for it. Time spent waiting for a backend
/// does not count.
struct MinRate {
    /// The longest wait for a part, if there is no minimum rate.
    timeout: Duration,
    /// The bytes that must arrive per [`RATE_CHECK`]; 0 for no minimum.
    needed: u64,
    /// The time spent waiting for the client since the last check.
    waited: Duration,
    /// The bytes received since the last check.
    received: u64,
}

impl MinRate {
    fn new(limits: &LimitsConfig) -> Self {
        Self {
            timeout: limits.body_read_timeout,
            needed: limits.min_body_rate.0.saturating_mul(RATE_CHECK.as_secs()),
            waited: Duration::ZERO,
            received: 0,
        }
    }

    /// The remaining time until the next check.
    fn left(&self) -> Duration {
        if self.needed == 0 { self.timeout } else { RATE_CHECK.saturating_sub(self.waited) }
    }

    /// Ends this interval and starts the next.
    ///
    /// # Errors
    /// When too few bytes arrived in this interval. Without a minimum rate, always: the wait for a
    /// part has timed out.
    fn check(&mut self) -> Result<(), BodyError> {
        if self.received < self.needed || self.needed == 0 {
            return Err(BodyError::TimedOut);
        }
        (self.waited, self.received) = (Duration::ZERO, 0);
        Ok(())
    }
}

enum Left {
    Known(u64),
    Chunked(ChunkDecoder),
    Framed,
    Nothing,
}

impl<'a> BodyStream<'a> {
    pub(crate) fn new(client: &'a Client, length: BodyLength, limits: &LimitsConfig) -> Self {
        let left = match length {
            BodyLength::None => Left::Nothing,
            BodyLength::Known(bytes) => Left::Known(bytes),
            BodyLength::Chunked => Left::Chunked(ChunkDecoder::default()),
            BodyLength::Framed(_) => Left::Framed,
        };
        Self { client, left, rate: MinRate::new(limits) }
    }

    /// Reads the next part; `None` at the end, after which the client's next head may follow.
    ///
    /// # Errors
    /// When the client leaves, sends too slowly, or breaks the framing.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let limit = match &self.left {
                Left::Known(0) | Left::Nothing => {
                    self.client.expect_head();
                    return Ok(None);
                }
                // Never past the end: bytes of the next request stay in the connection.
                Left::Known(left) => usize::try_from(*left).unwrap_or(PART).min(PART),
                Left::Chunked(_) | Left::Framed => PART,
            };
            let mut read = BytesMut::with_capacity(limit);
            let count = self.read_some(&mut read, limit).await?;
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

    /// Reads at least one byte; 0 at the end.
    async fn read_some(&mut self, into: &mut BytesMut, limit: usize) -> Result<usize, BodyError> {
        loop {
            let started = now();
            let polled = poll_fn(|cx| self.client.poll_body(cx, into, limit));
            let read = tokio::time::timeout(self.rate.left(), polled).await;
            self.rate.waited += now().since(started);
            match read {
                Ok(Ok(count)) => {
                    self.rate.received = self.rate.received.saturating_add(count as u64);
                    return Ok(count);
                }
                Ok(Err(_reset)) => return Err(BodyError::ClientGone),
                Err(_elapsed) => self.rate.check()?,
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
